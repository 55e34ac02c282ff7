// SPDX-License-Identifier: Apache-2.0
//
// Gradients that ranks share: they lie in memory once, every rank reads all of
// them, each matrix of Muon's has one owner; and what ranks are told that cannot
// share.
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <map>
#include <gmock/gmock.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/muon.h>
#include "base/check.h"

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

FullyShardOptions sharing() {
  FullyShardOptions options;
  options.exchange = ExchangeKind::kSharedMemory;
  options.share_gradients = true;
  return options;
}

torch::Tensor loss_of(Chain& model, const World& world) {
  return model->forward(integer_rows(0, world.rank(), 6)).sum();
}

void meet(const NamedParameters& parameters) {
  parameters.all_reduce_max(torch::zeros({1}, torch::kDouble));
}

NamedParameters weights(const FullyShardedDataParallel& fsdp) {
  return split(fsdp.named_parameters(), {"*.weight"}).matching;
}

class SharedMemoryGradients : public testing::TestWithParam<int> {};

TEST_P(SharedMemoryGradients, ArePartsOfOneThatEveryRankSees) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(4, 6);
    auto fsdp = fully_shard(*model, world, sharing());
    loss_of(model, world).backward();
    const auto parameters = fsdp.named_parameters();
    std::map<std::string, WholeParameter> whole;
    for (const auto& item : parameters.whole.items) {
      whole[item.name] = item;
    }
    EXPECT_EQ(whole.size(), 10U);
    EXPECT_EQ(parameters.whole.rank, world.rank());
    EXPECT_EQ(parameters.whole.ranks, world.size());
    for (const auto& [name, slice] : parameters.items) {
      const auto& all = whole.at(name);
      const auto part =
          all.gradient.view({-1}).narrow(0, all.slice_begin, slice.numel());
      EXPECT_EQ(slice.grad().const_data_ptr(), part.const_data_ptr()) << name;
      slice.grad().fill_(world.rank() + 1);
    }
    meet(parameters);
    // Each element is its owner's number: no rank is left out, none is twice.
    std::vector<double> elements(static_cast<std::size_t>(world.size()), 0);
    for (const auto& [name, all] : whole) {
      for (int rank = 0; rank < world.size(); ++rank) {
        elements[static_cast<std::size_t>(rank)] +=
            all.gradient.eq(rank + 1).sum().item<double>();
      }
    }
    double mine = 0;
    for (const auto& [name, slice] : parameters.items) {
      mine += static_cast<double>(slice.numel());
    }
    const auto owned = world.all_gather({mine});
    for (int rank = 0; rank < world.size(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      EXPECT_EQ(elements[r], owned[r][0]) << "rank " << rank;
    }
    // The private ones are gone: what a rank has is what it had.
    Chain other(4, 6);
    auto options = sharing();
    options.share_gradients = false;
    auto without = fully_shard(*other, world, options);
    EXPECT_EQ(fsdp.report().shard_bytes, without.report().shard_bytes);
  }));
}

TEST_P(SharedMemoryGradients, EachMatrixHasOneOwnerWhoKeepsItsMomentum) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(4, 6);
    auto fsdp = fully_shard(*model, world, sharing());
    Muon muon(weights(fsdp));
    loss_of(model, world).backward();
    for (const auto& slice : fsdp.parameters()) {
      slice.grad().fill_(1);  // Integers may cancel.
    }
    muon.step();
    double bytes = 0;
    for (const auto& name : muon.names()) {
      bytes += static_cast<double>(muon.momentum_buffer(name).nbytes());
      EXPECT_GT(muon.momentum_buffer(name).norm().item<double>(), 0) << name;
    }
    double once = 0;
    double sum = 0;
    for (const auto& item : weights(fsdp).whole.items) {
      once += static_cast<double>(item.gradient.nbytes());
    }
    for (const auto& theirs : world.all_gather({bytes})) {
      sum += theirs[0];
    }
    EXPECT_EQ(sum, once);
    // The dearest go first, in turns.
    const auto foreign = str("layers.", (world.rank() + 1) % 2, ".weight");
    EXPECT_THAT(
        error_of([&] { (void)muon.momentum_buffer(foreign); }),
        AllOf(
            HasSubstr(foreign),
            HasSubstr(str("which rank ", (world.rank() + 1) % 2))));
  }));
}

