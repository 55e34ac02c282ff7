// SPDX-License-Identifier: Apache-2.0
//
// Training in fp16 with a GradScaler: the losses of PyTorch's, the bits of
// training without one where fp32 loses none, and one decision of all ranks
// (T24). What the reductions of fp16 gradients lose (T22).
#include <sherd/optim/grad_scaler.h>

#include <cmath>
#include <limits>
#include <optional>
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/replicate.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
#include "support/error_of.h"
#include "support/parity.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

constexpr auto kHalf = torch::kHalf;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr ExchangeKind kExchanges[] = {
    ExchangeKind::kCollective, ExchangeKind::kSharedMemory};

FullyShardOptions in_fp16(ExchangeKind exchange) {
  FullyShardOptions options;
  options.exchange = exchange;
  options.mixed_precision.param_dtype = kHalf;
  return options;
}

// ---- PyTorch's losses ----

// Printed by grad_scaler_reference.py: torch 2.13.0.
struct ExpectedRun {
  int ranks;
  double losses[50];
  int scales[50];  // Powers of two.
};
constexpr ExpectedRun kRuns[] = {
    {1,
     {2.43788, 2.45327, 2.47924, 2.49596, 2.46588, 2.43777, 2.40665, 2.41746,
      2.42355, 2.43107, 2.41008, 2.39759, 2.39008, 2.39617, 2.39350, 2.39156,
      2.38097, 2.38657, 2.37825, 2.38181, 2.37417, 2.36396, 2.36711, 2.35303,
      2.34944, 2.32998, 2.30662, 2.28279, 2.23768, 2.25927, 2.25016, 2.26176,
      2.19868, 2.19024, 2.17719, 2.16263, 2.14997, 2.11752, 2.10056, 2.02990,
      2.05495, 1.99668, 2.06043, 1.96962, 1.99834, 1.95378, 1.94853, 1.92926,
      1.89293, 1.86258},
     {24, 23, 22, 21, 20, 19, 19, 19, 19, 19, 19, 19, 19, 19, 19, 19, 19,
      20, 20, 20, 20, 20, 19, 19, 19, 19, 19, 19, 19, 18, 18, 18, 18, 18,
      18, 18, 18, 18, 18, 18, 18, 19, 18, 18, 17, 17, 17, 17, 17, 17}},
    {2,
     {2.43788, 2.45327, 2.47924, 2.49596, 2.46588, 2.43777, 2.40665, 2.41744,
      2.42357, 2.43108, 2.41010, 2.39758, 2.39009, 2.39617, 2.39350, 2.39159,
      2.38099, 2.38658, 2.38091, 2.38572, 2.37570, 2.37384, 2.36613, 2.35345,
      2.35427, 2.32922, 2.30915, 2.27777, 2.27490, 2.25982, 2.24156, 2.26349,
      2.21819, 2.20443, 2.20418, 2.18549, 2.17809, 2.12963, 2.13122, 2.04820,
      2.08244, 2.03037, 2.06164, 1.98691, 1.99777, 1.95559, 1.95005, 1.93777,
      1.89328, 1.86632},
     {24, 23, 22, 21, 20, 19, 19, 19, 19, 19, 19, 19, 19, 19, 19, 19, 19,
      20, 19, 19, 19, 19, 19, 19, 19, 19, 19, 19, 18, 18, 18, 17, 17, 17,
      17, 17, 17, 17, 17, 17, 17, 17, 17, 18, 17, 17, 17, 17, 17, 17}}};

models::Gpt gpt_by_rule() {
  models::Gpt model(models::GptConfig{
      .layers = 2, .width = 12, .heads = 3, .sequence = 7, .vocabulary = 11});
  const torch::NoGradGuard no_grad;
  double number = 0;
  for (auto& parameter : model->parameters()) {
    const auto index = torch::arange(parameter.numel(), torch::kDouble) * 0.7;
    parameter.copy_(((index + number++).sin() * 0.3).view(parameter.sizes()));
  }
  return model;
}

