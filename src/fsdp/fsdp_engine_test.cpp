// SPDX-License-Identifier: Apache-2.0
//
// The engine over the fake exchange: ranks are threads, messages are late by
// what a seed says, ranks are lost at every operation.
#include "fsdp/fsdp_engine.h"

#include <gmock/gmock.h>
#include "autograd/gradient_hook.h"
#include "fsdp/testing.h"
#include "support/optional_gradient.h"

namespace sherd::fsdp {
namespace {

using std::chrono::microseconds;
using test::FakeRank;
using test::run_fake_ranks;
using ::testing::AllOf;
using testing::bytes_of;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::Net;
using testing::rows_of;

constexpr int kRanks = 3;
constexpr std::int64_t kRows = 2;  // Per rank.
constexpr double kRate = 0.1;

std::shared_ptr<FsdpEngine> runtime_of(
    FakeRank& self,
    const torch::nn::Module& module,
    const units::Policy& policy,
    Strategy strategy = Strategy::kFullShard) {
  FsdpEngine::Options options;
  options.rank = self.rank;
  options.ranks = kRanks;
  options.strategy = strategy;
  return std::make_shared<FsdpEngine>(
      build_units(module, kRanks, {.units = policy}),
      self.network.exchange(self.rank), options);
}

// One rank's model under sharding, and its optimizer.
struct Trainer {
  explicit Trainer(FakeRank& self, Strategy strategy = Strategy::kFullShard)
      : rank(self.rank),
        engine(runtime_of(self, *net, units::by_name("*"), strategy)) {
    engine->start();
  }

  std::vector<torch::Tensor> slices() const {
    std::vector<torch::Tensor> all;
    const auto named = engine->named_parameters();
    for (const auto& item : named.items) {
      all.push_back(item.slice);
    }
    return all;
  }

  void backward(int step) {
    loss_of(net, rows_of(step, rank * kRows, (rank + 1) * kRows)).backward();
  }
  void update() {
    const torch::NoGradGuard no_grad;
    for (const auto& slice : slices()) {
      if (slice.grad().defined()) {
        slice.sub_(slice.grad(), kRate);
        slice.mutable_grad().reset();
      }
    }
    engine->publish();
  }
  void step(int number) {
    backward(number);
    engine->clip_grad_norm(1.0, {});
    update();
  }

  Net net;
  const int rank;
  std::shared_ptr<FsdpEngine> engine;
};

Net trained_alone(int steps) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), kRate);
  for (int step = 0; step < steps; ++step) {
    loss_of(net, rows_of(step, 0, kRows * kRanks)).backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    sgd.step();
    sgd.zero_grad();
  }
  return net;
}

// Trains and returns every rank's full parameters as bytes, one after another;
// compares them with training alone.
std::string bytes_of_training(std::uint64_t seed, Strategy strategy) {
  constexpr int kSteps = 3;
  const auto reference = trained_alone(kSteps);
  std::vector<std::string> bytes(kRanks);
  run_fake_ranks(
      kRanks, {.seed = seed, .delay_max = microseconds(200)},
      [&](FakeRank& self) {
        Trainer trainer(self, strategy);
        for (int step = 0; step < kSteps; ++step) {
          trainer.step(step);
        }
        trainer.engine->begin_summon({.read_only = true});
        for (const auto& item : reference->named_parameters()) {
          const auto found = trainer.engine->summoned(item.key());
          EXPECT_TRUE(torch::allclose(found, item.value(), 1e-5, 1e-6))
              << item.key();
          bytes[static_cast<std::size_t>(self.rank)] += bytes_of(found);
        }
        trainer.engine->end_summon();
        self.barrier.arrive_and_wait();
      });
  EXPECT_EQ(bytes[1], bytes[0]);
  EXPECT_EQ(bytes[2], bytes[0]);
  return bytes[0];
}

TEST(FsdpEngine, TrainsAsOneProcessWithTheSameBitsWhateverTheDelays) {
  for (const auto strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    const auto first = bytes_of_training(1, strategy);
    for (std::uint64_t seed = 2; seed <= 20 && !HasFailure(); ++seed) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed);
      EXPECT_EQ(bytes_of_training(seed, strategy), first);
    }
  }
}

