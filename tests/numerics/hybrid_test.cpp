// SPDX-License-Identifier: Apache-2.0
//
// Hybrid sharding over every mesh: the numbers of one process, and equal bits in
// every replica (T10, A4, A5, A43, B2, B12). Sums of small integers are exact, so
// where the world size is a power of two every way to add them up gives equal
// bits.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <limits>
#include <optional>
#include <stdexcept>
#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>

namespace sherd::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kWidth = 6;
constexpr ExchangeKind kExchanges[] = {
    ExchangeKind::kCollective, ExchangeKind::kSharedMemory};
constexpr OptimizerAxes kAxes[] = {OptimizerAxes::kShard, OptimizerAxes::kBoth};

class Hybrid : public testing::TestWithParam<int> {};
class HybridWays : public testing::TestWithParam<int> {};  // Take longer.

std::vector<int> replicas_of(const World& world) {
  std::vector<int> all;
  for (int replicas = 1; replicas <= world.size(); ++replicas) {
    if (world.size() % replicas == 0) {
      all.push_back(replicas);
    }
  }
  return all;
}

double tolerance_of(const World& world) {
  const bool power_of_two = (world.size() & (world.size() - 1)) == 0;
  return power_of_two ? 0.0 : 1e-6;
}

Chain chain() { return Chain(4, kWidth); }

torch::Tensor chain_loss(Chain& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, kWidth)).sum();
}

TEST_P(Hybrid, T10EveryMeshEqualsOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const int replicas : replicas_of(world)) {
      for (const auto strategy :
           {Strategy::kFullShard, Strategy::kShardGradOp}) {
        for (const int kind : {0, 1, 2, 3}) {
          RankParity options;
          options.shard.optimizer_axes = kAxes[kind / 2];
          options.tolerance = tolerance_of(world);
          options.replicas = replicas;
          options.micro_batches = 2;
          options.shard.units = units::by_name("*");
          options.shard.strategy = strategy;
          options.shard.exchange = kExchanges[kind % 2];
          expect_rank_parity<IntegerMlp>(
              world, [] { return IntegerMlp(); }, integer_loss, options);
        }
      }
    }
  }));
}

TEST_P(Hybrid, T10NoShardIsWholeOnEveryRankOfAMesh) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const int replicas : replicas_of(world)) {
      RankParity options;
      options.tolerance = tolerance_of(world);
      options.replicas = replicas;
      options.shard.strategy = Strategy::kNoShard;
      expect_rank_parity<Chain>(world, chain, chain_loss, options);
    }
  }));
}

// What a micro-batch leaves out: 's' nothing, 'r' the sum across replicas, 'n'
// everything.
std::optional<NoSyncScope> scope_of(FullyShardedDataParallel& fsdp, char mode) {
  if (mode == 's') {
    return std::nullopt;
  }
  return fsdp.no_sync(
      {.axis = mode == 'r' ? NoSyncAxis::kReplicate : NoSyncAxis::kBoth});
}

TEST_P(HybridWays, T10T11EveryWayToAddUpEqualsOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const int replicas : replicas_of(world)) {
      for (const int kind : {0, 1, 2}) {
        for (const std::string modes : {"rrs", "srs", "nrs", "srns"}) {
          Chain reference = chain();
          Chain model = chain();
          FullyShardOptions options;
          options.exchange = kExchanges[kind % 2];
          options.optimizer_axes = kAxes[kind / 2];
          const Mesh mesh(world, {.replicate = replicas});
          const Slicing slicing(*reference, mesh, options);
          const auto leaves = unique_parameters(*reference);
          auto fsdp = fully_shard(*model, mesh, options);
          const auto step_reference = sign_steps()(tensors_of(leaves));
          const auto step_shards = sign_steps()(fsdp.parameters());
          int batch = 0;
          for (int step = 0; step < 2; ++step) {
            for (const char mode : modes) {
              reference_backward<Chain>(
                  reference, leaves, chain_loss, batch, world);
              const auto scope = scope_of(fsdp, mode);
              chain_loss(model, batch, world.rank()).backward();
              ++batch;
            }
            expect_gradients(slicing, leaves, fsdp, tolerance_of(world));
            step_reference();
            step_shards();
            fsdp.publish();
          }
          expect_parameters(leaves, *model, fsdp, tolerance_of(world));
        }
      }
    }
  }));
}