// This rank's rows of four.
torch::Tensor loss_by_rule(models::Gpt& model, int step, const World& world) {
  const auto ids =
      (torch::arange(4 * 7) * 5 + 3 + step).remainder(11).view({4, 7});
  const auto mine =
      ids.chunk(world.size())[static_cast<std::size_t>(world.rank())];
  return model->loss(mine, (mine * 3 + 1).remainder(11));
}

// Overflows are those of each rank's own gradients, before they are averaged.
TEST(GradScalerParity, T24LosesAsTorchDoesForFiftySteps) {
  for (const auto& expected : kRuns) {
    expect_all_ok(run_ranks(expected.ranks, [&](World world) {
      auto model = gpt_by_rule();
      auto fsdp = fully_shard(*model, world, in_fp16(ExchangeKind::kAuto));
      AdamW adamw(
          fsdp.named_parameters(),
          {.learning_rate = 5e-3, .weight_decay = 0.1});
      GradScaler scaler(
          fsdp.named_parameters(),
          {.init_scale = 16777216.0, .growth_interval = 12});
      for (int step = 0; step < 50; ++step) {
        const auto loss = loss_by_rule(model, step, world);
        scaler.scale(loss).backward();
        scaler.unscale();
        fsdp.clip_grad_norm(1.0);
        scaler.step(adamw);
        double mean = 0;
        for (const auto& row : world.all_gather({loss.item<double>()})) {
          mean += row[0] / world.size();
        }
        EXPECT_NEAR(mean, expected.losses[step], 1e-3) << "step " << step;
        EXPECT_EQ(scaler.get_scale(), std::ldexp(1.0, expected.scales[step]))
            << "step " << step;
        scaler.update();
        adamw.zero_grad();
      }
    }));
  }
}

// ---- the bits of training without a scaler ----

struct ScaledJob {
  int replicas = 1;
  bool muon = false;
  bool local_first = false;  // The first micro-batch of two under no_sync().
  std::optional<double> scale = std::nullopt;  // None: no scaler.
  FullyShardOptions shard;
};

std::vector<torch::Tensor> train_fp32(
    const World& world, const ScaledJob& job) {
  auto model = small_gpt({.tied = false});
  auto fsdp =
      fully_shard(*model, Mesh(world, {.replicate = job.replicas}), job.shard);
  const auto [matrices, rest] = split(
      fsdp.named_parameters(),
      job.muon ? std::vector<std::string>{"h.*.c_*.weight"}
               : std::vector<std::string>{});
  std::optional<Muon> muon;
  if (job.muon) {
    muon.emplace(matrices, MuonOptions{.learning_rate = 0.05});
  }
  AdamW adamw(rest, {.learning_rate = 0.05});
  std::optional<GradScaler> scaler;
  if (job.scale) {
    scaler.emplace(
        fsdp.named_parameters(),
        GradScalerOptions{
            .init_scale = *job.scale, .growth_interval = 2, .uses_fp16 = true});
  }
  for (int step = 0; step < 3; ++step) {
    for (int micro = 0; micro < 2; ++micro) {
      std::optional<NoSyncScope> local;
      if (job.local_first && micro == 0) {
        local.emplace(fsdp.no_sync());
      }
      const auto loss = token_loss(model, 2 * step + micro, world.rank());
      (scaler ? scaler->scale(loss) : loss).backward();
    }
    if (scaler) {
      scaler->unscale();
    }
    fsdp.clip_grad_norm(0.5);
    if (scaler) {
      EXPECT_TRUE(muon ? scaler->step(*muon, adamw) : scaler->step(adamw));
      scaler->update();
    } else {
      if (muon) {
        muon->step();
      }
      adamw.step();
    }
    adamw.zero_grad();
  }
  return full_parameters(*model, fsdp).values();
}

void expect_the_bits_without_a_scaler(const World& world, ScaledJob job) {
  const auto expected = train_fp32(world, job);
  job.scale = 65536.0;
  const auto found = train_fp32(world, job);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(torch::equal(found[i], expected[i])) << "parameter " << i;
  }
}

