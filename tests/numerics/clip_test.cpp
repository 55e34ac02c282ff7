// SPDX-License-Identifier: Apache-2.0
//
// clip_grad_norm over shards is torch::nn::utils::clip_grad_norm_ over the
// whole model.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <cmath>
#include <limits>

namespace sherd::test {
namespace {

class Clip : public testing::TestWithParam<int> {};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A sharded model and its reference, each with the gradients of one batch.
struct Clipped {
  IntegerMlp reference, model;
  std::vector<NamedLeaf> leaves;
  FullyShardOptions options;
  std::optional<Slicing> slicing;
  std::optional<FullyShardedDataParallel> fsdp;

  Clipped(const World& world, Strategy strategy)
      : leaves(unique_parameters(*reference)) {
    options.units = units::by_name("*");
    options.strategy = strategy;
    slicing.emplace(*reference, world, options);
    fsdp.emplace(fully_shard(*model, world, options));
  }
  void backward(const World& world) {
    reference_backward<IntegerMlp>(reference, leaves, integer_loss, 0, world);
    integer_loss(model, 0, world.rank()).backward();
  }
};

TEST_P(Clip, T42EveryNormEqualsLibTorchs) {
  const auto report = run_ranks(GetParam(), [](World world, Rank& self) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      for (const double p : {1.0, 2.0, 3.0, kInfinity}) {
        for (const double max_norm : {0.75, 1e9}) {
          Clipped pair(world, strategy);
          pair.backward(world);
          const double expected = torch::nn::utils::clip_grad_norm_(
              tensors_of(pair.leaves), max_norm, p);
          const double found = pair.fsdp->clip_grad_norm(max_norm, {.p = p});
          EXPECT_NEAR(found, expected, 1e-5 * expected) << "p = " << p;
          expect_gradients(*pair.slicing, pair.leaves, *pair.fsdp, 1e-5);
          self.report(std::to_string(found) + "\n");
        }
      }
    }
  });
  expect_all_ok(report);
  for (const auto& rank : report.ranks) {
    EXPECT_EQ(rank.result, report[0].result);
  }
}

TEST_P(Clip, T42WithoutGradientsTheNormIsZero) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Clipped pair(world, Strategy::kFullShard);
    EXPECT_EQ(pair.fsdp->clip_grad_norm(1.0), 0.0);
    EXPECT_EQ(pair.fsdp->clip_grad_norm(1.0, {.p = kInfinity}), 0.0);
  }));
}

TEST_P(Clip, T42ANumberThatIsNotFiniteOnOneRankReachesAll) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const double p : {1.0, 2.0, kInfinity}) {
      for (const double bad :
           {kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
        Clipped pair(world, Strategy::kFullShard);
        pair.backward(world);
        // The first slice this rank owns, on the last rank only.
        if (world.rank() == world.size() - 1) {
          pair.fsdp->parameters().front().mutable_grad().fill_(bad);
        }
        const auto error = error_of([&] {
          pair.fsdp->clip_grad_norm(1.0, {.p = p, .error_if_nonfinite = true});
        });
        EXPECT_NE(error.find("norm of all gradients is"), std::string::npos)
            << error;
        // A refusal changes nothing: the other slices are as they were.
        const auto last = pair.fsdp->parameters().back().grad();
        if (world.size() > 1) {
          EXPECT_TRUE(torch::isfinite(last).all().item<bool>());
        }
        const double norm = pair.fsdp->clip_grad_norm(1.0, {.p = p});
        EXPECT_EQ(std::isnan(norm), std::isnan(bad)) << "p = " << p;
        EXPECT_FALSE(std::isfinite(norm));
        // As in LibTorch: zeros after infinity, NaN after NaN.
        if (pair.fsdp->parameters().size() > 1) {
          const auto first = last.flatten()[0].item<double>();
          EXPECT_EQ(std::isnan(first), std::isnan(bad));
        }
      }
    }
  }));
}

TEST_P(Clip, T42BadOptionsAreRefusedOnEveryRank) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Clipped pair(world, Strategy::kFullShard);
    pair.backward(world);
    const auto bad_p =
        error_of([&] { pair.fsdp->clip_grad_norm(1.0, {.p = 0.0}); });
    EXPECT_NE(bad_p.find("p > 0"), std::string::npos);
    const auto bad_norm = error_of([&] { pair.fsdp->clip_grad_norm(-1.0); });
    EXPECT_NE(bad_norm.find("max_norm"), std::string::npos);
    EXPECT_GT(pair.fsdp->clip_grad_norm(1e9), 0.0);  // Still works.
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Clip,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