TEST(HybridPartial, T10B12ReducesWithinReplicasAndShowsNothing) {
  expect_all_ok(run_ranks(4, [](World world) {
    Chain model = chain();
    auto fsdp = fully_shard(*model, Mesh(world, {.replicate = 2}));
    const auto pass = [&](const std::vector<std::size_t>& order) {
      auto x = integer_rows(0, world.rank(), kWidth);
      for (const auto i : order) {
        x = model->layer(i).forward(x);
      }
      x.sum().backward();
    };
    const auto before = fsdp.report();
    {
      const auto scope = fsdp.no_sync({.axis = NoSyncAxis::kReplicate});
      pass({0, 1});
    }
    const auto after = fsdp.report();
    EXPECT_EQ(after.reduces, before.reduces + after.units);
    EXPECT_EQ(after.backwards, 0);
    for (const auto& slice : fsdp.parameters()) {
      EXPECT_FALSE(slice.grad().defined());
    }
    pass({2});
    // Also what only the partial one used.
    for (const auto& item : fsdp.named_parameters().items) {
      const bool used = item.name.find("layers.3") == std::string::npos &&
          item.name.find("head") == std::string::npos;
      EXPECT_EQ(item.slice.grad().defined(), used) << item.name;
    }
  }));
}

// Where each rank is a replica nothing is summed within, so that gradients are kept, and dropped, as
// by no_sync().
TEST(HybridPartial, T10ZeroGradDropsWhatRanksThatAreReplicasHaveKept) {
  expect_all_ok(run_ranks(2, [](World world) {
    for (const auto axes : kAxes) {
      for (const auto axis : {NoSyncAxis::kBoth, NoSyncAxis::kReplicate}) {
        Chain model = chain();
        FullyShardOptions options;
        options.optimizer_axes = axes;
        auto fsdp = fully_shard(
            *model, Mesh(world, {.replicate = world.size()}), options);
        AdamW adamw(fsdp.named_parameters());
        const auto gradients = [&](bool keeps_before) {
          if (keeps_before) {
            const auto scope = fsdp.no_sync({.axis = axis});
            chain_loss(model, 1, world.rank()).backward();
          }
          adamw.zero_grad();
          chain_loss(model, 0, world.rank()).backward();
          Leaves found;
          for (const auto& slice : fsdp.parameters()) {
            found.push_back(slice.grad().clone());
          }
          adamw.zero_grad();
          return found;
        };
        const auto expected = gradients(false);
        const auto found = gradients(true);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(torch::equal(found[i], expected[i]));
        }
      }
    }
  }));
}

// As without replicas, where nothing is to be left out.
TEST(HybridPartial, T10OneReplicaReducesAllTheSame) {
  expect_all_ok(run_ranks(2, [](World world) {
    Chain model = chain();
    auto fsdp = fully_shard(*model, world);
    const auto scope = fsdp.no_sync({.axis = NoSyncAxis::kReplicate});
    chain_loss(model, 0, world.rank()).backward();
    EXPECT_EQ(fsdp.report().backwards, 1);
    for (const auto& slice : fsdp.parameters()) {
      EXPECT_TRUE(slice.grad().defined());
    }
  }));
}

// ---- what is no integer ----

struct NoisyImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  torch::Tensor frozen;
  NoisyImpl() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(7, 150));
    second = register_module("second", torch::nn::Linear(150, 150));
    third = register_module("third", torch::nn::Linear(150, 1));
    frozen = register_parameter("frozen", torch::rand({150}), false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    // The second layer twice: large gradients that add up.
    const auto h = torch::tanh(second(torch::tanh(first(x))) + frozen);
    return third(torch::tanh(second(h)));
  }
};
TORCH_MODULE(Noisy);

torch::Tensor noisy_loss(Noisy& model, int batch, int rank) {
  torch::manual_seed(100 + 17 * batch + rank);
  const auto x = torch::randn({3, 7});
  return (model->forward(x) - x.sum(1, true)).square().mean();
}