TEST_P(SharedMemoryGradients, AGradientThatOnlySomeHaveIsNamedAndNothingMoves) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    torch::nn::Linear model(torch::nn::LinearOptions(6, 6).bias(false));
    {
      const torch::NoGradGuard no_grad;
      model->weight.fill_(1);
    }
    auto fsdp = fully_shard(*model, world, sharing());
    Muon muon(fsdp.named_parameters());
    const auto step = [&] {
      model->forward(integer_rows(0, world.rank(), 6)).sum().backward();
      if (world.rank() == 1) {
        for (auto& slice : fsdp.parameters()) {
          slice.mutable_grad().reset();
        }
      }
      muon.step();
    };
    EXPECT_THAT(
        error_of(step),
        AllOf(HasSubstr("[optim] Muon"), HasSubstr("gradient of \"weight\"")));
    for (const auto& slice : fsdp.parameters()) {
      EXPECT_TRUE(torch::equal(slice, torch::ones_like(slice)));
    }
    muon.zero_grad();
    model->forward(integer_rows(0, world.rank(), 6)).sum().backward();
    EXPECT_EQ(error_of([&] { muon.step(); }), "no error");
  }));
}

TEST_P(SharedMemoryGradients, MuonOverPrivateGradientsIsRefusedOnEveryRank) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto options = sharing();
    options.share_gradients = false;
    Chain model(4, 6);
    auto fsdp = fully_shard(*model, world, options);
    EXPECT_THAT(
        error_of([&] { Muon muon(weights(fsdp)); }),
        AllOf(
            HasSubstr("FullyShardOptions::share_gradients"),
            HasSubstr(str("cut among ", world.size(), " ranks"))));
    EXPECT_THAT(
        error_of([&] { Muon muon(fsdp.named_parameters()); }),
        HasSubstr("share_gradients"));
    EXPECT_EQ(error_of([&] { loss_of(model, world).backward(); }), "no error");
  }));
}

// Each is refused before anything has moved.
TEST_P(SharedMemoryGradients, WhoCannotShareThemIsToldWhy) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(4, 6);
    const auto refusal = [&](const Mesh& mesh, auto change) {
      auto options = sharing();
      change(options);
      return error_of([&] { (void)fully_shard(*model, mesh, options); });
    };
    EXPECT_THAT(
        refusal(
            Mesh(world),
            [](auto& o) { o.exchange = ExchangeKind::kCollective; }),
        AllOf(
            HasSubstr("[fsdp] options.share_gradients"),
            HasSubstr("expected ExchangeKind::kSharedMemory"),
            HasSubstr("found ranks that exchange by messages")));
    EXPECT_THAT(
        refusal(
            Mesh(world),
            [](auto& o) { o.exchange = ExchangeKind::kHierarchical; }),
        HasSubstr("found ranks that exchange by shared memory and"));
    if (world.size() % 2 == 0) {
      EXPECT_THAT(
          refusal(
              Mesh(world, {.replicate = 2}),
              [](auto& o) { o.optimizer_axes = OptimizerAxes::kBoth; }),
          HasSubstr("found OptimizerAxes::kBoth"));
    }
    EXPECT_EQ(error_of([&] { loss_of(model, world).backward(); }), "no error");
  }));
}

TEST_P(SharedMemoryGradients, RanksThatDifferInTheOptionAreTold) {
  RankOptions disorderly;
  disorderly.close_world = false;
  expect_all_ok(run_ranks(
      GetParam(),
      [](World world) {
        auto options = sharing();
        options.share_gradients = world.rank() == 0;
        Chain model(4, 6);
        EXPECT_THAT(
            error_of([&] { (void)fully_shard(*model, world, options); }),
            AllOf(
                HasSubstr("ranks disagree on the model"),
                HasSubstr("of shared gradients")));
      },
      disorderly));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    SharedMemoryGradients,
    testing::Values(2, 3, 4),
    testing::PrintToStringParamName());

// A program that asks for it runs on one rank, too.
TEST(SharedMemoryGradientsAlone, OneRankHasEverythingAlready) {
  expect_all_ok(run_ranks(1, [](World world) {
    for (const bool mixed : {false, true}) {
      Chain model(4, 6);
      auto options = sharing();
      if (mixed) {
        options.mixed_precision.param_dtype = torch::kBFloat16;
      }
      auto fsdp = fully_shard(*model, world, options);
      Muon muon(weights(fsdp));
      EXPECT_EQ(muon.names().size(), 5U);
      loss_of(model, world).backward();
      const auto before = fsdp.parameters().front().detach().clone();
      muon.step();
      EXPECT_FALSE(torch::equal(fsdp.parameters().front(), before));
    }
  }));
}

}  // namespace
}  // namespace sherd::test
