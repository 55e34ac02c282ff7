// SPDX-License-Identifier: Apache-2.0
//
// Ranks with different numbers of inputs (T56): the same as one process that
// runs, batch by batch, the passes of the ranks that still have some.
#include "ddp/replica_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"
#include "support/uneven_inputs.h"

#include <stdexcept>
#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReplicateJoin : public ::testing::TestWithParam<int> {};

struct Uneven {
  JoinOptions join = {};
  ReplicateOptions replicate = {};
  std::function<int(int rank)> inputs;
};

bool active_backward(
    IntegerMlp& reference,
    const World& world,
    const Uneven& options,
    int batch) {
  return backward_of_active<IntegerMlp>(
      reference, integer_loss, world, {options.join, options.inputs}, batch);
}

void expect_joined(const World& world, const Uneven& options) {
  IntegerMlp reference, model;
  const auto leaves = unique_parameters(*reference);
  auto ddp = replicate(*model, world, options.replicate);
  const auto step = sign_steps()(model->parameters());
  const auto step_reference = sign_steps()(tensors_of(leaves));
  auto join = ddp.join(options.join);
  for (int batch = 0; batch < options.inputs(world.rank()); ++batch) {
    active_backward(reference, world, options, batch);
    integer_loss(model, batch, world.rank()).backward();
    expect_same_gradients(*model, leaves);
    step_reference();
    step();
  }
  join.finish();
  for (int batch = options.inputs(world.rank());
       active_backward(reference, world, options, batch); ++batch) {
    step_reference();
  }
  expect_same_parameters(*model, leaves);
  // Afterwards all take part again.
  reference->zero_grad();
  reference_backward<IntegerMlp>(reference, leaves, integer_loss, 0, world);
  integer_loss(model, 0, world.rank()).backward();
  expect_same_gradients(*model, leaves);
}

const std::vector<std::function<int(int)>>& counts() {
  static const std::vector<std::function<int(int)>> kCounts = {
      [](int rank) { return 1 + rank; }, [](int rank) { return 4 - rank; },
      [](int rank) { return rank == 1 ? 3 : 0; }, [](int) { return 2; },
      [](int) { return 0; }};
  return kCounts;
}

TEST_P(ReplicateJoin, T56EqualsTheLoopOverRanksWithInputs) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& inputs : counts()) {
      for (const bool initial : {true, false}) {
        expect_joined(
            world,
            {.join = {.divide_by_initial_world_size = initial},
             .replicate = {.bucket_bytes = 100, .first_bucket_bytes = 8},
             .inputs = inputs});
      }
    }
  }));
}

TEST_P(ReplicateJoin, T56WithAHook) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 3) {
      return;  // Means of thirds are rounded twice.
    }
    ReplicateOptions options;
    options.hook = all_reduce_mean();
    for (const bool initial : {true, false}) {
      options.hook = all_reduce_mean();
      expect_joined(
          world,
          {.join = {.divide_by_initial_world_size = initial},
           .replicate = options,
           .inputs = [](int rank) { return rank < 2 ? 3 : 1; }});
    }
  }));
}

TEST_P(ReplicateJoin, T56BuffersAreThoseOfTheHighestRankWithInputs) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    torch::nn::Sequential model(
        torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
    fill_with_integers(*model);
    auto ddp = replicate(*model, world);
    auto join = ddp.join();
    const int inputs = world.rank() == 0 ? 3 : 1;
    for (int batch = 0; batch < inputs; ++batch) {
      model->forward(integer_rows(batch, world.rank(), 3)).sum().backward();
    }
    join.finish();
    const auto tracked =
        model->named_buffers()["1.num_batches_tracked"].item<double>();
    for (const auto& rank : world.all_gather({tracked})) {
      EXPECT_EQ(rank[0], 3.0);
    }
  }));
}

TEST_P(ReplicateJoin, T56WhatFollowsABackwardMayFailForAllAndRecordGradients) {
  if (GetParam() == 1) {
    return;  // Nobody joins.
  }
  RankOptions options;
  options.close_world = false;
  expect_all_ok(run_ranks(
      GetParam(),
      [](World world) {
        IntegerMlp model;
        auto ddp = replicate(*model, world);
        auto join = ddp.join();
        if (world.rank() == 0) {
          const auto error = error_of([&] {
            join.finish([] {
              EXPECT_TRUE(torch::GradMode::is_enabled());
              throw std::runtime_error("the scheduler failed");
            });
          });
          EXPECT_THAT(error, HasSubstr("the scheduler failed"));
          return;
        }
        const auto error = error_of([&] {
          for (int batch = 0; batch < 3; ++batch) {
            integer_loss(model, batch, world.rank()).backward();
          }
        });
        EXPECT_THAT(
            error,
            AllOf(HasSubstr("rank 0"), HasSubstr("the scheduler failed")));
      },
      options));
}