std::vector<double> numbers_of(const torch::Tensor& values) {
  const auto flat = values.to(torch::kDouble).contiguous().view({-1});
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

TEST_P(HybridWays, T10ReplicasKeepEqualBits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const int replicas : replicas_of(world)) {
      for (const int kind : {0, 1, 2, 3}) {
        for (const bool mixed : {false, true}) {
          Noisy model;
          FullyShardOptions options;
          options.units = units::by_name("*");
          options.exchange = kExchanges[kind % 2];
          options.optimizer_axes = kAxes[kind / 2];
          if (mixed) {
            options.mixed_precision.param_dtype = torch::kBFloat16;
          }
          auto fsdp = fully_shard(
              *model, Mesh(world, {.replicate = replicas}), options);
          AdamW adamw(fsdp.named_parameters(), {.learning_rate = 1e-2});
          std::vector<double> norms;
          for (int step = 0; step < 3; ++step) {
            for (const char mode : std::string("srs")) {
              const auto scope = scope_of(fsdp, mode);
              noisy_loss(model, step, world.rank()).backward();
            }
            norms.push_back(fsdp.clip_grad_norm(0.1));
            adamw.step();
            adamw.zero_grad();
          }
          for (const auto& theirs : world.all_gather(norms)) {
            EXPECT_EQ(theirs, norms);
          }
          // What this replica holds.
          for (const auto& item : full_parameters(*model, fsdp)) {
            const auto mine = numbers_of(item.value());
            for (const auto& theirs : world.all_gather(mine)) {
              EXPECT_EQ(theirs, mine) << item.key();
            }
          }
        }
      }
    }
  }));
}

TEST_P(Hybrid, T10NumbersAreNearThoseOfOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const int replicas : replicas_of(world)) {
      RankParity options;
      options.tolerance = 1e-5;
      options.replicas = replicas;
      options.micro_batches = 2;
      options.step =
          steps_of<torch::optim::SGD>(torch::optim::SGDOptions(0.05));
      options.shard.units = units::by_name("*");
      expect_rank_parity<Noisy>(
          world, [] { return Noisy(); }, noisy_loss, options);
    }
  }));
}

TEST(HybridPrecision, T10T21BFloat16EqualsPlainShardingInBits) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const auto reduce : {torch::kBFloat16, torch::kFloat}) {
      std::vector<torch::Tensor> last;
      for (const int kind : {1, 2, 4, 12, 14}) {
        const int replicas = kind % 10;
        Chain model = chain();
        FullyShardOptions options;
        options.optimizer_axes = kAxes[kind / 10];
        options.mixed_precision.param_dtype = torch::kBFloat16;
        options.mixed_precision.reduce_dtype = reduce;
        auto fsdp =
            fully_shard(*model, Mesh(world, {.replicate = replicas}), options);
        const auto step = sign_steps()(fsdp.parameters());
        for (int batch = 0; batch < 3; ++batch) {
          chain_loss(model, batch, world.rank()).backward();
          step();
          fsdp.publish();
        }
        std::vector<torch::Tensor> found;
        auto scope = fsdp.summon_full_parameters({.read_only = true});
        for (const auto& item : model->named_parameters()) {
          found.push_back(scope.tensor(item.key()).clone());
        }
        for (std::size_t i = 0; i < last.size(); ++i) {
          EXPECT_TRUE(torch::equal(found[i], last[i])) << "parameter " << i;
        }
        last = found;
      }
    }
  }));
}

TEST(HybridClip, T10T42NormsCountReplicasOnce) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const int kind : {1, 2, 4, 12, 14}) {
      const int replicas = kind % 10;
      FullyShardOptions options;
      options.optimizer_axes = kAxes[kind / 10];
      for (const double p :
           {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
        Chain reference = chain();
        Chain model = chain();
        const Mesh mesh(world, {.replicate = replicas});
        const Slicing slicing(*reference, mesh, options);
        const auto leaves = unique_parameters(*reference);
        auto fsdp = fully_shard(*model, mesh, options);
        reference_backward<Chain>(reference, leaves, chain_loss, 0, world);
        chain_loss(model, 0, world.rank()).backward();
        const double expected =
            torch::nn::utils::clip_grad_norm_(tensors_of(leaves), 0.75, p);
        EXPECT_NEAR(
            fsdp.clip_grad_norm(0.75, {.p = p}), expected, 1e-5 * expected);
        expect_gradients(slicing, leaves, fsdp, 1e-5);
      }
    }
  }));
}

// ---- ranks that differ, and errors ----

