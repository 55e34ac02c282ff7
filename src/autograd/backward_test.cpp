// SPDX-License-Identifier: Apache-2.0
#include "autograd/backward.h"

#include <latch>
#include <thread>
#include <gmock/gmock.h>
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

using ::testing::HasSubstr;

class Counter final : public BackwardListener {
 public:
  void backward_ended(std::exception_ptr failure) override {
    ++ends;
    failures += failure != nullptr;
    thread = std::this_thread::get_id();
    text = failure ? thrown_by([&] { std::rethrow_exception(failure); }) : "";
    inside = in_backward();
    if (!complaint.empty()) {
      throw std::runtime_error(complaint);
    }
  }
  void writes_ended() override { ++writes_ends; }
  std::atomic<int> ends = 0;
  std::atomic<int> writes_ends = 0;
  int failures = 0;
  std::string text;
  bool inside = true;
  std::thread::id thread;
  std::string complaint;  // Thrown from backward_ended().
};

std::shared_ptr<Counter> armed() {
  install_backward_engine();
  auto counter = std::make_shared<Counter>();
  arm(counter);
  return counter;
}

at::Tensor leaf() { return at::ones({2}).requires_grad_(); }

// A small backward of its own; nodes run with grad mode off.
void plain_backward() {
  const at::AutoGradMode grad_mode(true);
  leaf().sum().backward();
}

// Runs a callback in its backward; the gradient passes through unchanged.
struct AtNode : torch::autograd::Function<AtNode> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      std::function<void()>* act) {
    context->saved_data["act"] = reinterpret_cast<std::int64_t>(act);
    return x.clone();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::tensor_list grads) {
    (*reinterpret_cast<std::function<void()>*>(
        context->saved_data["act"].toInt()))();
    return {grads[0], at::Tensor()};
  }
};

// Backwards nested `depth` deep, each within a node of another.
void backward_of_depth(int depth, const std::function<void()>& innermost) {
  std::function<void()> act = [&] {
    if (depth > 1) {
      backward_of_depth(depth - 1, innermost);
    } else {
      innermost();
    }
  };
  const at::AutoGradMode grad_mode(true);  // Off in nodes.
  AtNode::apply(leaf(), &act).sum().backward();
}

// ---- Exactly one end ----

TEST(BackwardEnd, ComesOnceWhateverTheDepth) {
  for (const int depth : {1, 2, 62, 130}) {
    const auto counter = armed();
    const auto late = std::make_shared<Counter>();
    bool inside = false;
    backward_of_depth(depth, [&] {
      inside = in_backward();
      arm(late);
      arm(late);
    });
    EXPECT_TRUE(inside) << depth;
    EXPECT_EQ(counter->ends, 1) << depth;
    EXPECT_EQ(late->ends, 1) << depth;
    EXPECT_FALSE(counter->inside);
    EXPECT_EQ(counter->thread, std::this_thread::get_id());
  }
}

TEST(BackwardEnd, ComesAfterEveryInnerBackward) {
  const auto counter = armed();
  int ends_within = -1;
  std::function<void()> act = [&] {
    plain_backward();
    ends_within = counter->ends;
  };
  AtNode::apply(leaf(), &act).sum().backward();
  EXPECT_EQ(ends_within, 0);
  EXPECT_EQ(counter->ends, 1);
}

TEST(BackwardEnd, ComesForOneBackwardOnly) {
  const auto counter = armed();
  leaf().sum().backward();
  leaf().sum().backward();
  EXPECT_EQ(counter->ends, 1);
  arm(counter);
  arm(counter);
  leaf().sum().backward();
  EXPECT_EQ(counter->ends, 2);
}

TEST(BackwardEnd, ComesWithTheFailureAndTheCallerStillSeesIt) {
  for (const int depth : {1, 3, 70}) {
    const auto counter = armed();
    const auto error = thrown_by([&] {
      backward_of_depth(depth, [] { throw std::runtime_error("disk full"); });
    });
    EXPECT_THAT(error, HasSubstr("disk full"));
    EXPECT_EQ(counter->ends, 1);
    EXPECT_EQ(counter->failures, 1);
    EXPECT_THAT(counter->text, HasSubstr("disk full"));
  }
}

TEST(BackwardEnd, ComesForABackwardThatNeverStarts) {
  const auto counter = armed();
  const auto a = leaf();
  const auto loss = (a * a).sum();
  loss.backward();
  EXPECT_EQ(counter->failures, 0);
  arm(counter);
  EXPECT_THAT(thrown_by([&] { loss.backward(); }), HasSubstr("second time"));
  EXPECT_EQ(counter->ends, 2);
  EXPECT_EQ(counter->failures, 1);
}

TEST(BackwardEnd, IsReachedAgainAfterAFailure) {
  const auto counter = armed();
  (void)thrown_by(
      [] { backward_of_depth(1, [] { throw std::runtime_error("x"); }); });
  arm(counter);
  leaf().sum().backward();
  EXPECT_EQ(counter->ends, 2);
  EXPECT_EQ(counter->failures, 1);
}

