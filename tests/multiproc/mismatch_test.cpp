// SPDX-License-Identifier: Apache-2.0
//
// Ranks that go different ways, or that hold different models: an error on
// every rank that names what differs and who, never a hang (T39).
#include "base/clock.h"
#include "ft/shared_number.h"
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"
#include "world/world_impl.h"

#include <poll.h>
#include <chrono>
#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// Survivors of a mismatch have nothing to close in order.
RankOptions broken(std::chrono::milliseconds deadline = 20s) {
  RankOptions options;
  options.close_world = false;
  options.world.deadline = deadline;
  return options;
}

Chain chain() { return Chain(4, 6); }

torch::Tensor visit(Chain& model, const std::vector<std::size_t>& order) {
  auto x = integer_rows(0, 0, 6);
  for (const auto i : order) {
    x = model->layer(i).forward(x).clamp(-2, 2);
  }
  return x.sum();
}

// As zero_grad() does after the step of an optimizer.
void drop_gradients(const FullyShardedDataParallel& fsdp) {
  for (const auto& slice : fsdp.parameters()) {
    slice.mutable_grad().reset();
  }
}

// A planned step goes on where ranks leave out different units of it.
enum class Step { kFirst, kPlanned };

class Mismatch : public testing::TestWithParam<int> {
 protected:
  // The last rank does something else; every rank's error must match, at once.
  void expect_mismatch(
      Step step,
      const std::function<void(Chain&, FullyShardedDataParallel&)>& most,
      const std::function<void(Chain&, FullyShardedDataParallel&)>& last,
      const std::function<testing::Matcher<const std::string&>(int)>& matcher) {
    const int ranks = GetParam();
    expect_all_ok(run_ranks(
        ranks,
        [&](World world) {
          auto model = chain();
          auto fsdp = fully_shard(*model, world, over_messages());
          if (step == Step::kPlanned) {
            visit(model, {0, 1, 2, 3}).backward();
            drop_gradients(fsdp);
          }
          const bool other = world.rank() == ranks - 1;
          const auto began = SteadyClock().now();
          const auto error =
              error_of([&] { (other ? last : most)(model, fsdp); });
          EXPECT_LT(SteadyClock().now() - began, 5s);
          EXPECT_THAT(error, matcher(ranks - 1));
          // The first error stays.
          EXPECT_EQ(error_of([&] { visit(model, {0, 1}); }), error);
        },
        broken()));
  }
};

std::string text(int rank) { return "rank " + std::to_string(rank); }

TEST_P(Mismatch, T39AnotherOrderNamesBothUnitsAndRanks) {
  expect_mismatch(
      Step::kFirst, [](Chain& model, auto&) { visit(model, {0, 1, 2}); },
      [](Chain& model, auto&) { visit(model, {1, 0, 2}); },
      [](int last) {
        return AllOf(
            HasSubstr("rank 0 wants to unshard unit layers.0 in forward"),
            HasSubstr(
                text(last) + " wants to unshard unit layers.1 in forward"));
      });
}

TEST_P(Mismatch, T39AnotherUnitLaterInTheForward) {
  expect_mismatch(
      Step::kFirst, [](Chain& model, auto&) { visit(model, {0, 1, 2}); },
      [](Chain& model, auto&) { visit(model, {0, 1, 3}); },
      [](int last) {
        return AllOf(
            HasSubstr("rank 0 wants to unshard unit layers.2"),
            HasSubstr(text(last) + " wants to unshard unit layers.3"));
      });
}

TEST_P(Mismatch, T39OneRankVisitsMoreUnitsBeforeItsBackward) {
  expect_mismatch(
      Step::kFirst,
      [](Chain& model, auto&) { visit(model, {0, 1}).backward(); },
      [](Chain& model, auto&) { visit(model, {0, 1, 2}).backward(); },
      [](int last) {
        return AllOf(
            HasSubstr("rank 0 wants to "), HasSubstr("backward"),
            HasSubstr(
                text(last) + " wants to unshard unit layers.2 in forward"));
      });
}

TEST_P(Mismatch, T39MoreEvaluationOnOneRankWhileTheOthersTrainOn) {
  const auto evaluate = [](Chain& model, FullyShardedDataParallel& fsdp) {
    fsdp.publish();
    const torch::NoGradGuard no_grad;
    visit(model, {3, 2});
  };
  expect_mismatch(
      Step::kPlanned,
      [](Chain& model, FullyShardedDataParallel& fsdp) {
        fsdp.publish();
        visit(model, {0, 1}).backward();
      },
      evaluate,
      [](int last) {
        return AllOf(
            HasSubstr("rank 0 wants to unshard unit layers.0"),
            HasSubstr(text(last) + " wants to unshard unit layers.3"));
      });
}