TEST(HybridErrors, T10ABackwardGivenUpIsNamedAlikeByAllAndForgotten) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const char mode : std::string("rs")) {
      Chain reference = chain();
      Chain model = chain();
      const Mesh mesh(world, {.replicate = 2});
      const Slicing slicing(*reference, mesh, {});
      const auto leaves = unique_parameters(*reference);
      auto fsdp = fully_shard(*model, mesh);
      {
        const auto scope = scope_of(fsdp, 'r');  // Is forgotten, too.
        chain_loss(model, 7, world.rank()).backward();
      }
      {
        const auto scope = scope_of(fsdp, mode);
        auto x = integer_rows(0, world.rank(), kWidth);
        x = model->layer(0).forward(x);
        if (world.rank() == 3) {
          x.register_hook([](const torch::Tensor&) -> torch::Tensor {
            throw std::runtime_error("poisoned by the test");
          });
        }
        const auto error = error_of([&] { model->head(x).sum().backward(); });
        EXPECT_THAT(error, HasSubstr("poisoned by the test"));
        if (world.rank() != 3) {
          EXPECT_THAT(
              error,
              testing::StartsWith(
                  "[exchange] rank 3 gave this backward up: poisoned"));
        }
      }
      reference_backward<Chain>(reference, leaves, chain_loss, 1, world);
      chain_loss(model, 1, world.rank()).backward();
      expect_gradients(slicing, leaves, fsdp, 0.0);
    }
  }));
}

TEST(HybridErrors, T10T15FlagsThatDifferBetweenReplicasAreNamed) {
  expect_all_ok(run_ranks(4, [](World world) {
    Chain model = chain();
    auto fsdp = fully_shard(*model, Mesh(world, {.replicate = 2}));
    if (world.rank() == 2) {
      model->layer(1).weight.set_requires_grad(false);
    }
    const auto error =
        error_of([&] { chain_loss(model, 0, world.rank()).backward(); });
    EXPECT_THAT(error, HasSubstr("requires_grad of parameter layers.1.weight"));
    EXPECT_THAT(error, HasSubstr("rank 2 has false"));
  }));
}

TEST(HybridErrors, T10T39ReplicasOfDifferentModelsAreNamedOnEveryRank) {
  RankOptions options;
  options.close_world = false;
  expect_all_ok(run_ranks(
      4,
      [](World world) {
        Chain model(world.rank() < 2 ? 4 : 5, kWidth);
        const auto error = error_of(
            [&] { (void)fully_shard(*model, Mesh(world, {.replicate = 2})); });
        EXPECT_THAT(error, HasSubstr("ranks disagree on the model"));
        EXPECT_THAT(error, HasSubstr("layers.4"));
      },
      options));
}

// Rank 0's values reach every replica, and each takes back what was written.
class HybridSummon : public testing::TestWithParam<OptimizerAxes> {};

TEST_P(HybridSummon, T10T43FullParametersAreReadAndWrittenInEveryReplica) {
  const auto axes = GetParam();
  expect_all_ok(run_ranks(4, [axes](World world) {
    Chain model = chain();
    if (world.rank() > 0) {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) {
        parameter.fill_(world.rank());
      }
    }
    FullyShardOptions options;
    options.sync_module_states = true;
    options.optimizer_axes = axes;
    auto fsdp = fully_shard(*model, Mesh(world, {.replicate = 2}), options);
    const Chain reference = chain();
    for (const auto& item : full_parameters(*model, fsdp)) {
      EXPECT_TRUE(
          torch::equal(item.value(), reference->named_parameters()[item.key()]))
          << item.key();
    }
    {
      const torch::NoGradGuard no_grad;
      auto scope = fsdp.summon_full_parameters();
      model->layer(2).weight.fill_(3.0);
    }
    EXPECT_TRUE(full_parameters(*model, fsdp)["layers.2.weight"]
                    .eq(3.0)
                    .all()
                    .item<bool>());
  }));
}

INSTANTIATE_TEST_SUITE_P(Axes, HybridSummon, testing::ValuesIn(kAxes));

// 1/W of the elements belong to each rank, and to nobody else.
TEST(HybridState, T10OverBothAxesAnOptimizerSeesAShareOfTheWorld) {
  expect_all_ok(run_ranks(4, [](World world) {
    Chain model = chain();
    double all = 0;
    for (const auto& parameter : model->parameters()) {
      all += static_cast<double>(parameter.numel());
    }
    FullyShardOptions options;
    options.optimizer_axes = OptimizerAxes::kBoth;
    auto fsdp = fully_shard(*model, Mesh(world, {.replicate = 2}), options);
    double mine = 0;
    for (const auto& slice : fsdp.parameters()) {
      mine += static_cast<double>(slice.numel());
    }
    double sum = 0;
    for (const auto& theirs : world.all_gather({mine})) {
      EXPECT_LT(theirs[0], all / 3);
      sum += theirs[0];
    }
    EXPECT_EQ(sum, all);
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Hybrid,
    testing::Values(1, 2, 3, 4, 6),
    testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(
    Worlds,
    HybridWays,
    testing::Values(2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