// What ended a rank; empty: nothing did.
std::string end_of(const std::function<void()>& program) {
  try {
    program();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(FsdpEngine, AnUndefinedGradientChangesNone) {
  run_fake_ranks(kRanks, exchange::FakeOptions{}, [](FakeRank& self) {
    torch::nn::Module module("m");
    const auto weight = module.register_parameter("weight", torch::ones({7}));
    const auto engine = runtime_of(self, module, units::none());
    engine->start();
    const auto slice = engine->named_parameters().items[0].slice;
    test::sum_with(weight, test::Gradient::kOnes).backward();
    test::sum_with(weight, test::Gradient::kUndefined).backward();
    EXPECT_TRUE(torch::equal(slice.grad(), torch::ones(slice.sizes())));
    self.barrier.arrive_and_wait();
  });
}

TEST(FsdpEngine, ARankLostAtAnyOperationEndsEveryRankWithAnErrorThatNamesIt) {
  constexpr int kLost = 1;
  const auto program = [](FakeRank& self, std::int64_t* before_last) {
    Trainer trainer(self);
    trainer.step(0);
    trainer.step(1);
    if (before_last != nullptr && self.rank == kLost) {
      *before_last = self.network.operations(kLost);
    }
    trainer.step(2);  // Needs everybody.
  };
  std::int64_t operations = 0;
  run_fake_ranks(kRanks, exchange::FakeOptions{}, [&](FakeRank& self) {
    program(self, &operations);
    self.barrier.arrive_and_wait();
  });
  ASSERT_GT(operations, 100);
  for (std::int64_t at = 0; at < operations && !HasFailure(); ++at) {
    SCOPED_TRACE(::testing::Message() << "lost at operation " << at);
    exchange::FakeOptions fake;
    fake.seed = static_cast<std::uint64_t>(at);
    fake.delay_max = microseconds(at % 3 * 50);
    fake.lost_rank = kLost;
    fake.lost_at = at;
    run_fake_ranks(kRanks, fake, [&](FakeRank& self) {
      const auto error = end_of([&] { program(self, nullptr); });
      EXPECT_THAT(error, HasSubstr("rank 1")) << "on rank " << self.rank;
    });
  }
}

TEST(FsdpEngine, AfterALossEveryUseFailsWithTheFirstReason) {
  run_fake_ranks(kRanks, exchange::FakeOptions{}, [](FakeRank& self) {
    Trainer trainer(self);
    trainer.step(0);
    if (self.rank == 2) {
      self.network.lose(2);
    }
    const auto first = end_of([&] { trainer.step(1); });
    EXPECT_THAT(first, HasSubstr("rank 2 was lost"));
    for (const auto& call : std::vector<std::function<void()>>{
             [&] { trainer.backward(1); }, [&] { trainer.engine->publish(); },
             [&] { trainer.engine->clip_grad_norm(1.0, {}); },
             [&] { trainer.engine->begin_summon({}); },
             [&] { trainer.engine->unshard(); }}) {
      EXPECT_THAT(end_of(call), HasSubstr("rank 2 was lost"));
    }
    trainer.engine->close();
  });
}

// Throws in the middle of a backward.
torch::Tensor failing(const torch::Tensor& loss, const std::string& what) {
  auto doubled = loss * 2;
  doubled.register_hook([what](const torch::Tensor& gradient) -> torch::Tensor {
    if (gradient.defined()) {
      throw std::runtime_error(what);
    }
    return gradient;
  });
  return doubled * 0.5;
}

TEST(FsdpEngine, AFailedBackwardIsToldToAllEvenWithoutAMessage) {
  for (const std::string what :
       {"the data is bad", "", "\nonly a second line"}) {
    run_fake_ranks(kRanks, exchange::FakeOptions{}, [&](FakeRank& self) {
      Trainer trainer(self);
      trainer.step(0);
      auto loss = loss_of(
          trainer.net, rows_of(1, self.rank * kRows, (self.rank + 1) * kRows));
      if (self.rank == 1) {
        loss = failing(loss, what);
        EXPECT_THROW(loss.backward(), std::exception);
      } else {
        EXPECT_THAT(
            end_of([&] { loss.backward(); }),
            AllOf(
                HasSubstr("rank 1 gave this backward up"),
                HasSubstr(what.substr(0, what.find('\n')))));
      }
      for (const auto& slice : trainer.slices()) {
        EXPECT_FALSE(slice.grad().defined());
      }
      trainer.step(1);  // All go on.
      self.barrier.arrive_and_wait();
    });
  }
}

TEST(FsdpEngine, HooksOfABackwardThatFailsAreNotCalledInTheNext) {
  run_fake_ranks(kRanks, exchange::FakeOptions{}, [](FakeRank& self) {
    Trainer trainer(self, Strategy::kNoShard);
    int calls = 0;
    for (const auto& slice : trainer.slices()) {
      autograd::set_gradient_hook(slice, [&](const at::Tensor&) { ++calls; });
    }
    const auto weight = trainer.net->first->weight;
    weight.set_requires_grad(self.rank != 1);
    EXPECT_THAT(
        end_of([&] { trainer.backward(0); }),
        HasSubstr("ranks disagree on requires_grad"));
    weight.set_requires_grad(true);
    trainer.engine->begin_no_sync(NoSyncAxis::kBoth);
    trainer.backward(1);
    trainer.engine->end_no_sync(NoSyncAxis::kBoth);
    EXPECT_EQ(calls, 0);
    trainer.backward(2);
    EXPECT_GT(calls, 0);
    self.barrier.arrive_and_wait();
  });
}

TEST(FsdpEngine, RanksThatGoDifferentWaysInForwardAllFailNamingUnits) {
  run_fake_ranks(kRanks, exchange::FakeOptions{}, [](FakeRank& self) {
    Trainer trainer(self);
    const auto error = end_of([&] {
      auto x = rows_of(0, 0, 2);
      if (self.rank != 1) {
        x = trainer.net->first(x);
      } else {
        x = trainer.net->second(torch::ones({2, 15}));
      }
    });
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr("ranks went different ways"), HasSubstr("unit first"),
            HasSubstr("unit second"), HasSubstr("rank 1")));
  });
}