TEST(BackwardEnd, ComesForBackwardWithInputs) {
  const auto counter = armed();
  const auto w = leaf();
  w.sum().backward({}, std::nullopt, false, std::vector<at::Tensor>{w});
  EXPECT_EQ(counter->ends, 1);
}

// ---- autograd::grad ----

TEST(BackwardEnd, NeverComesForAutogradGrad) {
  const auto counter = armed();
  const auto late = std::make_shared<Counter>();
  std::function<void()> act = [&] { arm(late); };
  const auto x = leaf();
  (void)torch::autograd::grad({AtNode::apply(x, &act).sum()}, {x});
  EXPECT_EQ(counter->ends, 0);
  EXPECT_EQ(late->ends, 0);
  leaf().sum().backward();  // The one for which it was armed.
  EXPECT_EQ(counter->ends, 1);
  EXPECT_EQ(late->ends, 0);
}

TEST(BackwardEnd, ComesOnceWhenANodeCallsAutogradGrad) {
  const auto counter = armed();
  const auto late = std::make_shared<Counter>();
  std::function<void()> innermost = [&] { arm(late); };
  std::function<void()> act = [&] {
    const at::AutoGradMode grad_mode(true);
    const auto x = leaf();
    (void)torch::autograd::grad({AtNode::apply(x, &innermost).sum()}, {x});
    EXPECT_EQ(counter->ends, 0);
  };
  AtNode::apply(leaf(), &act).sum().backward();
  EXPECT_EQ(counter->ends, 1);
  EXPECT_EQ(late->ends, 1);  // It was used within the backward that ended.
}

// ---- Threads ----

TEST(BackwardThreads, DoNotEndEachOthersBackward) {
  install_backward_engine();
  std::latch both(2);
  std::latch first_ended(1);
  const auto one = std::make_shared<Counter>();
  const auto two = std::make_shared<Counter>();
  std::jthread other([&] {
    std::function<void()> act = [&] {
      arm(two);
      both.arrive_and_wait();
      first_ended.wait();
    };
    AtNode::apply(leaf(), &act).sum().backward();
  });
  std::function<void()> act = [&] {
    both.arrive_and_wait();
    arm(one);
  };
  AtNode::apply(leaf(), &act).sum().backward();
  EXPECT_EQ(one->ends, 1);
  EXPECT_EQ(two->ends, 0);
  first_ended.count_down();
  other.join();
  EXPECT_EQ(one->ends, 1);
  EXPECT_EQ(two->ends, 1);
}

// Runs `inside` while another thread is in the middle of a backward.
void while_another_thread_is_in_backward(const std::function<void()>& inside) {
  std::latch started(1);
  std::latch done(1);
  std::jthread other([&] {
    std::function<void()> act = [&] {
      started.count_down();
      done.wait();
    };
    AtNode::apply(leaf(), &act).sum().backward();
  });
  started.wait();
  inside();
  done.count_down();
}

TEST(BackwardThreads, AutogradGradBesideABackwardBelongsToNobody) {
  install_backward_engine();
  const auto counter = std::make_shared<Counter>();
  while_another_thread_is_in_backward([&] {
    std::function<void()> act = [&] { arm(counter); };
    const auto x = leaf();
    (void)torch::autograd::grad({AtNode::apply(x, &act).sum()}, {x});
  });
  EXPECT_EQ(counter->ends, 0);
}

// Below depth 60, nodes run on pool threads, which must find their own backward.
TEST(BackwardThreads, DeepBackwardFindsItsOwnEndBesideANewerOne) {
  install_backward_engine();
  const auto counter = std::make_shared<Counter>();
  int ends_when_mine_ended = -1;
  backward_of_depth(70, [&] {
    while_another_thread_is_in_backward([&] { arm(counter); });
    ends_when_mine_ended = counter->ends;
  });
  EXPECT_EQ(ends_when_mine_ended, 0);
  EXPECT_EQ(counter->ends, 1);
}

TEST(BackwardThreads, ArmingConcernsTheThreadsOwnNextBackward) {
  const auto counter = armed();
  std::jthread([] { leaf().sum().backward(); }).join();
  EXPECT_EQ(counter->ends, 0);
  leaf().sum().backward();
  EXPECT_EQ(counter->ends, 1);
}

TEST(BackwardThreads, BackwardOnAnotherThreadEndsWhatIsArmedInIt) {
  install_backward_engine();
  const auto counter = std::make_shared<Counter>();
  std::function<void()> act = [&] { arm(counter); };
  const auto loss = AtNode::apply(leaf(), &act).sum();
  std::jthread([&] { loss.backward(); }).join();
  EXPECT_EQ(counter->ends, 1);
}

// ---- Writes of gradients ----

TEST(BackwardWrites, AreUnderWayFromTheNoteToTheEndOfTheOutermostBackward) {
  install_backward_engine();
  const auto one = std::make_shared<Counter>();
  const auto two = std::make_shared<Counter>();
  for (const int depth : {1, 2, 70}) {
    one->writes_ends = 0;
    backward_of_depth(depth, [&] {
      EXPECT_FALSE(writes_under_way(one));
      note_writes(one);
      note_writes(one);
      plain_backward();
      EXPECT_TRUE(writes_under_way(one));
      EXPECT_FALSE(writes_under_way(two));
      EXPECT_EQ(one->writes_ends, 0);
    });
    EXPECT_FALSE(writes_under_way(one));
    EXPECT_EQ(one->writes_ends, 1);
    EXPECT_EQ(one->ends, 0);  // Nobody armed it.
  }
}

