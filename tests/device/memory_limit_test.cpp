// SPDX-License-Identifier: Apache-2.0
//
// FullyShardOptions::memory_bytes on devices: the limit is for what LibTorch's allocator takes of the
// device, and numbers are those without it, and those of the CPU.
#include <algorithm>
#include <optional>
#include <vector>
#include <gmock/gmock.h>
#include "device/device_parity.h"
#include "device/memory_use.h"
#include "fsdp/memory_meter.h"
#include "support/error_of.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMuch = std::int64_t{1} << 40;
constexpr int kLayers = 4;
constexpr int kSteps = 8;  // Three of them within the limit.
constexpr std::int64_t kWidth = 32;
constexpr std::int64_t kScales = 32;

// Keeps 4 MiB of activations for a batch, and 0.125 MiB of input. A matrix product that wide would take
// most of this test's time in bfloat16.
struct WideLayerImpl : torch::nn::Module {
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::Tensor scales;
  WideLayerImpl() {
    up = register_module("up", torch::nn::Linear(kWidth, kWidth));
    scales = register_parameter("scales", torch::empty({kScales}));
    down = register_module("down", torch::nn::Linear(kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return down(torch::tanh(up(x).unsqueeze(-1) * scales).mean(-1));
  }
};
TORCH_MODULE(WideLayer);

struct WideModelImpl : torch::nn::Module {
  std::vector<WideLayer> layers;
  std::optional<ActivationCheckpointing> run;
  WideModelImpl() {
    torch::nn::ModuleList list;
    for (int i = 0; i < kLayers; ++i) {
      layers.emplace_back();
      list->push_back(layers.back());
    }
    register_module("layers", list);
    fill_parameters(*this, 0.1);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (const auto& layer : layers) {
      const auto one = [impl = layer.ptr()](const torch::Tensor& input) {
        return impl->forward(input);
      };
      x = x + (run ? (*run)(*layer, one, x) : one(x));
    }
    return x;
  }
};
TORCH_MODULE(WideModel);

torch::Tensor wide_batch(c10::Device device, int step, int rank) {
  return torch::arange(1024 * kWidth, torch::kFloat)
      .mul(0.37)
      .add(10 * step + rank)
      .cos()
      .view({1024, kWidth})
      .to(device);
}

struct Limited {
  std::optional<std::int64_t> bytes = std::nullopt;
  FullyShardOptions options = {.exchange = ExchangeKind::kCollective};
  int replicas = 1;
};

struct LimitedRun {
  Values losses;
  ShardReport report;
  std::int64_t peak_bytes = 0;  // Of the device, since the decision.
};

FullyShardedDataParallel shard_within(
    WideModel& model, const World& world, const Limited& limited) {
  auto options = limited.options;
  options.memory_bytes = limited.bytes;
  if (limited.bytes) {
    model->run.emplace(*model);
    options.checkpointing = model->run;
  }
  return fully_shard(
      *model, Mesh(world, {.replicate = limited.replicas}), options);
}

LimitedRun train_within(
    const World& world, c10::Device device, const Limited& limited) {
  WideModel model;
  model->to(device);
  auto fsdp = shard_within(model, world, limited);
  LimitedRun run;
  for (int step = 0; step < kSteps; ++step) {
    {
      const auto loss = model->forward(wide_batch(device, step, world.rank()))
                            .square()
                            .mean();
      loss.backward();
      run.losses.push_back(loss.detach().cpu());
    }
    descend_by_hand(fsdp);
  }
  run.report = fsdp.report();
  if (const auto use = device::memory_use(device)) {
    run.peak_bytes = use->reserved_peak;
  }
  return run;
}

// A limit in the middle of what is possible, and what a step takes with it.
void expect_limit_kept(const DeviceRank& self, Limited limited) {
  const auto plain = train_within(self.world, self.device, limited);
  const auto on_the_cpu = train_within(self.world, c10::kCPU, limited);
  limited.bytes = kMuch;
  const auto ample = train_within(self.world, self.device, limited);
  ASSERT_TRUE(ample.report.memory.decided);
  EXPECT_EQ(ample.report.memory.regions, kLayers);
  EXPECT_EQ(ample.report.memory.recomputed, 0);
  const auto& choices = ample.report.memory.choices;
  ASSERT_GE(choices.size(), 2U);
  EXPECT_GE(choices.front().recomputed, kLayers - 1);
  EXPECT_EQ(choices.back().recomputed, 0);
  const auto middle =
      (choices.front().limit_bytes + choices.back().limit_bytes) / 2;
  EXPECT_GT(ample.peak_bytes, middle);

  limited.bytes = middle;
  const auto within = train_within(self.world, self.device, limited);
  const auto& memory = within.report.memory;
  EXPECT_TRUE(memory.decided);
  EXPECT_GT(memory.recomputed, 0);
  EXPECT_LT(memory.recomputed, kLayers);
  EXPECT_GT(memory.step_s, 0);
  EXPECT_LE(memory.peak_bytes, middle);
  EXPECT_LE(within.peak_bytes, middle) << suggest(ample.report);
  for (const auto* other : {&on_the_cpu, &ample, &within}) {
    expect_equal_values({other->losses}, {plain.losses});
  }
}

TEST(DeviceMemoryLimit, IsKeptWithTheBitsOfTheCpu) {
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    run_device_ranks(
        ranks, [](const DeviceRank& self) { expect_limit_kept(self, {}); });
  }
}

// One rank has an engine with units only if parameters are cast.
TEST(DeviceMemoryLimit, IsKeptInMixedPrecision) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    run_device_ranks(ranks, [](const DeviceRank& self) {
      Limited limited;
      limited.options.mixed_precision.param_dtype = torch::kBFloat16;
      limited.options.mixed_precision.reduce_dtype = torch::kFloat;
      expect_limit_kept(self, limited);
    });
  }
}