TEST(FsdpEngine, RanksWithDifferentModelsAllFailToBegin) {
  run_fake_ranks(kRanks, exchange::FakeOptions{}, [](FakeRank& self) {
    const auto error = end_of([&] {
      const torch::nn::Linear net(4, self.rank == 2 ? 5 : 6);
      runtime_of(self, *net, units::none());
    });
    EXPECT_THAT(
        error,
        AllOf(HasSubstr("[6, 4]"), HasSubstr("[5, 4]"), HasSubstr("rank 2")));
  });
}

// A unit without a byte beside one with some.
struct HollowImpl : torch::nn::Module {
  torch::nn::Linear full{nullptr};
  std::shared_ptr<torch::nn::Module> hollow =
      std::make_shared<torch::nn::Module>("hollow");
  torch::Tensor nothing;
  HollowImpl() {
    full = register_module("full", torch::nn::Linear(4, 8));
    register_module("hollow", hollow);
    nothing = hollow->register_parameter("nothing", torch::empty({0}));
  }
};

TEST(FsdpEngine, AUnitWithoutBytesTrainsAlongInAnyBudget) {
  for (const auto strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    run_fake_ranks(kRanks, exchange::FakeOptions{}, [&](FakeRank& self) {
      HollowImpl net;
      const auto engine = runtime_of(self, net, units::by_name("*"), strategy);
      engine->start();
      for (int step = 0; step < 2; ++step) {
        auto loss = net.full(torch::ones({2, 4})).sum() + net.nothing.sum();
        loss.backward();
        engine->publish();
      }
      EXPECT_EQ(engine->report().backwards, 2);
      self.barrier.arrive_and_wait();
    });
  }
}

}  // namespace
}  // namespace sherd::fsdp
