// SPDX-License-Identifier: Apache-2.0
#include "exchange/reducer.h"

#include <gmock/gmock.h>
#include "fsdp/slices.h"
#include "fsdp/testing.h"

namespace sherd::fsdp {
namespace {

using test::FakeRank;
using test::run_fake_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Net;
using testing::opened_exchange;
using testing::spec_of;

constexpr int kRanks = 3;

// One rank: four units (the root of a frozen parameter, three layers).
struct World {
  explicit World(FakeRank& self, double scale = 1.0)
      : model(build_units(*net, kRanks, {.units = units::by_name("*")})),
        exchange(opened_exchange(self, spec_of(model))),
        slices(model, *exchange, self.rank, false),
        gradients(model.units, model.parameters, *exchange, slices, scale) {}

  int parameter(const std::string& name) const {
    for (std::size_t p = 0; p < model.parameters.size(); ++p) {
      if (model.parameters[p].name == name) {
        return static_cast<int>(p);
      }
    }
    throw Error("no parameter " + name);
  }
  const at::Tensor& tensor(int p) const {
    return model.parameters[static_cast<std::size_t>(p)].tensor;
  }

  // A gradient of one value everywhere.
  void arrive(const std::string& name, double value) {
    const int p = parameter(name);
    gradients.arrived(p, torch::full_like(tensor(p), value)).throw_if_failed();
  }
  void arrive_all(double value) {
    for (const auto& name : trainable()) {
      arrive(name, value);
    }
  }
  static std::vector<std::string> trainable() {
    return {"third.bias",    "third.weight", "second.bias",
            "second.weight", "first.bias",   "first.weight"};
  }

  // Every slice of the parameter has a gradient of this value; none: undefined.
  void expect(const std::string& name, std::optional<double> value) const {
    for (const auto& slice : slices.all()) {
      if (slice.name != name) {
        continue;
      }
      const auto& grad = slice.tensor.grad();
      ASSERT_EQ(grad.defined(), value.has_value()) << name;
      if (value) {
        EXPECT_EQ(grad.min().item<double>(), *value) << name;
        EXPECT_EQ(grad.max().item<double>(), *value) << name;
      }
    }
  }

  Net net;
  ModelUnits model;
  std::unique_ptr<exchange::Exchange> exchange;
  Slices slices;
  exchange::Reducer gradients;
};

// With random delays, so that ranks drift apart.
void on_each_rank(const test::FakeBody& body) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    run_fake_ranks(
        kRanks, {.seed = seed, .delay_max = std::chrono::microseconds(300)},
        [&](FakeRank& self) {
          body(self);
          self.barrier.arrive_and_wait();
        });
  }
}

TEST(Gradients, AreSummedAndScaled) {
  on_each_rank([](FakeRank& self) {
    World w(self, 0.5);
    w.arrive_all(2.0 * (self.rank + 1));
    w.gradients.finish("", false).status().throw_if_failed();
    for (const auto& name : World::trainable()) {
      w.expect(name, 6);  // (2 + 4 + 6) / 2
    }
    w.expect("offset", std::nullopt);
  });
}

TEST(Gradients, T15AUnitDoesNotWaitForWhatIsFrozenByNow) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    w.tensor(w.parameter("third.bias")).requires_grad_(false);
    for (const auto* name : {"first.weight", "first.bias"}) {
      w.tensor(w.parameter(name)).requires_grad_(false);
    }
    w.gradients.set_order({3, 2, 1});
    w.gradients.expect();
    w.arrive("third.weight", 1);
    EXPECT_EQ(w.exchange->counters().reduces, 1);
    w.arrive("second.bias", 1);
    w.arrive("second.weight", 1);
    EXPECT_EQ(w.exchange->counters().reduces, 3);  // The first layer's, too.
    w.gradients.finish("", false).status().throw_if_failed();
    EXPECT_EQ(w.exchange->counters().reduces, 3);
    w.expect("third.weight", kRanks);
    w.expect("third.bias", std::nullopt);
    w.expect("first.weight", std::nullopt);
  });
}

TEST(Gradients, T15AUnitThatStartsFrozenIsReducedFromItsFirstGradientOn) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    const auto finish = [&] {
      w.gradients.finish("", false).status().throw_if_failed();
      w.gradients.set_order({});
      return w.exchange->counters().reduces;
    };
    w.arrive_all(1);
    EXPECT_EQ(finish(), 3);
    EXPECT_TRUE(w.gradients.dormant(0));
    if (self.rank == 2) {
      w.arrive("offset", 4);
    }
    EXPECT_EQ(finish(), 7);
    EXPECT_FALSE(w.gradients.dormant(0));
    w.expect("offset", 4);
    EXPECT_EQ(finish(), 11);  // Nobody used it:
    EXPECT_TRUE(w.gradients.dormant(0));
    EXPECT_EQ(finish(), 14);  // it is left out again.
    // As after no_sync().
    w.gradients.keep(w.parameter("offset"), torch::ones({5}));
    EXPECT_EQ(finish(), 18);
    w.expect("offset", 4 + kRanks);
  });
}