TEST_P(Mismatch, AnEvaluationOnOneRankTellsTheRule) {
  const auto train = [](Chain& model, FullyShardedDataParallel& fsdp) {
    for (int step = 0; step < 2; ++step) {
      visit(model, {0, 1, 2, 3}).backward();
      drop_gradients(fsdp);
      fsdp.publish();
    }
  };
  expect_mismatch(
      Step::kPlanned,
      [&](Chain& model, FullyShardedDataParallel& fsdp) {
        fsdp.publish();
        train(model, fsdp);
      },
      [&](Chain& model, FullyShardedDataParallel& fsdp) {
        fsdp.publish();
        {
          const torch::NoGradGuard no_grad;
          visit(model, {0, 1, 2, 3});
        }
        train(model, fsdp);
      },
      [](int) {
        return AllOf(
            HasSubstr("every rank makes every forward, an evaluation too"),
            HasSubstr("summon_full_parameters({.read_only = true})"),
            Not(HasSubstr("generation")));
      });
}

// The others do something else, and nothing but the deadline ends the wait.
TEST_P(Mismatch, AnEvaluationThatNobodyAnswersTellsTheRuleAtTheDeadline) {
  const int ranks = GetParam();
  expect_all_ok(run_ranks(
      ranks,
      [&](World world) {
        auto model = chain();
        auto fsdp = fully_shard(*model, world, over_messages());
        if (world.rank() < ranks - 1) {
          EXPECT_TRUE(world.impl()->watch->wait_lost(20s));
          return;
        }
        const torch::NoGradGuard no_grad;
        EXPECT_THAT(
            error_of([&] { visit(model, {0, 1}); }),
            HasSubstr("every rank makes every forward, an evaluation too"));
      },
      broken(3s)));
}

// The ranks of the first host answer each other, so that none of them evaluates alone.
TEST(MismatchBetweenHosts, ASilentHostIsNoLoneEvaluation) {
  auto options = broken(1s);
  options.hosts = {2, 1};
  expect_all_ok(run_ranks(
      3,
      [&](World world) {
        auto model = chain();
        auto fsdp = fully_shard(*model, world, over_messages());
        if (world.rank() == 2) {
          EXPECT_TRUE(world.impl()->watch->wait_lost(20s));
          return;
        }
        const torch::NoGradGuard no_grad;
        EXPECT_THAT(
            error_of([&] { visit(model, {0, 1}); }),
            AllOf(
                HasSubstr("rank 2 is on "),
                Not(HasSubstr("every rank makes every forward"))));
      },
      options));
}

TEST_P(Mismatch, T39OneRankClipsWhileTheOthersGoForward) {
  expect_mismatch(
      Step::kPlanned, [](Chain& model, auto&) { visit(model, {0, 1}); },
      [](Chain&, FullyShardedDataParallel& fsdp) { fsdp.clip_grad_norm(1.0); },
      [](int last) {
        return AllOf(
            HasSubstr("rank 0 wants to begin a step"),
            HasSubstr(text(last) + " wants to all-reduce"));
      });
}

TEST_P(Mismatch, T39OneRankGoesForwardAgainInsteadOfBackward) {
  expect_mismatch(
      Step::kFirst,
      [](Chain& model, auto&) { visit(model, {0, 1}).backward(); },
      [](Chain& model, auto&) {
        visit(model, {0, 1});
        visit(model, {2, 3}).backward();
      },
      [](int last) {
        return AllOf(
            HasSubstr("rank 0 wants to "),
            HasSubstr(text(last) + " wants to unshard unit layers.2"));
      });
}

// From the second step on each rank leaves out another unit.
TEST_P(Mismatch, T39PlannedUnitsMayBeLeftOutWhereOnlyGradientsDiffer) {
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    RankParity options;
    options.shard = over_messages();
    options.steps = 4;
    const auto report = expect_rank_parity<Chain>(
        world, chain,
        [](Chain& model, int batch, int rank) {
          std::vector<std::size_t> order{0, 1, 2, 3};
          if (batch > 0) {
            order.erase(order.begin() + (rank + batch) % 4);
          }
          return visit(model, order);
        },
        options);
    EXPECT_EQ(report.plan.steps_planned, 3);
    EXPECT_EQ(report.plan.deviations, 0);
  }));
}

