// SPDX-License-Identifier: Apache-2.0
//
// Backwards that fail, on all ranks or on one: an error everywhere, and the
// next step is right (T37).
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <stdexcept>
#include <gmock/gmock.h>
#include <sherd/autograd/checkpoint.h>

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class BackwardError : public testing::TestWithParam<int> {};

constexpr int kLinks = 4;

Chain chain() { return Chain(kLinks, 6); }

torch::Tensor chain_loss(Chain& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, 6)).sum();
}

// Its backward throws where the gradient of layer `at`'s output arrives.
torch::Tensor poisoned_loss(Chain& model, int batch, int rank, int at) {
  auto x = integer_rows(batch, rank, 6);
  for (int i = 0; i < kLinks; ++i) {
    x = model->layer(static_cast<std::size_t>(i)).forward(x).clamp(-2, 2);
    if (i == at) {
      x.register_hook([](const torch::Tensor& gradient) -> torch::Tensor {
        if (gradient.defined()) {
          throw std::runtime_error("poisoned by the test");
        }
        return gradient;
      });
    }
  }
  return model->head(x).sum();
}

// A sharded model and its reference, which never see the failed backwards.
struct Training {
  Chain reference = chain(), model = chain();
  FullyShardOptions options;
  std::optional<Slicing> slicing;
  std::vector<NamedLeaf> leaves = unique_parameters(*reference);
  std::optional<FullyShardedDataParallel> fsdp;
  std::function<void()> step_reference, step_shards;

  Training(const World& world, const FullyShardOptions& given)
      : options(given) {
    slicing.emplace(*reference, world, options);
    fsdp.emplace(fully_shard(*model, world, options));
    step_reference = sign_steps()(tensors_of(leaves));
    step_shards = sign_steps()(fsdp->parameters());
  }
  void good_step(const World& world, int batch) {
    reference_backward<Chain>(reference, leaves, chain_loss, batch, world);
    chain_loss(model, batch, world.rank()).backward();
    expect_gradients(*slicing, leaves, *fsdp, 0.0);
    step_reference();
    step_shards();
  }
  void expect_no_gradients() {
    for (const auto& slice : fsdp->parameters()) {
      EXPECT_FALSE(slice.grad().defined());
    }
  }
};

std::vector<FullyShardOptions> several() {
  std::vector<FullyShardOptions> all(4);
  all[1].budget_bytes = 512;  // One layer and the root: evicts all the time.
  all[2].strategy = Strategy::kShardGradOp;
  all[3].strategy = Strategy::kNoShard;
  return all;
}

TEST_P(BackwardError, T37AnExceptionOnAllRanksAndTheNextStepIsRight) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& options : several()) {
      Training training(world, options);
      for (int at = 0; at < kLinks; ++at) {
        auto loss = poisoned_loss(training.model, at, world.rank(), at);
        EXPECT_THAT(
            error_of([&] { loss.backward(); }),
            HasSubstr("poisoned by the test"));
        training.expect_no_gradients();
        training.good_step(world, at);
      }
    }
  }));
}

TEST_P(BackwardError, T37AnExceptionOnOneRankIsNamedByTheOthers) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& options : several()) {
      Training training(world, options);
      for (int at = 0; at < kLinks; ++at) {
        const int culprit = (at + 1) % world.size();
        auto loss = poisoned_loss(
            training.model, at, world.rank(),
            world.rank() == culprit ? at : kLinks);
        const auto error = error_of([&] { loss.backward(); });
        EXPECT_THAT(error, HasSubstr("poisoned by the test"));
        if (world.rank() != culprit) {
          EXPECT_THAT(error, HasSubstr("rank " + std::to_string(culprit)));
        }
        training.expect_no_gradients();
        training.good_step(world, at);
      }
    }
  }));
}

// Steps before have planned another forward, which this one leaves out.
TEST_P(BackwardError, AnExceptionInAStepShorterThanItsPlanIsNamed) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    FullyShardOptions options;
    options.exchange = ExchangeKind::kCollective;
    Training training(world, options);
    for (int step = 0; step < 3; ++step) {
      (void)poisoned_loss(training.model, step, world.rank(), kLinks);
      training.good_step(world, step);
    }
    // The loss itself throws, before any unit is needed again.
    auto loss = poisoned_loss(training.model, 3, world.rank(), kLinks);
    if (world.rank() == 0) {
      loss.register_hook([](const torch::Tensor& gradient) -> torch::Tensor {
        throw std::runtime_error("poisoned by the test");
        return gradient;
      });
    }
    EXPECT_THAT(
        error_of([&] { loss.backward(); }),
        AllOf(
            HasSubstr("poisoned by the test"),
            HasSubstr(world.rank() == 0 ? "" : "rank 0")));
    training.expect_no_gradients();
    training.good_step(world, 4);
  }));
}

