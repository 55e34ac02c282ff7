// SPDX-License-Identifier: Apache-2.0
//
// Gather hooks on devices: the bits that they give on the CPU, in the stream of gathers, and errors
// that all ranks hear of.
#include <gmock/gmock.h>
#include <sherd/fsdp/gather_hook.h>
#include "device/device_parity.h"
#include "support/error_of.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

torch::Tensor through_hook(
    GatherHook& hook, const torch::Tensor& shard, torch::ScalarType dtype) {
  const auto sent = torch::zeros(
      {hook.sent_bytes(shard.numel(), dtype)},
      shard.options().dtype(torch::kByte));
  hook.pre_gather({}, shard, dtype, sent);
  const auto part = torch::zeros({shard.numel()}, shard.options().dtype(dtype));
  hook.post_gather({}, sent, part);
  return part.cpu();
}

TEST(DeviceGatherHooks, QuantisedShardsHaveTheBitsOfTheCpu) {
  const auto device = checking_device();
  for (const std::int64_t block : {1, 7, 256}) {
    const auto hook = quantise_gathers({.block = block});
    for (const std::int64_t numel : {0, 1, 255, 256, 257, 40'001}) {
      auto shard = (torch::arange(numel) * 0.731).remainder(2.3).sub(1.1) *
          torch::pow(10.0, torch::arange(numel).remainder(3));
      if (numel > 100) {
        shard.narrow(0, 20, 9).zero_();
        shard[50] = std::numeric_limits<float>::infinity();
        shard[90] = std::numeric_limits<float>::quiet_NaN();
      }
      for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
        SCOPED_TRACE(
            ::testing::Message()
            << hook->name() << ", " << numel << " of " << c10::toString(dtype));
        const auto expected = through_hook(*hook, shard, dtype);
        const auto found = through_hook(*hook, shard.to(device), dtype);
        EXPECT_TRUE(torch::equal(found.isnan(), expected.isnan()));
        EXPECT_TRUE(torch::equal(found.nan_to_num(), expected.nan_to_num()));
      }
    }
  }
  EXPECT_THAT(take_faults(device), ::testing::IsEmpty());
}

// Makes it visible whose shard each part is.
class ScalesByOwner final : public GatherHook {
 public:
  std::string name() const override { return "scales by owner"; }
  void post_gather(
      const GatheredShard& which,
      const at::Tensor& sent,
      const at::Tensor& part) override {
    GatherHook::post_gather(which, sent, part);
    part.mul_(1 + 0.25 * which.owner);
  }
};

struct GatherRecipe {
  const char* name = "";
  std::function<GatherHookPtr()> make_hook;
  FullyShardOptions options = layers_by_messages();
  int replicas = 1;
};

std::vector<GatherRecipe> gather_recipes() {
  const auto quantised = [] { return quantise_gathers({.block = 7}); };
  std::vector<GatherRecipe> all;
  all.push_back({.name = "int8", .make_hook = quantised});
  all.push_back({.name = "one of one's own", .make_hook = [] {
                   return std::make_shared<ScalesByOwner>();
                 }});
  all.push_back({.name = "budget", .make_hook = quantised});
  all.back().options.budget_bytes = 2048;
  all.back().options.prefetch_visits = 2;
  all.push_back({.name = "mixed precision, bf16", .make_hook = quantised});
  all.back().options.mixed_precision.param_dtype = torch::kBFloat16;
  all.back().options.hook = compress(torch::kBFloat16);
  all.push_back({.name = "secondary shards", .make_hook = quantised});
  all.back().options.secondary_ranks = 2;
  all.push_back({.name = "replicas", .make_hook = quantised, .replicas = 2});
  return all;
}

class GatheringTrainer {
 public:
  GatheringTrainer(
      const World& world, c10::Device device, const GatherRecipe& recipe)
      : model(mlp_on(device)) {
    auto options = recipe.options;
    options.gather_hook = recipe.make_hook();
    fsdp.emplace(fully_shard(
        *model, Mesh(world, {.replicate = recipe.replicas}), options));
    for (int batch = 0; batch < 4; ++batch) {
      batches_.push_back(batch_on(device, batch, world.rank()));
    }
  }

  torch::Tensor step(int number) {
    const auto loss =
        loss_of(model, batches_[static_cast<std::size_t>(number % 4)]);
    loss.backward();
    descend_by_hand(*fsdp);
    return loss.detach();
  }