TEST(DeviceMemoryLimit, IsKeptBesideReplicasAndWithShardsOnTheHost) {
  run_device_ranks(2, [](const DeviceRank& self) {
    Limited offloaded;
    offloaded.options.cpu_offload = true;
    expect_limit_kept(self, offloaded);
    offloaded.replicas = 2;
    expect_limit_kept(self, offloaded);
  });
}

// Its allocator has one peak for everybody.
TEST(DeviceMemoryLimit, AnotherModelOfTheDeviceLosesNoPeak) {
  const auto device = checking_device();
  const auto first = fsdp::memory_meter_of(device);
  first->start();
  const auto before = first->total_bytes();
  constexpr std::int64_t kBytes = 1 << 20;
  (void)torch::zeros({kBytes}, torch::dtype(torch::kByte).device(device));
  const auto second = fsdp::memory_meter_of(device);
  second->start();
  EXPECT_GE(first->total_bytes_peak(), before + kBytes);
  second->stop();
  first->stop();
}

TEST(DeviceMemoryLimit, BelowWhatADeviceHasIsRefusedOnEveryRank) {
  for (const int ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    run_device_ranks(
        ranks,
        [](const DeviceRank& self) {
          WideModel model;
          model->to(self.device);
          const auto before = values_of(model->parameters());
          EXPECT_THAT(
              error_of(
                  [&] { (void)shard_within(model, self.world, {.bytes = 1}); }),
              HasSubstr("a memory limit of 1 bytes is below its floor"));
          expect_equal_values({values_of(model->parameters())}, {before});
        },
        {.disorderly = true});
  }
}

TEST(DeviceMemoryLimit, ThatAStepCannotKeepIsAnErrorOfEveryRankWithTheFloor) {
  run_device_ranks(
      2,
      [](const DeviceRank& self) {
        // Room for the model, and not for what one region computes.
        EXPECT_THAT(
            error_of([&] {
              const auto use = device::memory_use(self.device).value();
              const auto most =
                  self.world.all_gather({static_cast<double>(use.in_use)});
              (void)train_within(
                  self.world, self.device,
                  {.bytes = static_cast<std::int64_t>(
                                std::max(most[0][0], most[1][0])) +
                       (std::int64_t{4} << 20)});
            }),
            HasSubstr("is below its floor of"));
      },
      {.disorderly = true});
}

}  // namespace
}  // namespace sherd::test
