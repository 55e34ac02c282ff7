// SPDX-License-Identifier: Apache-2.0
//
// Communication hooks on devices: what they give on the CPU, in the streams of the exchange, without
// a wait of the host where the hook itself makes none, and errors that all ranks hear of.
#include <gmock/gmock.h>
#include <sherd/ddp/replicate.h>
#include "device/device_parity.h"
#include "support/error_of.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// fp16 has no room for small gradients: a mean is divided before the sum on devices, after it on the
// CPU.
constexpr double kOfHalf = 1e-3;

// Makes every call of a group, and sends a tensor of the host as well.
class EveryCall final : public CommHook {
 public:
  std::string name() const override { return "every call"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    const auto all = group.all_gather(bucket.gradients);
    auto largest = all[0].abs();
    for (const auto& one : all) {
      largest = largest.maximum(one.abs());
    }
    const auto neighbour = bucket.gradients.clone();
    group.all_reduce_mean(
        neighbour, {group.rank() / 2 * 2, group.rank() / 2 * 2 + 1});
    const auto on_host = torch::full({3}, group.rank() + 1.0);
    group.all_reduce_mean(on_host);
    if (bucket.cuts.empty()) {
      group.all_reduce_mean(bucket.gradients);
    } else {
      group.reduce_scatter_mean(bucket.gradients, bucket.cuts);
    }
    bucket.gradients.add_(largest, 0.01).add_(neighbour, 0.02);
    bucket.gradients.mul_(on_host[0].item<double>());
  }
  bool reduces_to_shards() const override { return true; }
};

struct HookUnderTest {
  const char* name;
  std::function<CommHookPtr()> make;
  bool remembers = false;  // More than a step.
  bool waits = false;      // The host, in the hook itself.
  double tolerance = 0;
};

std::vector<HookUnderTest> hooks_under_test() {
  const auto power_sgd_of = [](bool batched) {
    return power_sgd({.rank = 2, .start_step = 1, .batched = batched});
  };
  return {
      {.name = "mean", .make = [] { return all_reduce_mean(); }},
      {.name = "bf16", .make = [] { return compress(torch::kBFloat16); }},
      {.name = "fp16",
       .make = [] { return compress(torch::kHalf); },
       .tolerance = kOfHalf},
      {.name = "PowerSGD",
       .make = [=] { return power_sgd_of(false); },
       .remembers = true},
      {.name = "batched PowerSGD",
       .make = [=] { return power_sgd_of(true); },
       .remembers = true},
      {.name = "PowerSGD in bf16",
       .make = [=] { return compress(torch::kBFloat16, power_sgd_of(false)); },
       .remembers = true},
      {.name = "int8 by channel",
       .make = [] { return quantise(); },
       .remembers = true},
      {.name = "int8 by tensor",
       .make = [] { return quantise({.scale = QuantisationScale::kTensor}); }},
      {.name = "local SGD",
       .make =
           [] { return post_local_sgd({.start_step = 2, .group_size = 2}); }},
      {.name = "every call",
       .make = [] { return std::make_shared<EveryCall>(); },
       .waits = true}};
}

// Its gradients come in another order than that of its parameters, backwards, so that buckets
// change after the first backward.
struct OutOfOrderImpl : torch::nn::Module {
  torch::nn::Linear third{nullptr}, first{nullptr}, second{nullptr};
  OutOfOrderImpl() {
    third = register_module("third", torch::nn::Linear(5, 1));
    first = register_module("first", torch::nn::Linear(16, 16));
    second = register_module("second", torch::nn::Linear(16, 5));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::arange(parameter.numel(), torch::kFloat)
                          .mul(1.7)
                          .sin()
                          .mul(0.4)
                          .view(parameter.sizes()));
    }
  }
  torch::Tensor loss(const torch::Tensor& x) {
    const auto y = third(torch::tanh(second(torch::tanh(first(x)))));
    return (y - x.sum(1, true)).square().mean();
  }
};
TORCH_MODULE(OutOfOrder);

