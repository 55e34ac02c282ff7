// SPDX-License-Identifier: Apache-2.0
//
// Shared memory and time: whatever rank is late with whatever, values are those
// of one process and of messages, bit for bit. Late are reads, too: of units
// whose last gradient was posted (docs/design/shared_memory.md).
#include "support/delay.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <sherd/optim/adamw.h>

namespace sherd::test {
namespace {

using namespace std::chrono_literals;

class SharedMemoryOrder : public testing::TestWithParam<int> {};

Chain chain() { return Chain(4, 6); }

// Gradients that reach `x` go on late on one rank, another one in each batch.
torch::Tensor late(torch::Tensor x, int batch, int rank, int ranks) {
  if (rank == batch % ranks) {
    x.register_hook([](const torch::Tensor& gradient) {
      be_late(20ms);
      return gradient;
    });
  }
  return x;
}

void expect_parity(const World& world, const Pass<Chain>& pass) {
  RankParity options;
  options.steps = 4;
  // Two backwards of one pass are scaled one by one; a third is no fp32 number.
  options.tolerance = world.size() == 3 ? 1e-6 : 0.0;
  options.shard.exchange = ExchangeKind::kSharedMemory;
  expect_rank_parity<Chain>(world, chain, pass, options);
}

// `first` uses layer 0 before the layers do, in a way that reads it when its
// gradient, and that of every other unit, was posted long ago: for the gradient
// of the batch itself, which must be that of one process.
void expect_late_read(
    const World& world,
    const std::function<torch::Tensor(Chain&, const torch::Tensor&)>& first) {
  std::map<const void*, std::vector<torch::Tensor>> seen;  // By model.
  expect_parity(world, [&](Chain& model, int batch, int rank) {
    const auto x = integer_rows(batch, rank, 6).set_requires_grad(true);
    if (rank == world.rank()) {
      x.register_hook(
          [&seen, who = model.get()](const torch::Tensor& gradient) {
            seen[who].push_back(gradient.clone());
            return gradient;
          });
    }
    auto y = late(first(model, x), batch, rank, world.size());
    return model->forward(y).sum() + y.sum();
  });
  ASSERT_EQ(seen.size(), 2U);
  const auto& one = seen.begin()->second;
  const auto& other = seen.rbegin()->second;
  ASSERT_EQ(one.size(), other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(torch::equal(one[i], other[i])) << "batch " << i;
    EXPECT_GT(one[i].abs().sum().item<float>(), 0.0) << "batch " << i;
  }
}

TEST_P(SharedMemoryOrder, ADetachedUseIsReadAfterTheLastGradient) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_late_read(world, [](Chain& model, const torch::Tensor& x) {
      return torch::mm(x, model->layer(0).weight.detach().t());
    });
  }));
}

TEST_P(SharedMemoryOrder, AnActivationHookReadsAUnitThatIsDone) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_late_read(world, [](Chain& model, const torch::Tensor& x) {
      auto y = x + 1;
      y.register_hook(
          [weight = model->layer(0).weight](const torch::Tensor& gradient) {
            return gradient + 1 + weight.detach().sum();
          });
      return y;
    });
  }));
}

TEST_P(SharedMemoryOrder, ASecondBackwardOfARetainedGraph) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_parity(world, [&](Chain& model, int batch, int rank) {
      auto x = late(
          model->layer(0).forward(integer_rows(batch, rank, 6)).clamp(-2, 2),
          batch, rank, world.size());
      auto loss = model->layer(1).forward(x).sum();
      loss.backward({}, /*retain_graph=*/true);
      return loss;
    });
  }));
}

TEST_P(SharedMemoryOrder, TwoLossesAndTwoBackwardsInOneStep) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_parity(world, [&](Chain& model, int batch, int rank) {
      auto x = late(
          model->layer(0).forward(integer_rows(batch, rank, 6)).clamp(-2, 2),
          batch, rank, world.size());
      const auto first = model->layer(1).forward(x).sum();
      const auto second = model->layer(2).forward(x).sum();
      first.backward({}, /*retain_graph=*/true);
      return second;
    });
  }));
}

// ---- a hundred steps ----

struct Training {
  ExchangeKind exchange = ExchangeKind::kSharedMemory;
  int replicas = 1;
  OptimizerAxes axes = OptimizerAxes::kShard;
  // Of sleeps, of every rank, everywhere in a step; 0: none.
  unsigned seed = 0;
};

// The bits of this rank's losses.
std::string losses(const World& world, const Training& training) {
  constexpr int kSteps = 100;
  torch::manual_seed(1);
  Chain model(4, 6);
  for (auto& parameter : model->parameters()) {
    const torch::NoGradGuard no_grad;
    torch::nn::init::normal_(parameter, 0.0, 0.3);
  }
  FullyShardOptions options;
  options.exchange = training.exchange;
  options.optimizer_axes = training.axes;
  auto fsdp = fully_shard(
      *model, Mesh(world, {.replicate = training.replicas}), options);
  AdamW adamw(fsdp.named_parameters(), {.learning_rate = 1e-2});
  std::mt19937 random(training.seed + static_cast<unsigned>(world.rank()));
  const auto dawdle = [&] {
    if (training.seed != 0 && random() % 8 == 0) {
      be_late(std::chrono::microseconds(random() % 3000));
    }
  };
  std::string bits;
  for (int step = 0; step < kSteps; ++step) {
    auto x = integer_rows(step, world.rank(), 6);
    for (std::size_t layer = 0; layer < 4; ++layer) {
      dawdle();
      x = model->layer(layer).forward(x).tanh();
      x.register_hook([&](const torch::Tensor& gradient) {
        dawdle();
        return gradient;
      });
    }
    auto loss = model->head(x).square().mean();
    const auto value = loss.item<float>();
    EXPECT_TRUE(std::isfinite(value));
    bits.append(reinterpret_cast<const char*>(&value), sizeof(value));
    dawdle();
    loss.backward();
    dawdle();
    fsdp.clip_grad_norm(0.1);
    dawdle();
    adamw.step();
    adamw.zero_grad();
  }
  return bits;
}

TEST_P(SharedMemoryOrder, LossesOfAHundredStepsDoNotDependOnTime) {
  const auto seed = std::random_device()() | 1U;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto expected = losses(world, {});
    EXPECT_EQ(losses(world, {.seed = seed}), expected);
    EXPECT_EQ(losses(world, {.exchange = ExchangeKind::kCollective}), expected);
  }));
}

// Both axes in shared memory.
TEST(SharedMemoryHybridOrder, LossesOfAHundredStepsDoNotDependOnTime) {
  const auto seed = std::random_device()() | 1U;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (const auto axes : {OptimizerAxes::kShard, OptimizerAxes::kBoth}) {
    expect_all_ok(run_ranks(4, [&](World world) {
      Training training{.replicas = 2, .axes = axes};
      const auto expected = losses(world, training);
      training.seed = seed;
      EXPECT_EQ(losses(world, training), expected);
      training = {
          .exchange = ExchangeKind::kCollective, .replicas = 2, .axes = axes};
      EXPECT_EQ(losses(world, training), expected);
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    SharedMemoryOrder,
    testing::Values(2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