// As with retain_graph: no forward, and so no new order, between the two.
TEST(Gradients, T15AUnitThatHasThawedIsReducedInABackwardThatFollowsAtOnce) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    const auto finish = [&] {
      w.gradients.finish("", false).status().throw_if_failed();
      return w.exchange->counters().reduces;
    };
    w.gradients.set_order({3, 2, 1});
    w.arrive_all(1);
    w.arrive("offset", 1);
    EXPECT_EQ(finish(), 4);
    w.arrive("third.bias", 1);
    w.arrive("third.weight", 1);
    EXPECT_EQ(w.exchange->counters().reduces, 5);  // Still the first to go.
    if (self.rank == 1) {
      w.arrive("offset", 2);
    }
    EXPECT_EQ(finish(), 8);
    EXPECT_FALSE(w.gradients.dormant(0));
    w.expect("offset", kRanks + 2);
    w.expect("third.bias", 2 * kRanks);
    EXPECT_EQ(finish(), 12);  // Nobody used it:
    EXPECT_TRUE(w.gradients.dormant(0));
    EXPECT_EQ(finish(), 15);  // it is left out again.
  });
}

TEST(Gradients, MayArriveInAnotherOrderOnEachRank) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    auto names = World::trainable();
    std::rotate(names.begin(), names.begin() + 2 * self.rank, names.end());
    w.gradients.set_order({3, 1});
    for (std::size_t i = 0; i < names.size(); ++i) {
      w.arrive(names[i], self.rank);
    }
    w.gradients.finish("", false).status().throw_if_failed();
    for (const auto& name : names) {
      w.expect(name, 3);
    }
    EXPECT_EQ(w.exchange->counters().reduces, 3);
  });
}

TEST(Gradients, WhatNoRankHadStaysUndefinedAndWhatOneHadCountsZeroElsewhere) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    if (self.rank == 1) {
      w.arrive("first.weight", 5);
    }
    w.gradients.finish("", false).status().throw_if_failed();
    w.expect("first.weight", 5);
    w.expect("first.bias", std::nullopt);
    w.expect("third.weight", std::nullopt);
    EXPECT_EQ(w.exchange->counters().reduces, 3);  // Every trainable unit.
  });
}

TEST(Gradients, AnUndefinedOneIsNone) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    w.gradients.arrived(w.parameter("first.bias"), {}).throw_if_failed();
    w.arrive("first.weight", 1);
    w.gradients.finish("", false).status().throw_if_failed();
    w.expect("first.bias", std::nullopt);
    w.expect("first.weight", 3);
  });
}

TEST(Gradients, ArrivingTwiceBeforeTheReductionAddsUp) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    w.arrive("first.weight", 1);
    w.arrive("first.weight", 2);
    w.gradients.finish("", false).status().throw_if_failed();
    w.expect("first.weight", 9);
  });
}

TEST(Gradients, OneThatComesAfterItsReductionGetsAnotherRound) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    w.gradients.set_order({1});
    w.arrive("first.bias", 1);
    w.arrive("first.weight", 1);  // Unit 1 goes.
    if (self.rank == 2) {
      w.arrive("first.weight", 10);
      w.arrive("first.weight", 100);
    }
    w.gradients.finish("", false).status().throw_if_failed();
    w.expect("first.weight", 113);
    w.expect("first.bias", 3);
    w.expect("second.bias", std::nullopt);
    EXPECT_EQ(w.exchange->counters().reduces, 4);
  });
}

TEST(Gradients, AccumulateUntilTheyAreReset) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    for (int i = 1; i <= 3; ++i) {
      w.arrive_all(1);
      w.gradients.finish("", false).status().throw_if_failed();
      w.expect("second.weight", 3 * i);
    }
    w.slices.clear_gradients();
    w.arrive_all(1);
    w.gradients.finish("", false).status().throw_if_failed();
    w.expect("second.weight", 3);
  });
}