// Several buckets.
class HookedReplica {
 public:
  HookedReplica(const World& world, c10::Device device, CommHookPtr hook)
      : device_(device), rank_(world.rank()) {
    model->to(device);
    ReplicateOptions options;
    options.bucket_bytes = 512;
    options.first_bucket_bytes = 64;
    options.hook = std::move(hook);
    ddp.emplace(replicate(*model, world, options));
    for (int batch = 0; batch < 4; ++batch) {
      batches_.push_back(batch_on(device_, batch, rank_));
    }
  }

  torch::Tensor step(int number) {
    const auto loss =
        model->loss(batches_[static_cast<std::size_t>(number % 4)]);
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : model->parameters()) {
      if (parameter.grad().defined()) {
        parameter.sub_(parameter.grad(), 0.05);
        parameter.mutable_grad().zero_();
      }
    }
    return loss.detach();
  }

 private:
  const c10::Device device_;
  const int rank_;
  std::vector<torch::Tensor> batches_;

 public:
  OutOfOrder model;
  std::optional<DistributedDataParallel> ddp;
};

Values after_steps(HookedReplica& replica, int begin, int end) {
  Values values;
  for (int step = begin; step < end; ++step) {
    values.push_back(replica.step(step).cpu());
  }
  const auto parameters = values_of(replica.model->parameters());
  values.insert(values.end(), parameters.begin(), parameters.end());
  return values;
}

TEST(DeviceHooks, TrainReplicasAsOnTheCpu) {
  for (const auto& hook : hooks_under_test()) {
    for (const int ranks : {2, 4}) {
      SCOPED_TRACE(::testing::Message() << hook.name << " on " << ranks);
      expect_as_on_the_cpu(
          ranks,
          [&](const World& world, c10::Device device) {
            HookedReplica replica(world, device, hook.make());
            auto values = after_steps(replica, 0, 4);
            EXPECT_EQ(replica.ddp->report().bucket_version, 1);
            replica.ddp->average_parameters();
            const auto averaged = values_of(replica.model->parameters());
            values.insert(values.end(), averaged.begin(), averaged.end());
            return values;
          },
          hook.tolerance);
    }
  }
}

TEST(DeviceHooks, MakeTheHostNeitherWaitNorAllocate) {
  for (const auto& hook : hooks_under_test()) {
    if (hook.waits) {
      continue;
    }
    SCOPED_TRACE(hook.name);
    run_device_ranks(4, [&](const DeviceRank& self) {
      HookedReplica replica(self.world, self.device, hook.make());
      for (int step = 0; step < 5; ++step) {
        replica.step(step);
      }
      replica.ddp->synchronize();
      const auto before = host_synchronisations(self.device);
      torch::Tensor loss;
      {
        const CaptureScope capture(self.device);
        loss = replica.step(5);
      }
      EXPECT_EQ(host_synchronisations(self.device), before);
      replica.ddp->synchronize();
    });
  }
}

TEST(DeviceHooks, GoOnWithWhatAnotherHandleRemembered) {
  for (const auto& hook : hooks_under_test()) {
    if (!hook.remembers) {
      continue;
    }
    SCOPED_TRACE(hook.name);
    expect_as_on_the_cpu(2, [&](const World& world, c10::Device device) {
      const auto first = hook.make();
      HookedReplica before(world, device, first);
      (void)after_steps(before, 0, 3);
      const auto second = hook.make();
      HookedReplica replica(world, device, second);
      second->load(first->state());
      return after_steps(replica, 3, 6);
    });
  }
}

TEST(DeviceHooks, CanBeReplacedBetweenSteps) {
  expect_as_on_the_cpu(2, [&](const World& world, c10::Device device) {
    HookedReplica replica(world, device, quantise());
    auto values = after_steps(replica, 0, 2);
    for (const auto& hook :
         {power_sgd({.start_step = 0}), CommHookPtr(), quantise()}) {
      replica.ddp->set_hook(hook);
      const auto more = after_steps(replica, 2, 4);
      values.insert(values.end(), more.begin(), more.end());
    }
    return values;
  });
}

