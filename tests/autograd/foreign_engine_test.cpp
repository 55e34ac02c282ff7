// SPDX-License-Identifier: Apache-2.0
//
// Somebody installed an autograd engine before sherd, as a Python process does.
// The installation is process-wide, hence a program of its own.
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/autograd/checkpoint.h>
#include <sherd/autograd/touch.h>
#include <sherd/base/error.h>
#include <torch/csrc/autograd/engine.h>
#include "autograd/backward.h"

namespace sherd::autograd {
namespace {

class ForeignEngine final : public torch::autograd::Engine {
 public:
  ForeignEngine() = default;
  ~ForeignEngine() override { stop(); }
};

torch::autograd::Engine& foreign_engine() {
  static ForeignEngine engine;
  return engine;
}

class Counter final : public BackwardListener {
 public:
  void backward_ended(std::exception_ptr failure) override {
    ++ends;
    EXPECT_EQ(failure != nullptr, fails);
    if (!complaint.empty()) {
      throw std::runtime_error(complaint);
    }
  }
  void writes_ended() override { ++writes_ends; }
  int ends = 0;
  int writes_ends = 0;
  bool fails = false;
  std::string complaint;
};

class ForeignEngineTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    torch::autograd::set_default_engine_stub(&foreign_engine);
    install_backward_engine();
  }
};

at::Tensor leaf() { return at::ones({2}).requires_grad_(); }

// A backward in whose only leaf's hook `act` runs.
void backward_with(const std::function<void()>& act) {
  const auto w = leaf();
  w.register_hook([&act](const at::Tensor&) { act(); });
  w.sum().backward();
}

TEST_F(ForeignEngineTest, IsLeftInPlace) {
  EXPECT_EQ(&torch::autograd::Engine::get_default_engine(), &foreign_engine());
}

TEST_F(ForeignEngineTest, T08RefusesCheckpointsAndRunsThemWithoutGradients) {
  const auto twice = [](const at::Tensor& x) { return x * 2; };
  std::string refused;
  try {
    (void)checkpoint(twice, leaf());
  } catch (const Error& error) {
    refused = error.what();
  }
  EXPECT_THAT(
      refused, ::testing::HasSubstr("expected sherd's autograd engine"));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(checkpoint(twice, leaf()), at::full({2}, 2.0)));
}

TEST_F(ForeignEngineTest, EndsABackwardArmedDuringIt) {
  const auto counter = std::make_shared<Counter>();
  const auto other = std::make_shared<Counter>();
  backward_with([&] {
    arm(counter);
    arm(other);
    arm(counter);
    EXPECT_EQ(counter->ends, 0);
  });
  EXPECT_EQ(counter->ends, 1);
  EXPECT_EQ(other->ends, 1);
  backward_with([] {});
  EXPECT_EQ(counter->ends, 1);
}

TEST_F(ForeignEngineTest, StillEndsTheBackwardAfterAFailedOne) {
  const auto counter = std::make_shared<Counter>();
  EXPECT_ANY_THROW(backward_with([&] {
    arm(counter);
    throw std::runtime_error("x");
  }));
  EXPECT_EQ(counter->ends, 0);  // The documented limit.
  backward_with([&] { arm(counter); });
  EXPECT_EQ(counter->ends, 1);
}

TEST_F(ForeignEngineTest, DoesNotEndABackwardTheFailedOneWasArmedFor) {
  const auto failed = std::make_shared<Counter>();
  const auto fine = std::make_shared<Counter>();
  EXPECT_ANY_THROW(backward_with([&] {
    arm(failed);
    throw std::runtime_error("x");
  }));
  backward_with([&] { arm(fine); });
  EXPECT_EQ(fine->ends, 1);
  EXPECT_EQ(failed->ends, 0);
}

TEST_F(ForeignEngineTest, NeverEndsAutogradGrad) {
  const auto counter = std::make_shared<Counter>();
  const auto x = leaf();
  const auto y = x * 2;
  y.register_hook([&](const at::Tensor&) { arm(counter); });
  (void)torch::autograd::grad({y.sum()}, {x});
  EXPECT_EQ(counter->ends, 0);
}