TEST_P(ReplicateJoin, T56WhatFollowsABackwardKeepsOptimizersEqual) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    torch::optim::SGD sgd(
        model->parameters(), torch::optim::SGDOptions(0.125).momentum(0.5));
    int steps = 0;
    const auto after_backward = [&] {
      sgd.step();
      sgd.zero_grad();
      ++steps;
    };
    auto join = ddp.join();
    while (steps < 1 + world.rank()) {
      integer_loss(model, steps, world.rank()).backward();
      after_backward();
    }
    join.finish(after_backward);
    EXPECT_EQ(steps, world.size());
    double sum = 0.0;
    for (const auto& [parameter, state] : sgd.state()) {
      sum += static_cast<torch::optim::SGDParamState&>(*state)
                 .momentum_buffer()
                 .abs()
                 .sum()
                 .item<double>();
    }
    EXPECT_GT(sum, 0.0);
    for (const auto& theirs : world.all_gather({sum})) {
      EXPECT_EQ(theirs[0], sum);
    }
  }));
}

// As a loop leaves it that clears gradients at its beginning.
TEST_P(ReplicateJoin, T56ARankWithoutInputsAddsNoSparseGradientAgain) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    torch::nn::Embedding model(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    fill_with_integers(*model);
    auto ddp = replicate(*model, world);
    int inputs = world.rank() == world.size() - 1 ? 2 : 1;
    int backwards = 0;
    const auto after_backward = [&] {
      const auto gradient = model->weight.grad().to_dense();
      const double of_the_last = 1.0 / world.size();
      const double found = gradient[backwards][0].item<double>();
      EXPECT_NEAR(found, backwards == 0 ? 1.0 : of_the_last, 1e-6);
      EXPECT_NEAR(gradient.sum().item<double>(), 2 * found, 1e-6);
      ++backwards;
    };
    auto join = ddp.join();
    for (int batch = 0; batch < inputs; ++batch) {
      model->zero_grad();
      model->forward(torch::tensor({batch})).sum().backward();
      after_backward();
    }
    join.finish(after_backward);
    EXPECT_EQ(backwards, 2);
  }));
}

TEST_P(ReplicateJoin, T56TheFirstWithoutInputsMayEndItForAll) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    const int first = world.size() - 1;
    auto join = ddp.join({.throw_on_early_termination = true});
    const auto error = error_of([&] {
      for (int batch = 0; batch < (world.rank() == first ? 2 : 4); ++batch) {
        integer_loss(model, batch, world.rank()).backward();
      }
      join.finish();
    });
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr("rank " + std::to_string(first)),
            HasSubstr("no more inputs after 2 backwards")));
  }));
}

// A backward that one rank gives up is an error of those with inputs only.
TEST_P(ReplicateJoin, T56ABackwardThatFailsMeanwhile) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    auto join = ddp.join();
    const int inputs = world.rank() == 0 ? 3 : 1;
    for (int batch = 0; batch < inputs; ++batch) {
      auto x = integer_rows(batch, world.rank(), 7).requires_grad_();
      if (batch == 1) {
        x.register_hook([](const torch::Tensor&) -> torch::Tensor {
          throw std::runtime_error("poisoned by the test");
        });
      }
      const auto error = error_of([&] { model->forward(x).sum().backward(); });
      EXPECT_EQ(error != "no error", batch == 1) << error;
    }
    join.finish();
    for (const auto& sum : world.all_gather(
             {model->first->weight.detach().sum().item<double>()})) {
      EXPECT_EQ(sum[0], model->first->weight.detach().sum().item<double>());
    }
  }));
}

TEST_P(ReplicateJoin, T56LeavingWithoutFinishIsToldToTheOthers) {
  RankOptions ranks;
  ranks.close_world = false;  // It is lost.
  const auto body = [](World world) {
    if (world.size() == 1) {
      return;
    }
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    if (world.rank() == 0) {
      {
        const auto join = ddp.join();
      }
      EXPECT_THAT(
          error_of([&] { integer_loss(model, 0, 0).backward(); }),
          HasSubstr("without finish()"));
    } else {
      auto join = ddp.join();
      EXPECT_THAT(
          error_of([&] { integer_loss(model, 0, world.rank()).backward(); }),
          AllOf(HasSubstr("rank 0"), HasSubstr("without finish()")));
    }
  };
  expect_all_ok(run_ranks(GetParam(), body, ranks));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReplicateJoin,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