 private:
  std::vector<torch::Tensor> batches_;

 public:
  DeviceMlp model;
  std::optional<FullyShardedDataParallel> fsdp;
};

TEST(DeviceGatherHooks, TrainToTheBitsOfTheCpu) {
  for (const auto& recipe : gather_recipes()) {
    for (const int ranks : {2, 4}) {
      if (recipe.replicas > 1 && ranks < 4) {
        continue;
      }
      SCOPED_TRACE(::testing::Message() << recipe.name << " on " << ranks);
      expect_as_on_the_cpu(ranks, [&](const World& world, c10::Device device) {
        GatheringTrainer trainer(world, device, recipe);
        Values values;
        for (int step = 0; step < 4; ++step) {
          values.push_back(trainer.step(step).cpu());
        }
        const auto whole = whole_parameters_of(*trainer.fsdp, *trainer.model);
        values.insert(values.end(), whole.begin(), whole.end());
        return values;
      });
    }
  }
}

TEST(DeviceGatherHooks, APlannedStepMakesTheHostNeitherWaitNorAllocate) {
  for (const auto& recipe : gather_recipes()) {
    SCOPED_TRACE(recipe.name);
    run_device_ranks(4, [&](const DeviceRank& self) {
      GatheringTrainer trainer(self.world, self.device, recipe);
      for (int step = 0; step < 4; ++step) {
        trainer.step(step);
      }
      trainer.fsdp->synchronize();
      const auto before = host_synchronisations(self.device);
      torch::Tensor loss;
      {
        const CaptureScope capture(self.device);
        loss = trainer.step(4);
      }
      EXPECT_EQ(host_synchronisations(self.device), before);
      trainer.fsdp->synchronize();
    });
  }
}

TEST(DeviceGatherHooks, SendAQuarterOfTheBytes) {
  run_device_ranks(2, [&](const DeviceRank& self) {
    const auto sent_with = [&](const GatherHookPtr& hook) {
      FullyShardOptions options;
      options.units = units::none();
      options.gather_hook = hook;
      torch::nn::Linear model(64, 256);
      torch::nn::init::ones_(model->weight);
      torch::nn::init::zeros_(model->bias);
      model->to(self.device);
      auto fsdp = fully_shard(*model, self.world, options);
      (void)model->forward(torch::ones({1, 64}, self.device));
      return fsdp.report().gather_sent_bytes;
    };
    const auto in_fp32 = sent_with(nullptr);
    const auto in_int8 = sent_with(quantise_gathers());
    EXPECT_GT(in_int8, in_fp32 / 4);
    EXPECT_LT(in_int8, in_fp32 / 4 + in_fp32 / 32);
  });
}

class FailsToGather final : public GatherHook {
 public:
  FailsToGather(bool here, bool when_sent)
      : here_(here), when_sent_(when_sent) {}
  std::string name() const override { return "fails somewhere"; }
  void pre_gather(
      const GatheredShard& which,
      const at::Tensor& shard,
      at::ScalarType dtype,
      const at::Tensor& sent) override {
    TORCH_CHECK(!here_ || !when_sent_ || which.unit != "second", "not today");
    GatherHook::pre_gather(which, shard, dtype, sent);
  }
  void post_gather(
      const GatheredShard& which,
      const at::Tensor& sent,
      const at::Tensor& part) override {
    TORCH_CHECK(!here_ || when_sent_ || which.unit != "second", "not today");
    GatherHook::post_gather(which, sent, part);
  }

 private:
  const bool here_;
  const bool when_sent_;
};

TEST(DeviceGatherHooks, AnExceptionOnOneRankIsAnErrorOfAll) {
  for (const bool when_sent : {true, false}) {
    run_device_ranks(
        4,
        [&](const DeviceRank& self) {
          auto options = layers_by_messages();
          options.gather_hook = std::make_shared<FailsToGather>(
              self.world.rank() == 1, when_sent);
          auto model = mlp_on(self.device);
          auto fsdp = fully_shard(*model, self.world, options);
          const auto x = batch_on(self.device, 0, self.world.rank());
          EXPECT_THAT(
              error_of([&] { loss_of(model, x).backward(); }),
              AllOf(
                  HasSubstr("not today"), HasSubstr("unit second"),
                  HasSubstr(
                      self.world.rank() == 1 ? "of gathers failed"
                                             : "rank 1")));
        },
        {.disorderly = true});
  }
}

}  // namespace
}  // namespace sherd::test