TEST_F(ForeignEngineTest, EndsABackwardWithInputs) {
  const auto counter = std::make_shared<Counter>();
  const auto x = leaf();
  const auto y = x * 2;
  y.register_hook([&](const at::Tensor&) { arm(counter); });
  y.sum().backward({}, std::nullopt, false, std::vector<at::Tensor>{x});
  EXPECT_EQ(counter->ends, 1);
}

TEST_F(ForeignEngineTest, ListenersErrorReachesTheCallerAfterAllWereTold) {
  const auto first = std::make_shared<Counter>();
  const auto second = std::make_shared<Counter>();
  first->complaint = "first";
  try {
    backward_with([&] {
      arm(first);
      arm(second);
    });
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("first"));
  }
  EXPECT_EQ(second->ends, 1);
}

TEST_F(ForeignEngineTest, SkipsListenersThatAreGone) {
  auto gone = std::make_shared<Counter>();
  const auto stays = std::make_shared<Counter>();
  backward_with([&] {
    arm(gone);
    arm(stays);
    gone.reset();
  });
  EXPECT_EQ(stays->ends, 1);
}

// A backward as Python's package runs them.
void bracketed(const std::function<void()>& act) {
  ForeignBackward bracket;
  std::exception_ptr failure;
  try {
    backward_with(act);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  bracket.end(failure);
}

TEST_F(ForeignEngineTest, BracketsTellOfFailures) {
  const auto counter = std::make_shared<Counter>();
  counter->fails = true;
  bracketed([&] {
    arm(counter);
    throw std::runtime_error("x");
  });
  EXPECT_EQ(counter->ends, 1);
  bracketed([] {});
  EXPECT_EQ(counter->ends, 1);
}

TEST_F(ForeignEngineTest, BracketsEndWhatForwardsHaveArmed) {
  bracketed([] {});
  const auto counter = std::make_shared<Counter>();
  EXPECT_TRUE(arm(counter));
  bracketed([] {});
  EXPECT_EQ(counter->ends, 1);
}

TEST_F(ForeignEngineTest, BracketsEndWritesThatWereNotedWithin) {
  const auto counter = std::make_shared<Counter>();
  bracketed([&] {
    // Beside it, a backward that writes nothing here.
    std::jthread([&] {
      bracketed([&] { EXPECT_FALSE(writes_under_way(counter)); });
    }).join();
    note_writes(counter);
    EXPECT_TRUE(writes_under_way(counter));
    std::jthread([&] {
      bracketed([] {});
      EXPECT_TRUE(writes_under_way(counter));
    }).join();
    EXPECT_EQ(counter->writes_ends, 0);
  });
  EXPECT_FALSE(writes_under_way(counter));
  EXPECT_EQ(counter->writes_ends, 1);
  EXPECT_EQ(counter->ends, 0);
}

// A thread of the engine cannot tell whose node it runs.
TEST_F(ForeignEngineTest, WritesOfAnEnginesOwnThreadMayBeOfEachBracket) {
  const auto counter = std::make_shared<Counter>();
  bracketed([&] {
    std::jthread([&] { note_writes(counter); }).join();
    EXPECT_TRUE(writes_under_way(counter));
  });
  EXPECT_EQ(counter->writes_ends, 1);
}

TEST_F(ForeignEngineTest, WritesOfABackwardWithoutABracketAreNotNoted) {
  const auto counter = std::make_shared<Counter>();
  backward_with([&] {
    note_writes(counter);
    EXPECT_FALSE(writes_under_way(counter));
  });
  EXPECT_EQ(counter->writes_ends, 0);
}

TEST_F(ForeignEngineTest, BackwardsWithinABracketAreNone) {
  const auto counter = std::make_shared<Counter>();
  bracketed([&] {
    const at::AutoGradMode grad_mode(true);
    bracketed([&] { arm(counter); });
    EXPECT_EQ(counter->ends, 0);
  });
  EXPECT_EQ(counter->ends, 1);
}

}  // namespace
}  // namespace sherd::autograd