TEST(GradScalerBits, ClippingAndMicroBatchesSeeUnscaledGradients) {
  expect_all_ok(run_ranks(2, [](World world) {
    for (const auto exchange : kExchanges) {
      for (const bool local_first : {false, true}) {
        ScaledJob job;
        job.local_first = local_first;
        job.shard.exchange = exchange;
        expect_the_bits_without_a_scaler(world, job);
      }
    }
    ScaledJob whole;
    whole.shard.strategy = Strategy::kNoShard;
    expect_the_bits_without_a_scaler(world, whole);
  }));
}

TEST(GradScalerBits, MuonReadsUnscaledGradientsOfOtherRanks) {
  expect_all_ok(run_ranks(2, [](World world) {
    ScaledJob job;
    job.muon = true;
    job.shard.exchange = ExchangeKind::kSharedMemory;
    job.shard.share_gradients = true;
    expect_the_bits_without_a_scaler(world, job);
  }));
}

TEST(GradScalerBits, HybridMeshesOfFour) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const auto axes : {OptimizerAxes::kShard, OptimizerAxes::kBoth}) {
      ScaledJob job;
      job.replicas = 2;
      job.shard.optimizer_axes = axes;
      expect_the_bits_without_a_scaler(world, job);
    }
  }));
}

// ---- T24: one rank's overflow ----

torch::Tensor mlp_loss(IntegerMlp& model, const World& world, double factor) {
  const auto rows = integer_rows(0, world.rank(), 7).to(kHalf);
  return (model->forward(rows).to(torch::kFloat) * factor).mean();
}

// Overflows in the last rank's backward, or in its slices alone.
enum class Overflow { kBackward, kSlice };

void expect_all_skip(
    const World& world,
    FullyShardedDataParallel& fsdp,
    IntegerMlp& model,
    Overflow overflow) {
  const bool here = world.rank() == world.size() - 1;
  AdamW adamw(fsdp.named_parameters(), {.learning_rate = 0.1});
  GradScaler scaler(fsdp.named_parameters(), {.init_scale = 8.0});
  const auto before = full_parameters(*model, fsdp).values();
  const bool backward = overflow == Overflow::kBackward;
  scaler.scale(mlp_loss(model, world, backward && here ? 1e30 : 1.0))
      .backward();
  if (!backward && here) {
    fsdp.parameters().front().grad()[0] = kInf;
  }
  scaler.unscale();
  fsdp.clip_grad_norm(1.0);
  EXPECT_FALSE(scaler.step(adamw));
  scaler.update();
  adamw.zero_grad();
  EXPECT_EQ(scaler.get_scale(), 4.0);
  {  // Parameters count as published.
    const torch::NoGradGuard no_grad;
    (void)mlp_loss(model, world, 1.0);
  }
  const auto after = full_parameters(*model, fsdp).values();
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(torch::equal(before[i], after[i])) << "parameter " << i;
  }
  scaler.scale(mlp_loss(model, world, 1.0)).backward();
  EXPECT_TRUE(scaler.step(adamw));
  EXPECT_FALSE(torch::equal(
      before.back(), full_parameters(*model, fsdp).values().back()));
}

TEST(GradScalerSkips, T24OnEveryRankWhenOneOverflows) {
  expect_all_ok(run_ranks(3, [](World world) {
    for (const auto exchange : kExchanges) {
      for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
        for (const auto overflow : {Overflow::kBackward, Overflow::kSlice}) {
          if (strategy == Strategy::kNoShard && overflow == Overflow::kSlice) {
            continue;  // Every rank has all gradients there.
          }
          IntegerMlp model;
          auto options = in_fp16(exchange);
          options.strategy = strategy;
          auto fsdp = fully_shard(*model, world, options);
          expect_all_skip(world, fsdp, model, overflow);
        }
      }
    }
  }));
}