// All units are whole, so that another order is no other gather. The rank that
// took it has a plan of its own afterwards; ranks forget theirs and agree anew.
TEST_P(Mismatch, T39RanksFollowAPlanAgainAfterOneWentAnotherWay) {
  const int last = GetParam() - 1;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    RankParity options;
    options.shard = over_messages();
    options.steps = 6;
    options.shard.strategy = Strategy::kShardGradOp;
    const auto report = expect_rank_parity<Chain>(
        world, chain,
        [&](Chain& model, int batch, int rank) {
          const bool other = batch == 2 && rank == last;
          return visit(
              model,
              other ? std::vector<std::size_t>{0, 2, 1, 3}
                    : std::vector<std::size_t>{0, 1, 2, 3});
        },
        options);
    EXPECT_EQ(report.plan.deviations, world.rank() == last ? 1 : 0);
    // Not the first, nor the one after that in which they differ.
    EXPECT_GE(report.plan.steps_planned, 3);
  }));
}

TEST_P(Mismatch, T39VisitsOfOneRankAloneEndAtTheDeadline) {
  const int ranks = GetParam();
  ft::test::SharedNumber last_is_over(0);
  expect_all_ok(run_ranks(
      ranks,
      [&](World world) {
        auto model = chain();
        auto fsdp = fully_shard(*model, world, over_messages());
        visit(model, {0, 1}).backward();
        fsdp.publish();
        world.barrier();
        const auto began = SteadyClock().now();
        const auto error = error_of([&] {
          if (world.rank() == ranks - 1) {
            const torch::NoGradGuard no_grad;
            visit(model, {2});
          } else {
            world.barrier();
          }
        });
        if (world.rank() == ranks - 1) {
          EXPECT_THAT(
              error,
              AllOf(
                  HasSubstr("rank 0"), HasSubstr("begin a step"),
                  HasSubstr("every rank makes every forward"),
                  HasSubstr("the last unit used here is layers.2")));
        } else {
          EXPECT_THAT(
              error,
              AllOf(HasSubstr(text(ranks - 1)), HasSubstr("World::barrier")));
        }
        EXPECT_LT(SteadyClock().now() - began, 15s);
        // The last rank is over first: an earlier death would end its wait, too.
        if (world.rank() == ranks - 1) {
          last_is_over.set(1);
        }
        while (last_is_over.get() == 0 && SteadyClock().now() - began < 40s) {
          ::poll(nullptr, 0, 1);
        }
      },
      broken(3s)));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Mismatch,
    testing::Values(2, 3, 4),
    testing::PrintToStringParamName());

// ---- ranks that hold different models ----

class Disagreement : public testing::TestWithParam<int> {
 protected:
  void expect_disagreement(
      const std::function<void(Chain&, FullyShardOptions&)>& differ,
      const std::string& here,
      const std::string& there) {
    const int ranks = GetParam();
    expect_all_ok(run_ranks(
        ranks,
        [&](World world) {
          Chain model = chain();
          auto options = over_messages();
          if (world.rank() == ranks - 1) {
            differ(model, options);
          }
          const auto began = SteadyClock().now();
          const auto error =
              error_of([&] { (void)fully_shard(*model, world, options); });
          EXPECT_LT(SteadyClock().now() - began, 5s);
          EXPECT_THAT(error, HasSubstr("ranks disagree on the model"));
          EXPECT_THAT(error, HasSubstr("rank 0 has " + here));
          EXPECT_THAT(error, HasSubstr(text(ranks - 1) + " has " + there));
          // The model is as it was.
          EXPECT_THAT(error_of([&] { visit(model, {0}); }), "no error");
        },
        broken()));
  }
};

TEST_P(Disagreement, AShapeIsNamed) {
  expect_disagreement(
      [](Chain& model, FullyShardOptions&) {
        model->replace_module("head", torch::nn::Linear(6, 2));
      },
      "parameter head.weight [1, 6]", "parameter head.weight [2, 6]");
}

TEST_P(Disagreement, AParameterThatOnlyOneRankHasIsNamed) {
  expect_disagreement(
      [](Chain& model, FullyShardOptions&) {
        model->register_module("tail", torch::nn::Linear(2, 2));
      },
      "10 parameters and no more", "parameter tail.weight");
}

TEST_P(Disagreement, AFrozenFlagIsNamed) {
  expect_disagreement(
      [](Chain& model, FullyShardOptions&) {
        model->layer(2).bias.set_requires_grad(false);
      },
      "parameter layers.2.bias [6] Float of unit layers.2",
      "parameter layers.2.bias [6] Float frozen of unit layers.2");
}

TEST_P(Disagreement, ADtypeIsNamed) {
  expect_disagreement(
      [](Chain& model, FullyShardOptions&) {
        model->layer(1).to(torch::kDouble);
      },
      "parameter layers.1.weight [6, 6] Float",
      "parameter layers.1.weight [6, 6] Double");
}

TEST_P(Disagreement, AnotherNumberOfLayersIsNamed) {
  expect_disagreement(
      [](Chain& model, FullyShardOptions&) { model = Chain(5, 6); },
      "parameter head.weight", "parameter layers.4.weight");
}