TEST(BackwardWrites, OfAnotherThreadAreSeenAndThoseOfPlainBackwardsAreNot) {
  install_backward_engine();
  const auto counter = std::make_shared<Counter>();
  while_another_thread_is_in_backward([&] {
    EXPECT_FALSE(writes_under_way(counter));
    std::function<void()> act = [&] { note_writes(counter); };
    AtNode::apply(leaf(), &act).sum().backward();
    EXPECT_FALSE(writes_under_way(counter));
    EXPECT_EQ(counter->writes_ends, 1);
  });
  std::function<void()> act = [&] {
    note_writes(counter);
    std::jthread([&] { EXPECT_TRUE(writes_under_way(counter)); }).join();
  };
  AtNode::apply(leaf(), &act).sum().backward();
  EXPECT_EQ(counter->writes_ends, 2);
}

TEST(BackwardWrites, EndWithAFailureToo) {
  install_backward_engine();
  const auto counter = std::make_shared<Counter>();
  EXPECT_THAT(
      thrown_by([&] {
        backward_of_depth(2, [&] {
          note_writes(counter);
          throw std::runtime_error("disk full");
        });
      }),
      HasSubstr("disk full"));
  EXPECT_FALSE(writes_under_way(counter));
  EXPECT_EQ(counter->writes_ends, 1);
}

TEST(BackwardWrites, AreNoneInAutogradGrad) {
  install_backward_engine();
  const auto counter = std::make_shared<Counter>();
  std::function<void()> act = [&] {
    note_writes(counter);
    EXPECT_FALSE(writes_under_way(counter));
  };
  const auto x = leaf();
  (void)torch::autograd::grad({AtNode::apply(x, &act).sum()}, {x});
  EXPECT_EQ(counter->writes_ends, 0);
}

// ---- Listeners ----

TEST(BackwardListeners, ThatAreGoneAreSkipped) {
  auto gone = armed();
  const auto stays = armed();
  gone.reset();
  leaf().sum().backward();
  EXPECT_EQ(stays->ends, 1);
}

TEST(BackwardListeners, DestroyedDuringTheBackwardAreSkipped) {
  auto counter = armed();
  const auto stays = armed();
  std::function<void()> act = [&] { counter.reset(); };
  AtNode::apply(leaf(), &act).sum().backward();
  EXPECT_EQ(stays->ends, 1);
}

TEST(BackwardListeners, ThatThrowReachTheCallerAfterAllWereTold) {
  const auto first = armed();
  const auto second = armed();
  const auto third = armed();
  first->complaint = "first";
  second->complaint = "second";
  EXPECT_EQ(thrown_by([] { leaf().sum().backward(); }), "first");
  EXPECT_EQ(first->ends + second->ends + third->ends, 3);
  leaf().sum().backward();  // No listener is left over.
  EXPECT_EQ(first->ends + second->ends + third->ends, 3);
}

TEST(BackwardListeners, ThatThrowDoNotHideTheFailureOfTheBackward) {
  const auto counter = armed();
  counter->complaint = "also";
  EXPECT_THAT(
      thrown_by([] {
        backward_of_depth(1, [] { throw std::runtime_error("cause"); });
      }),
      HasSubstr("cause"));
  EXPECT_EQ(counter->ends, 1);
}

class Rearming final : public BackwardListener {
 public:
  void backward_ended(std::exception_ptr) override {
    if (++ends == 1) {
      arm(self);
      plain_backward();  // An outermost one.
    }
  }
  std::weak_ptr<Rearming> self;
  int ends = 0;
};

TEST(BackwardListeners, MayArmAndRunABackwardThemselves) {
  install_backward_engine();
  const auto listener = std::make_shared<Rearming>();
  listener->self = listener;
  arm(listener);
  leaf().sum().backward();
  EXPECT_EQ(listener->ends, 2);
}

// ---- Together with the key ----

TEST(BackwardListeners, ArmedByAVisitedParameterAreTold) {
  install_backward_engine();
  const auto counter = std::make_shared<Counter>();
  FakeUnitCache cache;
  const auto w = at::ones({2, 2}).requires_grad_();
  cache.add_unit({w});
  cache.on_enter = [&](const char*) {
    if (in_backward()) {
      arm(counter);
    }
  };
  const auto x = at::ones({2, 2}).requires_grad_();
  const auto loss = x.mm(w).sum();
  EXPECT_EQ(counter->ends, 0);
  loss.backward();
  EXPECT_EQ(counter->ends, 1);
}

TEST(InBackward, IsFalseOutside) {
  EXPECT_FALSE(in_backward());
  leaf().sum().backward();
  EXPECT_FALSE(in_backward());
}

}  // namespace
}  // namespace sherd::autograd::testing