TEST(GradScalerSkips, T24OnEveryRankOfEveryMesh) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const int replicas : {1, 2, 4}) {
      for (const auto exchange : kExchanges) {
        for (const auto overflow : {Overflow::kBackward, Overflow::kSlice}) {
          if (replicas == 4 && overflow == Overflow::kSlice) {
            continue;
          }
          IntegerMlp model;
          auto fsdp = fully_shard(
              *model, Mesh(world, {.replicate = replicas}), in_fp16(exchange));
          expect_all_skip(world, fsdp, model, overflow);
        }
      }
    }
  }));
}

// Replicas have the same gradients, those of fp16 parameters.
TEST(GradScalerSkips, T24OnEveryReplica) {
  expect_all_ok(run_ranks(2, [](World world) {
    IntegerMlp model;
    model->to(kHalf);
    auto ddp = replicate(*model, world);
    torch::optim::SGD sgd(model->parameters(), 0.125);
    GradScaler scaler(ddp.named_parameters(), {.init_scale = 8.0});
    const auto before = model->third->bias.detach().clone();
    for (const bool overflows : {true, false}) {
      const bool here = overflows && world.rank() == 1;
      scaler.scale(mlp_loss(model, world, here ? 1e30 : 1.0)).backward();
      EXPECT_EQ(scaler.step(sgd), !overflows);
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), 4.0);
      EXPECT_EQ(
          model->third->bias.item<float>(),
          before.item<float>() - (overflows ? 0.0F : 0.125F));
      sgd.zero_grad();
    }
  }));
}

// ---- T22: what is lost on the way ----

// Each rank's gradient of `weight` is `mine`, in fp16.
torch::Tensor mean_of_fp16_gradients(
    const World& world,
    int replicas,
    const FullyShardOptions& options,
    float mine) {
  constexpr std::int64_t kInputs = 256;  // Every rank owns some.
  torch::nn::Linear model(torch::nn::LinearOptions(kInputs, 1).bias(false));
  torch::nn::init::ones_(model->weight);
  auto fsdp =
      fully_shard(*model, Mesh(world, {.replicate = replicas}), options);
  const auto rows = torch::ones({1, kInputs}, kHalf);
  (model->forward(rows).to(torch::kFloat) * mine).sum().backward();
  return fsdp.parameters().front().grad().clone();
}

TEST(Fp16Gradients, T22OwnersAddInFp32SoThatNeitherSumNorMeanIsOutOfRange) {
  constexpr float kLargest = 65504.0F;
  const float smallest = std::ldexp(1.0F, -24);
  expect_all_ok(run_ranks(4, [=](World world) {
    for (const auto exchange : kExchanges) {
      auto options = in_fp16(exchange);
      for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
        options.strategy = strategy;
        for (const float value : {kLargest, -kLargest, smallest}) {
          const auto mean = mean_of_fp16_gradients(world, 1, options, value);
          EXPECT_EQ(mean.scalar_type(), torch::kFloat);
          EXPECT_TRUE((mean == value).all().item<bool>()) << mean;
        }
        // Of one rank alone: a quarter of the smallest.
        const auto mean = mean_of_fp16_gradients(
            world, 1, options, world.rank() == 2 ? smallest : 0.0F);
        EXPECT_TRUE((mean == smallest / 4).all().item<bool>()) << mean;
      }
      // Means of a replica's ranks cross in fp16, divided by all ranks.
      options.strategy = Strategy::kFullShard;
      for (const float value : {kLargest, -kLargest, 2 * smallest}) {
        const auto mean = mean_of_fp16_gradients(world, 2, options, value);
        EXPECT_TRUE((mean == value).all().item<bool>()) << mean;
      }
      const auto overflown = mean_of_fp16_gradients(
          world, 2, options, world.rank() == 3 ? 1e6F : 1.0F);
      EXPECT_TRUE(overflown.isinf().all().item<bool>()) << overflown;
    }
  }));
}

// ---- refusals and checkpoints ----