// Its second run throws on the culprit.
torch::Tensor poisoned_region_loss(
    Chain& model, int batch, int rank, bool poisoned) {
  const auto runs = std::make_shared<int>(0);
  return checkpoint(
             [model, runs, poisoned](torch::Tensor x) mutable {
               for (std::size_t i = 0; i < kLinks; ++i) {
                 x = model->layer(i).forward(x).clamp(-2, 2);
                 if (poisoned && *runs > 0 && i == 2) {
                   throw std::runtime_error("poisoned by the test");
                 }
               }
               ++*runs;
               return model->head(x);
             },
             integer_rows(batch, rank, 6))
      .sum();
}

TEST_P(BackwardError, T08ARegionThatThrowsTheSecondTimeIsNamedByTheOthers) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& options : several()) {
      Training training(world, options);
      const int culprit = world.size() - 1;
      auto loss = poisoned_region_loss(
          training.model, 0, world.rank(), world.rank() == culprit);
      const auto error = error_of([&] { loss.backward(); });
      EXPECT_THAT(error, HasSubstr("poisoned by the test"));
      if (world.rank() != culprit) {
        EXPECT_THAT(error, HasSubstr("rank " + std::to_string(culprit)));
      }
      for (auto& slice : training.fsdp->parameters()) {
        slice.mutable_grad().reset();
      }
      training.good_step(world, 0);
    }
  }));
}

TEST_P(BackwardError, T37AFailedMicroBatchDropsTheGradientsBeforeItToo) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Training training(world, {});
    chain_loss(training.model, 0, world.rank()).backward();
    auto loss = poisoned_loss(
        training.model, 1, world.rank(), world.rank() == 0 ? 2 : kLinks);
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("poisoned"));
    training.expect_no_gradients();
    training.good_step(world, 2);
  }));
}

// Under no_sync() it leaves what earlier backwards have summed up, and the module can drop that.
TEST_P(BackwardError, T37ZeroGradOfTheModuleAfterAFailedMicroBatch) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& options : several()) {
      Training training(world, options);
      auto& reference = training.reference;
      reference_backward<Chain>(
          reference, training.leaves, chain_loss, 0, world);
      chain_loss(training.model, 0, world.rank()).backward();
      {
        const auto scope = training.fsdp->no_sync();
        auto loss = poisoned_loss(
            training.model, 1, world.rank(), world.rank() == 0 ? 2 : kLinks);
        EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("poisoned"));
      }
      expect_gradients(*training.slicing, training.leaves, *training.fsdp, 0.0);
      training.model->zero_grad();
      reference->zero_grad();
      training.expect_no_gradients();
      training.good_step(world, 2);
    }
  }));
}

// Ranks gave the backward up at different visits, and only some have seen its end.
TEST_P(BackwardError, T37AnEvaluationAfterABackwardThatFailedOnOneRank) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& options : several()) {
      Training training(world, over_messages(options));
      training.good_step(world, 0);
      auto loss = poisoned_loss(
          training.model, 1, world.rank(), world.rank() == 0 ? 2 : kLinks);
      EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("poisoned"));
      {
        const torch::NoGradGuard no_grad;
        EXPECT_TRUE(torch::equal(
            chain_loss(training.model, 1, world.rank()),
            chain_loss(training.reference, 1, world.rank())));
      }
      training.good_step(world, 2);
    }
  }));
}

// Twelve times, so that sums of means over up to four ranks are exact.
torch::Tensor whole_loss(Chain& model, int batch, int rank) {
  return chain_loss(model, batch, rank) * 12;
}

TEST_P(BackwardError, T37UnderNoSyncOnlyWhatTheScopeHasAddedGoes) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool summed : {false, true}) {
      Training training(world, {});
      const auto backward_of_both = [&](int batch) {
        reference_backward<Chain>(
            training.reference, training.leaves, whole_loss, batch, world);
        whole_loss(training.model, batch, world.rank()).backward();
      };
      if (summed) {
        backward_of_both(0);
      }
      for (int attempt = 1; attempt < 3; ++attempt) {
        const auto scope = training.fsdp->no_sync();
        whole_loss(training.model, attempt, world.rank()).backward();
        auto loss = poisoned_loss(training.model, 3, world.rank(), 2);
        EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("poisoned"));
      }
      if (summed) {
        expect_gradients(
            *training.slicing, training.leaves, *training.fsdp, 0.0);
      } else {
        training.expect_no_gradients();
      }
      {
        const auto scope = training.fsdp->no_sync();
        backward_of_both(4);
      }
      backward_of_both(5);
      expect_gradients(*training.slicing, training.leaves, *training.fsdp, 0.0);
    }
  }));
}