TEST_P(Disagreement, APolicyIsNamed) {
  expect_disagreement(
      [](Chain&, FullyShardOptions& options) { options.units = units::none(); },
      "parameter layers.0.weight [6, 6] Float of unit layers.0",
      "parameter layers.0.weight [6, 6] Float of unit (root)");
}

TEST_P(Disagreement, AStrategyIsNamed) {
  expect_disagreement(
      [](Chain&, FullyShardOptions& options) {
        options.strategy = Strategy::kNoShard;
      },
      "placement shard", "placement replicate");
}

TEST_P(Disagreement, ABudgetIsNamed) {
  expect_disagreement(
      [](Chain&, FullyShardOptions& options) { options.budget_bytes = 777; },
      "placement shard, budget ", "placement shard, budget 777 bytes");
}

TEST_P(Disagreement, AGranularityIsNamed) {
  expect_disagreement(
      [](Chain&, FullyShardOptions& options) {
        options.granularity = [](const std::string&, const at::Tensor& t) {
          return t.numel();
        };
      },
      "unit layers.0 cut at [0, ", "unit layers.0 cut at [0, ");
}

// ---- values ----

torch::nn::Sequential two_layers(std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(
      torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
      torch::nn::Linear(4, 2));
}

std::string sharding_error(
    torch::nn::Sequential& model,
    const Mesh& mesh,
    const FullyShardOptions& options = {}) {
  return error_of([&] { fully_shard(*model, mesh, options).close(); });
}

TEST_P(Disagreement, InitialValuesAreNamedBeforeAnythingChanges) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const int last = world.size() - 1;
    const auto seeded = [&](int rank, std::uint64_t seed) {
      return two_layers(world.rank() == rank ? seed : 0);
    };
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      for (const int replicate : {1, world.size()}) {
        const Mesh mesh(world, {.replicate = replicate});
        auto model = two_layers(static_cast<std::uint64_t>(world.rank()));
        const auto bits = model->parameters()[0].detach().clone();
        EXPECT_THAT(
            sharding_error(model, mesh, {.strategy = strategy}),
            AllOf(
                HasSubstr("different initial values: parameter 0.weight: rank "
                          "0 holds one value, rank"),
                HasSubstr("4 of 9 tensors differ"),
                HasSubstr("torch::manual_seed()"),
                HasSubstr("options.sync_module_states")));
        EXPECT_TRUE(torch::equal(model->parameters()[0].detach(), bits));
        model->forward(torch::ones({2, 3})).sum().backward();  // Plain still.
      }
    }
    auto model = two_layers(0);
    if (world.rank() == last) {
      const torch::NoGradGuard no_grad;
      model->named_parameters()["2.bias"][1] += 1e-6;
    }
    EXPECT_THAT(
        sharding_error(model, Mesh(world)),
        AllOf(
            HasSubstr("parameter 2.bias: rank"),
            HasSubstr(text(last) + " another (1 of 9")));
    model = two_layers(0);
    if (world.rank() == last) {
      model->named_buffers()["1.running_mean"][0] = 1;
    }
    EXPECT_THAT(
        sharding_error(model, Mesh(world)),
        HasSubstr("buffer 1.running_mean: rank"));
    // Rank 0's are given to all; or the user knows better.
    model = seeded(last, 7);
    EXPECT_EQ(
        sharding_error(model, Mesh(world), {.sync_module_states = true}),
        "no error");
    model = seeded(last, 7);
    EXPECT_EQ(
        sharding_error(model, Mesh(world), {.compare_initial_values = false}),
        "no error");
    model = two_layers(0);
    EXPECT_THAT(
        sharding_error(
            model, Mesh(world),
            {.compare_initial_values = world.rank() != last}),
        HasSubstr("disagree on options.compare_initial_values"));
    model = two_layers(0);
    EXPECT_EQ(sharding_error(model, Mesh(world)), "no error");
  }));
}

TEST_P(Disagreement, WhetherRankZeroGivesValuesIsNamedBeforeAnythingChanges) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const int last = world.size() - 1;
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      for (const int other : {0, last}) {
        auto model = two_layers(0);
        EXPECT_THAT(
            sharding_error(
                model, Mesh(world),
                {.strategy = strategy,
                 .sync_module_states = world.rank() == other}),
            AllOf(
                HasSubstr("[fsdp] ranks differ in options.hook"),
                HasSubstr("sync_module_states on"),
                HasSubstr("sync_module_states off")));
        EXPECT_EQ(
            sharding_error(
                model, Mesh(world),
                {.strategy = strategy, .sync_module_states = true}),
            "no error");
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Disagreement,
    testing::Values(2, 3),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