TEST(GradScalerRefused, OnEveryRankWhereNothingIsInFp16) {
  expect_all_ok(run_ranks(3, [](World world) {
    for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
      IntegerMlp model;  // Smaller than what three ranks have slices of.
      auto options = in_fp16(ExchangeKind::kAuto);
      options.mixed_precision.param_dtype = dtype;
      auto fsdp = fully_shard(*model, world, options);
      EXPECT_THAT(
          error_of([&] { GradScaler(fsdp.named_parameters()); }),
          HasSubstr("expected parameters that are used in fp16"));
      options.mixed_precision.reduce_dtype = kHalf;
      IntegerMlp sent_in_fp16;
      auto other = fully_shard(*sent_in_fp16, world, options);
      EXPECT_EQ(GradScaler(other.named_parameters()).get_scale(), 65536.0);
    }
    world.barrier();
  }));
}

TEST(GradScalerRefused, OnEveryRankWithAnOptimizerInBackward) {
  expect_all_ok(run_ranks(2, [](World world) {
    IntegerMlp model;
    auto fsdp =
        fully_shard(*model, world, in_fp16(ExchangeKind::kSharedMemory));
    const GradScaler scaler(fsdp.named_parameters());
    const auto loss = mlp_loss(model, world, 1.0);
    {
      const AdamW adamw(fsdp.named_parameters(), {.in_backward = true});
      EXPECT_THAT(
          error_of([&] { (void)scaler.scale(loss); }),
          HasSubstr("an optimizer updates in backward"));
    }
    scaler.scale(loss).backward();

    IntegerMlp replica;
    auto ddp = replicate(*replica, world);
    const AdamW adamw(ddp.named_parameters(), {.in_backward = true});
    const GradScaler of_replica(ddp.named_parameters(), {.uses_fp16 = true});
    EXPECT_THAT(
        error_of([&] { (void)of_replica.scale(torch::ones({})); }),
        HasSubstr("an optimizer updates in backward"));
  }));
}

struct ScaledRun {
  explicit ScaledRun(const World& world)
      : model(gpt_by_rule()),
        fsdp(fully_shard(*model, world, in_fp16(ExchangeKind::kAuto))),
        adamw(fsdp.named_parameters(), {.learning_rate = 1e-2}),
        scaler(
            fsdp.named_parameters(),
            {.init_scale = 67108864.0, .growth_interval = 2}) {
    state.add(fsdp.named_parameters());
    state.add("adamw", adamw, fsdp.named_parameters());
    state.add("scaler", scaler.state());
  }
  void train(int first, int last, const World& world) {
    for (int step = first; step < last; ++step) {
      scaler.scale(loss_by_rule(model, step, world)).backward();
      skipped += scaler.step(adamw) ? 0 : 1;
      scaler.update();
      adamw.zero_grad();
    }
  }

  models::Gpt model;
  FullyShardedDataParallel fsdp;
  AdamW adamw;
  GradScaler scaler;
  CheckpointState state;
  int skipped = 0;
};

TEST(GradScalerState, ARunGoesOnFromACheckpointBitForBit) {
  const sherd::testing::ScratchFolder scratch;
  expect_all_ok(run_ranks(2, [&](World world) {
    const auto folder = scratch.path() + "/run";
    ScaledRun straight(world);
    straight.train(0, 11, world);
    EXPECT_GT(straight.skipped, 0);
    {
      ScaledRun first(world);
      first.train(0, 6, world);
      CheckpointSaver saver(world, folder);
      saver.save(6, first.state);
    }
    ScaledRun second(world);
    load_newest_checkpoint(world, folder, second.state);
    EXPECT_LT(second.scaler.get_scale(), 67108864.0);
    second.train(6, 11, world);
    EXPECT_EQ(second.scaler.get_scale(), straight.scaler.get_scale());
    const auto expected = full_parameters(*straight.model, straight.fsdp);
    const auto found = full_parameters(*second.model, second.fsdp);
    for (const auto& item : expected) {
      EXPECT_TRUE(torch::equal(found[item.key()], item.value())) << item.key();
    }
  }));
}

}  // namespace
}  // namespace sherd::test