TEST_P(BackwardError, T37UnderNoSyncWhatTheUserHasZeroedDoesNotComeBack) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool to_none : {false, true}) {
      Training training(world, {});
      chain_loss(training.model, 0, world.rank()).backward();
      const auto scope = training.fsdp->no_sync();
      chain_loss(training.model, 1, world.rank()).backward();
      for (const auto& slice : training.fsdp->parameters()) {
        if (to_none) {
          slice.mutable_grad().reset();
        } else {
          slice.mutable_grad().zero_();
        }
      }
      chain_loss(training.model, 2, world.rank()).backward();
      auto loss = poisoned_loss(training.model, 3, world.rank(), 2);
      EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("poisoned"));
      for (const auto& slice : training.fsdp->parameters()) {
        EXPECT_FALSE(slice.grad().defined() && slice.grad().any().item<bool>());
      }
    }
  }));
}

TEST_P(BackwardError, T37TwoRanksThatFailAtOnceAreBothTold) {
  if (GetParam() < 3) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Training training(world, {});
    auto loss = poisoned_loss(
        training.model, 0, world.rank(),
        world.rank() == 1       ? 3
            : world.rank() == 2 ? 0
                                : kLinks);
    EXPECT_THAT(error_of([&] { loss.backward(); }), HasSubstr("poisoned"));
    training.good_step(world, 1);
  }));
}

TEST_P(BackwardError, T37ASecondBackwardThroughAFreedGraph) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Training training(world, {});
    auto loss = chain_loss(training.model, 0, world.rank());
    loss.backward();
    EXPECT_THAT(
        error_of([&] { loss.backward(); }),
        HasSubstr("backward through the graph a second time"));
    for (auto& slice : training.fsdp->parameters()) {
      slice.mutable_grad().reset();
    }
    training.good_step(world, 1);
    training.good_step(world, 2);
  }));
}

TEST_P(BackwardError, T37AGraphFromBeforeTheStepIsLibTorchsVersionError) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& options : several()) {
      Training training(world, options);
      const auto old = chain_loss(training.model, 5, world.rank());
      training.good_step(world, 0);
      training.fsdp->publish();
      EXPECT_THAT(
          error_of([&] { old.backward(); }),
          HasSubstr("modified by an inplace operation"));
      for (auto& slice : training.fsdp->parameters()) {
        slice.mutable_grad().reset();
      }
      training.good_step(world, 1);
      training.good_step(world, 2);
    }
  }));
}

// LibTorch's optimizers write without a word to autograd or the engine.
TEST_P(BackwardError, T37AGraphFromBeforeAStepThatIsNotPublishedIsRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& options : several()) {
      Training training(world, options);
      torch::optim::SGD sgd(training.fsdp->parameters(), 0.5);
      const auto loss = chain_loss(training.model, 5, world.rank());
      loss.backward({}, /*retain_graph=*/true);
      loss.backward({}, /*retain_graph=*/true);  // Nothing was written.
      sgd.step();
      sgd.zero_grad();
      // One rank computes with the new values, as LibTorch does.
      EXPECT_THAT(
          error_of([&] { loss.backward({}, /*retain_graph=*/true); }),
          HasSubstr(world.size() == 1 ? "" : "call fsdp.publish() on every"));
      chain_loss(training.model, 6, world.rank()).backward();
      sgd.step();
      training.fsdp->publish();
      EXPECT_THAT(
          error_of([&] { loss.backward(); }),
          HasSubstr("modified by an inplace operation"));
    }
  }));
}

TEST_P(BackwardError, T37BackwardOfALossThatNeedsNoGradient) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Training training(world, {});
    torch::Tensor loss;
    {
      const torch::NoGradGuard no_grad;
      loss = chain_loss(training.model, 0, world.rank());
    }
    EXPECT_THAT(
        error_of([&] { loss.backward(); }), HasSubstr("does not require grad"));
    training.good_step(world, 1);
  }));
}

TEST_P(BackwardError, T37AForwardThatThrowsOnAllRanks) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& options : several()) {
      Training training(world, options);
      for (int batch = 0; batch < 2; ++batch) {
        EXPECT_THAT(
            error_of([&] {
              auto x = integer_rows(batch, world.rank(), 6);
              x = training.model->layer(0).forward(x);
              // Shapes that do not fit, inside an operator on a parameter.
              training.model->layer(1).forward(x.slice(1, 0, 3));
            }),
            HasSubstr("shapes cannot be multiplied"));
        training.good_step(world, batch);
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    BackwardError,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