// A step that has to be skipped leaves nothing behind.
TEST(DeviceHooks, KeepNothingOfAStepThatIsNotFinite) {
  for (const auto& hook : hooks_under_test()) {
    if (!hook.remembers) {
      continue;
    }
    SCOPED_TRACE(hook.name);
    expect_as_on_the_cpu(2, [&](const World& world, c10::Device device) {
      HookedReplica replica(world, device, hook.make());
      for (int step = 0; step < 6; ++step) {
        auto loss = replica.model->loss(batch_on(device, step, world.rank()));
        if (step == 3 && world.rank() == 1) {
          loss = loss * std::numeric_limits<float>::infinity();
        }
        loss.backward();
        const torch::NoGradGuard no_grad;
        for (const auto& parameter : replica.model->parameters()) {
          if (parameter.grad().defined() && step != 3) {
            parameter.sub_(parameter.grad(), 0.05);
          }
          parameter.mutable_grad().reset();
        }
      }
      const auto values = values_of(replica.model->parameters());
      EXPECT_TRUE(values[0].isfinite().all().item<bool>());
      return values;
    });
  }
}

// In the second backward, after it has reduced something.
class FailsHere final : public CommHook {
 public:
  explicit FailsHere(bool here) : here_(here) {}
  std::string name() const override { return "fails somewhere"; }
  void reduce(GradientBucket& bucket, HookGroup& group) override {
    TORCH_CHECK(
        !here_ || bucket.step < 1 || bucket.index < 1, "no reduction today");
    all_reduce_mean()->reduce(bucket, group);
    group.all_reduce_mean(
        bucket.gradients, {group.rank() / 2 * 2, group.rank() / 2 * 2 + 1});
  }
  bool reduces_to_shards() const override { return true; }

 private:
  const bool here_;
};

void expect_failure_of_rank_2(
    const DeviceRank& self, const std::function<void()>& backward) {
  EXPECT_THAT(
      error_of(backward),
      AllOf(
          HasSubstr("no reduction today"),
          HasSubstr(
              self.world.rank() == 2 ? "the hook that reduces" : "rank 2")));
}

TEST(DeviceHooks, AnExceptionOnOneRankIsAnErrorOfAll) {
  run_device_ranks(
      4,
      [](const DeviceRank& self) {
        HookedReplica replica(
            self.world, self.device,
            std::make_shared<FailsHere>(self.world.rank() == 2));
        replica.step(0);
        expect_failure_of_rank_2(self, [&] { replica.step(1); });
      },
      {.disorderly = true});
}

TEST(DeviceHooks, AnExceptionWithShardsOnOneRankIsAnErrorOfAll) {
  for (const auto strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    run_device_ranks(
        4,
        [&](const DeviceRank& self) {
          auto options = layers_by_messages();
          options.strategy = strategy;
          options.hook = std::make_shared<FailsHere>(self.world.rank() == 2);
          auto model = mlp_on(self.device);
          auto fsdp = fully_shard(*model, self.world, options);
          const auto x = batch_on(self.device, 0, self.world.rank());
          loss_of(model, x).backward();
          expect_failure_of_rank_2(self, [&] { loss_of(model, x).backward(); });
        },
        {.disorderly = true});
  }
}

// Calls are compared by messages before they reach the device.
TEST(DeviceHooks, CallsThatDifferAreAnErrorOfAllWhereTheyAreCompared) {
  class DiffersByRank final : public CommHook {
   public:
    std::string name() const override { return "differs by rank"; }
    void reduce(GradientBucket& bucket, HookGroup& group) override {
      group.all_reduce_mean(
          group.rank() == 0 ? bucket.gradients
                            : bucket.gradients.to(torch::kBFloat16));
    }
  };
  ASSERT_EQ(setenv("SHERD_DEBUG", "detail", /*overwrite=*/1), 0);
  run_device_ranks(
      2,
      [](const DeviceRank& self) {
        HookedReplica replica(
            self.world, self.device, std::make_shared<DiffersByRank>());
        EXPECT_THAT(
            error_of([&] { replica.step(0); }),
            AllOf(
                HasSubstr("all_reduce_mean of"), HasSubstr("BFloat16"),
                HasSubstr("a hook's calls differ")));
      },
      {.disorderly = true});
  ASSERT_EQ(unsetenv("SHERD_DEBUG"), 0);
}

