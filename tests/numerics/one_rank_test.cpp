// SPDX-License-Identifier: Apache-2.0
//
// A world of one rank is LibTorch, bit for bit, and costs nothing.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <optional>
#include <sherd/optim/muon.h>
#include "autograd/managed_storage.h"

namespace sherd::test {
namespace {

torch::nn::Sequential network() {
  torch::manual_seed(1);
  return torch::nn::Sequential(
      torch::nn::Linear(9, 17), torch::nn::GELU(),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({17})),
      torch::nn::Linear(17, 3));
}

torch::Tensor loss_of(torch::nn::Sequential& model, int step) {
  torch::manual_seed(10 + step);
  return model->forward(torch::randn({5, 9})).square().mean();
}

TEST(OneRank, T14ClippingTrainsLikeLibTorchUpToTheRoundingOfTheNorm) {
  expect_all_ok(run_ranks(1, [](World world) {
    auto reference = network();
    auto model = network();
    auto fsdp = fully_shard(*model, world);
    const auto options = torch::optim::AdamWOptions(1e-2);
    torch::optim::AdamW reference_adamw(reference->parameters(), options);
    torch::optim::AdamW adamw(fsdp.parameters(), options);
    for (int step = 0; step < 10; ++step) {
      const auto expected = loss_of(reference, step);
      const auto found = loss_of(model, step);
      // Clipping adds squares in fp64, LibTorch in fp32.
      expect_close(found.detach(), expected.detach(), 1e-6, "loss");
      expected.backward();
      found.backward();
      torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.5);
      fsdp.clip_grad_norm(0.5);
      reference_adamw.step();
      adamw.step();
      fsdp.publish();
      reference_adamw.zero_grad();
      adamw.zero_grad();
    }
    for (const auto& item : reference->named_parameters()) {
      expect_close(
          model->named_parameters()[item.key()].detach(), item.value().detach(),
          1e-6, item.key());
    }
  }));
}

TEST(OneRank, MuonKeepsMomentumInTheDtypeOfTheMatrix) {
  expect_all_ok(run_ranks(1, [](World world) {
    for (const auto dtype : {torch::kBFloat16, torch::kDouble}) {
      const auto train = [&](bool sharded) {
        auto model = network();
        model->to(dtype);
        std::optional<FullyShardedDataParallel> fsdp;
        NamedParameters parameters;
        if (sharded) {
          fsdp.emplace(fully_shard(*model, world));
          parameters = fsdp->named_parameters();
        } else {
          for (const auto& item : model->named_parameters()) {
            parameters.items.push_back({item.key(), item.value()});
          }
        }
        Muon muon(split(parameters, {"0.weight", "3.weight"}).matching);
        for (int step = 0; step < 3; ++step) {
          torch::manual_seed(10 + step);
          model->forward(torch::randn({5, 9}).to(dtype))
              .square()
              .mean()
              .backward();
          muon.step();
          muon.zero_grad();
        }
        EXPECT_EQ(muon.momentum_buffer("0.weight").scalar_type(), dtype);
        return model->named_parameters()["0.weight"].detach().clone();
      };
      EXPECT_TRUE(torch::equal(train(true), train(false)));
    }
  }));
}

// With one rank gradients are in the slices at once.
TEST(OneRank, AStepAfterBackwardsThatWereAllUnderNoSyncIsPublished) {
  expect_all_ok(run_ranks(1, [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kShardGradOp}) {
      auto model = network();
      FullyShardOptions options;
      options.strategy = strategy;
      options.mixed_precision = {.param_dtype = torch::kBFloat16};
      auto fsdp = fully_shard(*model, world, options);
      torch::optim::SGD sgd(fsdp.parameters(), 1.0);
      std::vector<float> losses;
      for (int step = 0; step < 3; ++step) {
        const auto scope = fsdp.no_sync();
        const auto loss = loss_of(model, 0);
        losses.push_back(loss.item<float>());
        loss.backward();
        sgd.step();
        sgd.zero_grad();
      }
      EXPECT_NE(losses[0], losses[1]);
      EXPECT_NE(losses[1], losses[2]);
    }
  }));
}