TEST(Gradients, WhoHoldsOneThatWasClearedKeepsItsValues) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    std::vector<at::Tensor> held;
    for (const double value : {1.0, 5.0}) {
      w.arrive_all(value);
      w.gradients.finish("", false).status().throw_if_failed();
      for (const auto& slice : w.slices.all()) {
        const auto& grad = slice.tensor.grad();
        EXPECT_FALSE(grad.defined() && grad.is_view());  // detach_() works.
        if (value == 1.0 && grad.defined()) {
          held.push_back(grad);
        }
      }
      for (const auto& name : World::trainable()) {
        w.expect(name, value * kRanks);
      }
      w.slices.clear_gradients();
    }
    for (const auto& grad : held) {
      EXPECT_EQ(grad.min().item<double>(), kRanks);
      EXPECT_EQ(grad.max().item<double>(), kRanks);
    }
  });
}

TEST(Gradients, AnUnusedParameterKeepsWhatItHad) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    w.arrive_all(1);
    w.gradients.finish("", false).status().throw_if_failed();
    w.arrive("first.bias", 1);
    w.gradients.finish("", false).status().throw_if_failed();
    w.expect("first.bias", 6);
    w.expect("first.weight", 3);
    w.expect("third.bias", 3);
  });
}

TEST(Gradients, AnAbortIsToldToAllAndTheNextBackwardIsClean) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    w.gradients.set_order({1});
    w.arrive("first.bias", 50);
    w.arrive("first.weight", 50);
    w.arrive("first.weight", 70);  // Late, and never reduced.
    w.arrive("second.weight", 70);
    const auto status =
        w.gradients.finish(self.rank == 0 ? "the loss is NaN" : "", false)
            .status();
    EXPECT_EQ(status.code(), ErrorCode::kAborted);
    EXPECT_THAT(
        status.message(),
        AllOf(HasSubstr("rank 0"), HasSubstr("the loss is NaN")));
    for (const auto& name : World::trainable()) {
      w.expect(name, std::nullopt);
    }
    EXPECT_FALSE(w.gradients.started());
    w.arrive_all(1);
    w.gradients.finish("", false).status().throw_if_failed();
    for (const auto& name : World::trainable()) {
      w.expect(name, 3);
    }
  });
}

TEST(Gradients, AnAbortDropsWhatWasKeptAlsoOfAUnitThatStartsFrozen) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    const auto keep_all = [&] {
      for (const auto* name : {"offset", "first.bias"}) {
        const int p = w.parameter(name);
        w.gradients.keep(p, torch::ones_like(w.tensor(p)));
      }
    };
    keep_all();
    const auto status =
        w.gradients.finish(self.rank == 0 ? "the loss is NaN" : "", false)
            .status();
    EXPECT_EQ(status.code(), ErrorCode::kAborted);
    for (const auto* name : {"offset", "first.bias"}) {
      EXPECT_FALSE(w.gradients.keeps(w.parameter(name))) << name;
    }
    keep_all();
    w.gradients.finish("", false).status().throw_if_failed();
    w.expect("offset", kRanks);
    w.expect("first.bias", kRanks);
    w.expect("second.bias", std::nullopt);
  });
}

TEST(Gradients, ComeInAnyLayout) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    const int p = w.parameter("first.weight");
    w.gradients.arrived(p, torch::ones({1, 1}).expand_as(w.tensor(p)))
        .throw_if_failed();
    const int q = w.parameter("second.weight");
    w.gradients.arrived(q, torch::full_like(w.tensor(q), 2).to_sparse())
        .throw_if_failed();
    const int t = w.parameter("third.weight");
    w.gradients
        .arrived(t, torch::full_like(w.tensor(t), 3).t().contiguous().t())
        .throw_if_failed();
    w.gradients.finish("", false).status().throw_if_failed();
    w.expect("first.weight", 3);
    w.expect("second.weight", 6);
    w.expect("third.weight", 9);
  });
}

TEST(Gradients, AreTransposedNeitherOnTheWayInNorOut) {
  on_each_rank([](FakeRank& self) {
    World w(self);
    const int p = w.parameter("first.weight");
    const auto full = torch::arange(w.tensor(p).numel(), torch::kFloat)
                          .view(w.tensor(p).sizes());
    w.gradients.arrived(p, full.t().contiguous().t()).throw_if_failed();
    w.gradients.finish("", false).status().throw_if_failed();
    for (const auto& slice : w.slices.all()) {
      if (slice.name != "first.weight") {
        continue;
      }
      const auto& parameter = w.model.parameters[static_cast<std::size_t>(p)];
      const auto part = plan::parameter_slice(
          w.model.flat_of(parameter).layout, parameter.position, self.rank);
      EXPECT_TRUE(torch::equal(
          slice.tensor.grad(),
          full.flatten()
              .slice(0, part.in_parameter.begin, part.in_parameter.end)
              .mul(3)));
    }
  });
}

}  // namespace
}  // namespace sherd::fsdp