TEST(DeviceHooks, HooksThatDifferAreAnErrorOfAll) {
  run_device_ranks(
      2,
      [](const DeviceRank& self) {
        HookedReplica replica(self.world, self.device, nullptr);
        replica.step(0);
        const auto hook = compress(torch::kBFloat16);
        EXPECT_THAT(
            error_of([&] {
              replica.ddp->set_hook(self.world.rank() == 1 ? hook : nullptr);
            }),
            AllOf(
                HasSubstr("rank 0 exchanges by collectives of checking"),
                HasSubstr("devices, hook compress(BFloat16")));
      },
      {.disorderly = true});
}

TEST(DeviceHooks, ATensorOfAnotherDeviceIsAnErrorThatNamesBoth) {
  class OnAnotherDevice final : public CommHook {
   public:
    std::string name() const override { return "on another device"; }
    void reduce(GradientBucket& bucket, HookGroup& group) override {
      group.all_reduce_mean(torch::ones(
          {2}, checking_device(bucket.gradients.device().index() + 4)));
    }
  };
  run_device_ranks(
      2,
      [](const DeviceRank& self) {
        HookedReplica replica(
            self.world, self.device, std::make_shared<OnAnotherDevice>());
        EXPECT_THAT(
            error_of([&] { replica.step(0); }),
            HasSubstr("contiguous CPU tensor or one on checking:"));
      },
      {.disorderly = true});
}

// ---- buffers ----

struct CountingImpl : torch::nn::Module {
  torch::nn::Linear layer{nullptr};
  torch::Tensor mean;
  CountingImpl() {
    layer = register_module("layer", torch::nn::Linear(16, 3));
    mean = register_buffer("mean", torch::zeros({16}));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::arange(parameter.numel(), torch::kFloat)
                          .mul(0.3)
                          .sin()
                          .view(parameter.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    mean.mul_(0.5).add_(x.detach().mean(0));
    return layer(x - mean);
  }
};
TORCH_MODULE(Counting);

ReplicateOptions with_mean_of_buffers() {
  ReplicateOptions options;
  options.exchange = ExchangeKind::kCollective;
  options.buffer_hook = [](const NamedTensors& buffers, HookGroup& group) {
    for (const auto& [name, tensor] : buffers) {
      group.all_reduce_mean(tensor);
    }
  };
  return options;
}

TEST(DeviceHooks, ABufferHookGivesWhatItGivesOnTheCpu) {
  for (const int ranks : {2, 4}) {
    expect_as_on_the_cpu(ranks, [](const World& world, c10::Device device) {
      Counting model;
      model->to(device);
      auto ddp = replicate(*model, world, with_mean_of_buffers());
      Values values;
      for (int step = 0; step < 3; ++step) {
        model->forward(batch_on(device, step, world.rank()))
            .square()
            .sum()
            .backward();
        values.push_back(model->mean.cpu().clone());
        values.push_back(model->layer->weight.grad().cpu().clone());
      }
      return values;
    });
  }
}

TEST(DeviceHooks, ABufferHookMakesTheHostNotWait) {
  run_device_ranks(2, [](const DeviceRank& self) {
    Counting model;
    model->to(self.device);
    auto ddp = replicate(*model, self.world, with_mean_of_buffers());
    const auto x = batch_on(self.device, 0, self.world.rank());
    const auto step = [&] {
      model->forward(x).square().sum().backward();
      model->layer->zero_grad();
    };
    step();
    step();
    const auto before = host_synchronisations(self.device);
    step();
    EXPECT_EQ(host_synchronisations(self.device), before);
  });
}

TEST(DeviceHooks, ABufferHookThatFailsOnOneRankIsAnErrorOfAll) {
  run_device_ranks(
      2,
      [](const DeviceRank& self) {
        Counting model;
        model->to(self.device);
        ReplicateOptions options;
        options.buffer_hook = [&](const NamedTensors& buffers,
                                  HookGroup& group) {
          TORCH_CHECK(group.rank() == 0, "no buffers today");
          group.all_reduce_mean(buffers[0].second);
          (void)buffers[0].second.cpu();
        };
        auto ddp = replicate(*model, self.world, options);
        const auto x = batch_on(self.device, 0, self.world.rank());
        EXPECT_NE(
            error_of([&] { model->forward(x).square().sum().backward(); }),
            "no error");
      },
      {.deadline = std::chrono::seconds(4), .disorderly = true});
}

}  // namespace
}  // namespace sherd::test