TEST(OneRank, T14TrainsLikeLibTorchInEveryBit) {
  expect_all_ok(run_ranks(1, [](World world) {
    auto reference = network();
    auto model = network();
    auto fsdp = fully_shard(*model, world);
    const auto options = torch::optim::AdamWOptions(1e-2);
    torch::optim::AdamW reference_adamw(reference->parameters(), options);
    torch::optim::AdamW adamw(fsdp.parameters(), options);
    for (int step = 0; step < 10; ++step) {
      loss_of(reference, step).backward();
      loss_of(model, step).backward();
      reference_adamw.step();
      adamw.step();
      reference_adamw.zero_grad();
      adamw.zero_grad();
    }
    for (const auto& item : reference->named_parameters()) {
      expect_close(
          model->named_parameters()[item.key()].detach(), item.value().detach(),
          0.0, item.key());
    }
  }));
}

TEST(OneRank, T14NothingIsGatheredReducedOrKeyed) {
  expect_all_ok(run_ranks(1, [](World world) {
    auto model = network();
    std::vector<const void*> before;
    for (const auto& parameter : model->parameters()) {
      before.push_back(parameter.const_data_ptr());
    }
    auto fsdp = fully_shard(*model, world);
    loss_of(model, 0).backward();
    const auto report = fsdp.report();
    EXPECT_EQ(report.unshards, 0);
    EXPECT_EQ(report.reduces, 0);
    EXPECT_EQ(report.unsharded_bytes_peak, 0);
    std::size_t i = 0;
    for (const auto& parameter : model->parameters()) {
      EXPECT_EQ(parameter.const_data_ptr(), before[i++]);  // Not moved.
      EXPECT_EQ(autograd::tag_of(parameter), nullptr);
      EXPECT_FALSE(parameter.key_set().has(
          c10::DispatchKey::TESTING_ONLY_GenericWrapper));
    }
  }));
}

TEST(OneRank, T14NoStoreIsNeeded) {
  expect_all_ok(run_processes(1, [](int, Rank&) {
    auto model = network();
    auto fsdp = fully_shard(*model, World::single());
    loss_of(model, 0).backward();
    EXPECT_EQ(fsdp.parameters().size(), model->parameters().size());
    EXPECT_TRUE(fsdp.parameters()[0].grad().defined());
  }));
}

// In mixed precision a rank alone has units, too.
TEST(OneRank, T11UnderNoSyncGradientsAreSetAtOnce) {
  expect_all_ok(run_ranks(1, [](World world) {
    for (const bool mixed : {false, true}) {
      IntegerMlp model;
      FullyShardOptions options;
      if (mixed) {
        options.mixed_precision.param_dtype = torch::kBFloat16;
        options.mixed_precision.reduce_dtype = torch::kFloat;
      }
      auto fsdp = fully_shard(*model, world, options);
      const auto gradients = [&](bool syncs) {
        const auto scope = syncs ? std::optional<NoSyncScope>()
                                 : std::optional(fsdp.no_sync());
        integer_loss(model, 0, 0).backward();
        integer_loss(model, 1, 0).backward();
        Leaves found;
        for (const auto& slice : fsdp.parameters()) {
          found.push_back(slice.grad().clone());
          slice.mutable_grad().reset();
        }
        return found;
      };
      const auto expected = gradients(true);
      const auto found = gradients(false);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(torch::equal(found[i], expected[i]));
      }
    }
  }));
}

TEST(OneRank, T37AGraphFromBeforeThePublishIsLibTorchsVersionError) {
  expect_all_ok(run_ranks(1, [](World world) {
    IntegerMlp model;
    auto fsdp = fully_shard(*model, world);
    const auto old = integer_loss(model, 0, 0);
    integer_loss(model, 1, 0).backward();
    sign_steps()(fsdp.parameters())();
    fsdp.publish();
    const auto error = error_of([&] { old.backward(); });
    EXPECT_NE(error.find("modified by an inplace operation"), std::string::npos)
        << error;
  }));
}

}  // namespace
}  // namespace sherd::test
