// SPDX-License-Identifier: Apache-2.0
//
// What stands beside an engine, on devices: batch norms over ranks, the scaler of gradients,
// optimizers, join scopes, checkpointed activations and frozen parameters give what they give on the
// CPU.
#include <array>
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <sherd/autograd/checkpoint.h>
#include <sherd/ddp/replicate.h>
#include <sherd/ddp/sync_batch_norm.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/grad_scaler.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/sgd.h>
#include "device/device_parity.h"
#include "device/memory_use.h"
#include "support/error_of.h"

namespace sherd::test {
namespace {

// AdamW updates slices that are neighbours in one kernel on the CPU, whose remainders may be rounded
// otherwise.
constexpr double kOfNeighbours = 1e-5;

ReplicateOptions by_messages() {
  ReplicateOptions options;
  options.bucket_bytes = 512;
  options.exchange = ExchangeKind::kCollective;
  return options;
}

// ---- batch norms ----

struct NormedImpl : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  SyncBatchNorm norm{nullptr};
  NormedImpl() {
    in = register_module("in", torch::nn::Linear(16, 6));
    norm =
        register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(6)));
    out = register_module("out", torch::nn::Linear(6, 1));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::arange(parameter.numel(), torch::kFloat)
                          .mul(0.9)
                          .sin()
                          .view(parameter.sizes()));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::tanh(norm(in(x))));
  }
};
TORCH_MODULE(Normed);

TEST(DeviceSyncBatchNorm, NormalisesOverRanksAsOnTheCpu) {
  expect_as_on_the_cpu(2, [](const World& world, c10::Device device) {
    Normed model;
    model->to(device);
    synchronise_batch_norm(*model, world);
    auto ddp = replicate(*model, world, by_messages());
    Sgd sgd(ddp.named_parameters(), {.learning_rate = 0.1});
    Values values;
    for (int step = 0; step < 3; ++step) {
      auto x = batch_on(device, step, world.rank());
      const auto rows = 1 + (step + world.rank()) % 2;
      const auto loss = model->forward(x.narrow(0, 0, rows)).square().mean();
      loss.backward();
      values.push_back(loss.detach().cpu());
      sgd.step();
      sgd.zero_grad();
    }
    for (const auto& each : {model->parameters(), model->buffers()}) {
      const auto more = values_of(each);
      values.insert(values.end(), more.begin(), more.end());
    }
    return values;
  });
}

// ---- sparse gradients ----

struct EmbeddedImpl : torch::nn::Module {
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear out{nullptr};
  EmbeddedImpl() {
    words = register_module(
        "words",
        torch::nn::Embedding(torch::nn::EmbeddingOptions(12, 4).sparse(true)));
    out = register_module("out", torch::nn::Linear(4, 1));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(torch::arange(parameter.numel(), torch::kFloat)
                          .mul(0.9)
                          .sin()
                          .view(parameter.sizes()));
    }
  }
  torch::Tensor loss(const torch::Tensor& ids) {
    return out(torch::tanh(words(ids))).square().mean();
  }
};
TORCH_MODULE(Embedded);

// Ranks have some rows in common, and rank 1 has none in the second step.
TEST(DeviceSparseGradients, AreSummedAsOnTheCpu) {
  for (const int ranks : {2, 4}) {
    expect_as_on_the_cpu(ranks, [](const World& world, c10::Device device) {
      Embedded model;
      model->to(device);
      auto ddp = replicate(*model, world, by_messages());
      Values values;
      for (int step = 0; step < 3; ++step) {
        const auto ids =
            torch::arange(6, torch::kLong)
                .mul(world.rank() + 1)
                .add(step)
                .remainder(12)
                .narrow(0, 0, step == 1 && world.rank() == 1 ? 0 : 6)
                .to(device);
        auto loss = ids.numel() > 0
            ? model->loss(ids)
            : model->out(torch::ones({1, 4}, device)).square().mean();
        loss.backward();
        values.push_back(model->out->weight.grad().cpu().clone());
        const auto& grad = model->words->weight.grad();
        EXPECT_TRUE(grad.is_sparse() && grad.is_coalesced());
        EXPECT_EQ(grad.device(), model->words->weight.device());
        values.push_back(grad.indices().cpu());
        values.push_back(grad.values().cpu());
        // Plain gradient descent, row by row.
        const torch::NoGradGuard no_grad;
        model->words->weight.index_add_(
            0, grad.indices()[0], grad.values(), -0.1);
        model->words->weight.mutable_grad().reset();
        model->out->zero_grad();
      }
      const auto parameters = values_of(model->parameters());
      values.insert(values.end(), parameters.begin(), parameters.end());
      return values;
    });
  }
}

// ---- the scaler ----

// In the third step one rank alone has gradients that fp16 cannot hold.
Values scaled_training(const World& world, c10::Device device, bool sharded) {
  auto model = mlp_on(device);
  std::optional<FullyShardedDataParallel> fsdp;
  std::optional<DistributedDataParallel> ddp;
  if (sharded) {
    auto options = layers_by_messages();
    options.mixed_precision.param_dtype = torch::kHalf;
    options.mixed_precision.reduce_dtype = torch::kFloat;
    fsdp.emplace(fully_shard(*model, world, options));
  } else {
    ddp.emplace(replicate(*model, world, by_messages()));
  }
  const auto named = [&] {
    return fsdp ? fsdp->named_parameters() : ddp->named_parameters();
  };
  Sgd sgd(named(), {.learning_rate = 0.05});
  GradScaler scaler(
      named(),
      {.init_scale = 1024, .growth_interval = 2, .uses_fp16 = !sharded});
  Values values;
  for (int step = 0; step < 5; ++step) {
    auto loss = loss_of(model, batch_on(device, step, world.rank()));
    if (step == 2 && world.rank() == 1) {
      loss = loss * std::numeric_limits<float>::infinity();
    }
    scaler.scale(loss).backward();
    values.push_back(value_of(scaler.step(sgd) ? 1 : 0));
    scaler.update();
    sgd.zero_grad();
    values.push_back(value_of(scaler.get_scale()));
  }
  const auto parameters = fsdp ? whole_parameters_of(*fsdp, *model)
                               : values_of(model->parameters());
  values.insert(values.end(), parameters.begin(), parameters.end());
  return values;
}

TEST(DeviceGradScaler, SkipsAStepOnAllRanksAsOnTheCpu) {
  for (const bool sharded : {true, false}) {
    SCOPED_TRACE(sharded);
    expect_as_on_the_cpu(2, [&](const World& world, c10::Device device) {
      auto values = scaled_training(world, device, sharded);
      EXPECT_EQ(values[4].item<double>(), 0) << "the third step";
      EXPECT_EQ(values[2].item<double>(), 1) << "the second step";
      return values;
    });
  }
}

// ---- optimizers ----

// A step for each batch.
Values trained(
    FullyShardedDataParallel& fsdp,
    DeviceMlp& model,
    const World& world,
    c10::Device device,
    const std::function<void()>& step) {
  for (int batch = 0; batch < 4; ++batch) {
    loss_of(model, batch_on(device, batch, world.rank())).backward();
    step();
  }
  return whole_parameters_of(fsdp, *model);
}

TEST(DeviceOptimizers, SgdWithMomentumUpdatesShardsAsOnTheCpu) {
  expect_as_on_the_cpu(
      2,
      [](const World& world, c10::Device device) {
        auto model = mlp_on(device);
        auto fsdp = fully_shard(*model, world, layers_by_messages());
        Sgd sgd(
            fsdp.named_parameters(),
            {.learning_rate = 0.05, .momentum = 0.9, .nesterov = true});
        return trained(fsdp, model, world, device, [&] {
          sgd.step();
          sgd.zero_grad();
        });
      },
      kOfNeighbours);
}

TEST(DeviceOptimizers, TorchsAdamUpdatesShardsAsOnTheCpu) {
  expect_as_on_the_cpu(2, [](const World& world, c10::Device device) {
    auto model = mlp_on(device);
    auto fsdp = fully_shard(*model, world, layers_by_messages());
    torch::optim::Adam adam(fsdp.parameters(), 0.05);
    return trained(fsdp, model, world, device, [&] {
      adam.step();
      adam.zero_grad();
      fsdp.publish();
    });
  });
}

// Matrices are whole where they are replicated.
TEST(DeviceOptimizers, MuonUpdatesReplicasAsOnTheCpu) {
  for (const bool no_shard : {true, false}) {
    SCOPED_TRACE(no_shard);
    expect_as_on_the_cpu(2, [&](const World& world, c10::Device device) {
      auto model = mlp_on(device);
      auto options = layers_by_messages();
      options.strategy = Strategy::kNoShard;
      std::optional<FullyShardedDataParallel> fsdp;
      std::optional<DistributedDataParallel> ddp;
      if (no_shard) {
        fsdp.emplace(fully_shard(*model, world, options));
      } else {
        ddp.emplace(replicate(*model, world, by_messages()));
      }
      auto parts = split(
          fsdp ? fsdp->named_parameters() : ddp->named_parameters(),
          {"*.weight"});
      Muon muon(std::move(parts.matching), {.learning_rate = 0.02});
      Sgd sgd(std::move(parts.rest), {.learning_rate = 0.02});
      for (int batch = 0; batch < 3; ++batch) {
        loss_of(model, batch_on(device, batch, world.rank())).backward();
        muon.step();
        sgd.step();
        muon.zero_grad();
        sgd.zero_grad();
      }
      return fsdp ? whole_parameters_of(*fsdp, *model)
                  : values_of(model->parameters());
    });
  }
}

// One rank has neither an exchange nor shards.
TEST(DeviceOptimizers, MuonUpdatesTheMatricesOfOneRankAsOnTheCpu) {
  expect_as_on_the_cpu(1, [](const World& world, c10::Device device) {
    auto model = mlp_on(device);
    auto fsdp = fully_shard(*model, world);
    auto parts = split(fsdp.named_parameters(), {"*.weight"});
    Muon muon(std::move(parts.matching), {.learning_rate = 0.02});
    for (int batch = 0; batch < 3; ++batch) {
      loss_of(model, batch_on(device, batch, 0)).backward();
      muon.step();
      muon.zero_grad();
    }
    return whole_parameters_of(fsdp, *model);
  });
}

// Whole gradients travel to the matrices' owners; on the CPU every rank has them.
Values trained_by_muon(
    const World& world, c10::Device device, int replicas, bool frozen_first) {
  auto model = mlp_on(device);
  model->first->weight.set_requires_grad(!frozen_first);
  auto options = layers_by_messages();
  options.strategy =
      device.is_cpu() ? Strategy::kNoShard : Strategy::kFullShard;
  auto fsdp =
      fully_shard(*model, Mesh(world, {.replicate = replicas}), options);
  auto parts = split(fsdp.named_parameters(), {"*.weight"});
  Muon muon(std::move(parts.matching), {.learning_rate = 0.02});
  Sgd sgd(std::move(parts.rest), {.learning_rate = 0.02});
  return trained(fsdp, model, world, device, [&] {
    muon.step();
    sgd.step();
    muon.zero_grad();
    sgd.zero_grad();
  });
}

TEST(DeviceOptimizers, MuonUpdatesShardsAsItUpdatesWholeMatricesOnTheCpu) {
  for (const int ranks : {2, 4}) {
    for (const int replicas : {1, 2}) {
      for (const bool frozen_first : {false, true}) {
        if (replicas < ranks) {
          SCOPED_TRACE(
              ::testing::Message() << ranks << " ranks, " << replicas
                                   << " replicas, frozen " << frozen_first);
          expect_as_on_the_cpu(
              ranks, [&](const World& world, c10::Device device) {
                return trained_by_muon(world, device, replicas, frozen_first);
              });
        }
      }
    }
  }
}

TEST(DeviceOptimizers, AStepOfMuonMakesTheHostNeitherWaitNorAllocate) {
  run_device_ranks(4, [](const DeviceRank& self) {
    auto model = mlp_on(self.device);
    auto fsdp = fully_shard(*model, self.world, layers_by_messages());
    auto parts = split(fsdp.named_parameters(), {"*.weight"});
    Muon muon(std::move(parts.matching));
    const auto x = batch_on(self.device, 0, self.world.rank());
    const auto step = [&] {
      loss_of(model, x).backward();
      muon.step();
      for (const auto& slice : fsdp.parameters()) {
        slice.mutable_grad().reset();
      }
    };
    for (int warm_up = 0; warm_up < 4; ++warm_up) {
      step();
    }
    fsdp.synchronize();
    const auto before = host_synchronisations(self.device);
    {
      const CaptureScope capture(self.device);
      step();
    }
    EXPECT_EQ(host_synchronisations(self.device), before);
    fsdp.synchronize();
  });
}

TEST(DeviceOptimizers, MuonKeepsTheMomentumOfAMatrixOnItsOwnerAlone) {
  std::array<std::vector<std::string>, 2> names;
  run_device_ranks(2, [&](const DeviceRank& self) {
    auto model = mlp_on(self.device);
    auto fsdp = fully_shard(*model, self.world, layers_by_messages());
    auto parts = split(fsdp.named_parameters(), {"*.weight"});
    Muon muon(std::move(parts.matching));
    loss_of(model, batch_on(self.device, 0, self.world.rank())).backward();
    muon.step();
    names[static_cast<std::size_t>(self.world.rank())] = muon.names();
    for (const auto& state : muon.tensors({})) {
      EXPECT_EQ(state.tensor.device(), self.device);
      EXPECT_EQ(state.tensor.dim(), 2);
      EXPECT_GT(state.tensor.abs().max().item<float>(), 0) << state.parameter;
    }
  });
  EXPECT_EQ(names[0].size() + names[1].size(), 3U);
  EXPECT_FALSE(names[0].empty() || names[1].empty());
}

TEST(DeviceOptimizers, MuonOnShardsOverBothAxesIsRefusedByName) {
  run_device_ranks(4, [](const DeviceRank& self) {
    auto model = mlp_on(self.device);
    auto options = layers_by_messages();
    options.optimizer_axes = OptimizerAxes::kBoth;
    auto fsdp =
        fully_shard(*model, Mesh(self.world, {.replicate = 2}), options);
    auto parts = split(fsdp.named_parameters(), {"*.weight"});
    EXPECT_THAT(
        error_of([&] { const Muon muon(std::move(parts.matching)); }),
        ::testing::HasSubstr("share_gradients"));
  });
}

// Sharded gradients are all reduced before an optimizer sees them, so that updates wait for step().
TEST(DeviceOptimizers, UpdatesInBackwardAreThoseOfSteps) {
  for (const bool sharded : {true, false}) {
    SCOPED_TRACE(sharded);
    const auto train = [&](bool in_backward) -> ParityBody {
      return [=](const World& world, c10::Device device) {
        auto model = mlp_on(device);
        std::optional<FullyShardedDataParallel> fsdp;
        std::optional<DistributedDataParallel> ddp;
        if (sharded) {
          fsdp.emplace(fully_shard(*model, world, layers_by_messages()));
        } else {
          ddp.emplace(replicate(*model, world, by_messages()));
        }
        AdamW adamw(
            fsdp ? fsdp->named_parameters() : ddp->named_parameters(),
            {.learning_rate = 0.05, .in_backward = in_backward});
        for (int batch = 0; batch < 4; ++batch) {
          loss_of(model, batch_on(device, batch, world.rank())).backward();
          adamw.step();
          adamw.zero_grad();
        }
        return fsdp ? whole_parameters_of(*fsdp, *model)
                    : values_of(model->parameters());
      };
    };
    const auto found = values_by_rank(2, true, train(true));
    expect_equal_values(
        found, values_by_rank(2, true, train(false)), kOfNeighbours);
    expect_equal_values(
        found, values_by_rank(2, false, train(true)), kOfNeighbours);
  }
}

// ---- join scopes ----

TEST(DeviceJoin, RanksWithDifferentNumbersOfInputsTrainAsOnTheCpu) {
  for (const bool sharded : {true, false}) {
    SCOPED_TRACE(sharded);
    expect_as_on_the_cpu(2, [&](const World& world, c10::Device device) {
      auto model = mlp_on(device);
      std::optional<FullyShardedDataParallel> fsdp;
      std::optional<DistributedDataParallel> ddp;
      if (sharded) {
        fsdp.emplace(fully_shard(*model, world, layers_by_messages()));
      } else {
        ddp.emplace(replicate(*model, world, by_messages()));
      }
      torch::optim::SGD sgd(
          fsdp ? fsdp->parameters() : model->parameters(), 0.05);
      const auto step = [&] {
        sgd.step();
        sgd.zero_grad();
        if (fsdp) {
          fsdp->publish();
        }
      };
      {
        auto join = fsdp ? fsdp->join() : ddp->join();
        for (int batch = 0; batch < 2 + 2 * world.rank(); ++batch) {
          loss_of(model, batch_on(device, batch, world.rank())).backward();
          step();
        }
        join.finish(fsdp ? step : std::function<void()>());
      }
      return fsdp ? whole_parameters_of(*fsdp, *model)
                  : values_of(model->parameters());
    });
  }
}

// ---- checkpointed activations ----

// Dropout draws from the device's generator, which a recomputation must find as the forward did.
TEST(DeviceActivationCheckpoints, RecomputationsDrawTheSameRandomNumbers) {
  const auto train = [](bool checkpointed) -> ParityBody {
    return [=](const World& world, c10::Device device) {
      auto generator = at::globalContext().defaultGenerator(device);
      generator.set_current_seed(7 + static_cast<std::uint64_t>(world.rank()));
      auto model = mlp_on(device);
      auto fsdp = fully_shard(*model, world, layers_by_messages());
      Sgd sgd(fsdp.named_parameters(), {.learning_rate = 0.05});
      const auto layers = model.ptr();
      const auto first = [layers](const torch::Tensor& x) {
        return torch::dropout(torch::tanh(layers->first(x)), 0.5, true);
      };
      const auto rest = [layers](const torch::Tensor& x) {
        return layers->third(torch::dropout(
            torch::tanh(layers->second(x)) + layers->offset, 0.5, true));
      };
      for (int batch = 0; batch < 3; ++batch) {
        const auto x = batch_on(device, batch, world.rank());
        const auto y = checkpointed ? checkpoint(rest, checkpoint(first, x))
                                    : rest(first(x));
        (y - x.sum(1, true)).square().mean().backward();
        sgd.step();
        sgd.zero_grad();
      }
      auto values = whole_parameters_of(fsdp, *model);
      values.push_back(generator.get_state());
      return values;
    };
  };
  expect_equal_values(
      values_by_rank(2, true, train(true)),
      values_by_rank(2, true, train(false)));
}

// The backward within runs on the device's thread, from the caller's at first and from that thread
// when the region is run again.
TEST(DeviceActivationCheckpoints, MayTakeGradientsWithin) {
  const auto train = [](bool checkpointed) -> ParityBody {
    return [=](const World&, c10::Device device) {
      const auto x = batch_on(device, 0, 0).requires_grad_();
      const auto penalty = [](const torch::Tensor& in) {
        return torch::autograd::grad({in.tanh().sum()}, {in}, {}, true, true)[0]
            .square();
      };
      (checkpointed ? checkpoint(penalty, x) : penalty(x)).sum().backward();
      return values_of({x.grad()});
    };
  };
  expect_equal_values(
      values_by_rank(1, true, train(true)),
      values_by_rank(1, false, train(false)));
}

// ---- frozen parameters ----

ParityBody thawed_later(int replicas, FullyShardOptions options) {
  return [=](const World& world, c10::Device device) {
    auto model = mlp_on(device);
    model->first->weight.requires_grad_(false);
    auto fsdp =
        fully_shard(*model, Mesh(world, {.replicate = replicas}), options);
    torch::optim::SGD sgd(fsdp.parameters(), 0.05);
    for (int batch = 0; batch < 6; ++batch) {
      if (batch == 3) {
        model->first->weight.requires_grad_(true);
        model->second->weight.requires_grad_(false);
      }
      loss_of(model, batch_on(device, batch, world.rank())).backward();
      sgd.step();
      sgd.zero_grad();
      fsdp.publish();
    }
    return whole_parameters_of(fsdp, *model);
  };
}

TEST(DeviceFrozenUnits, AUnitThatIsThawedLaterTrainsAsOnTheCpu) {
  expect_as_on_the_cpu(2, thawed_later(1, layers_by_messages()));
  for (const auto axes : {OptimizerAxes::kShard, OptimizerAxes::kBoth}) {
    for (const bool on_host : {false, true}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(axes) << on_host);
      auto options = layers_by_messages();
      options.optimizer_axes = axes;
      options.cpu_offload = on_host;
      expect_as_on_the_cpu(4, thawed_later(2, options));
    }
  }
}

TEST(DeviceFrozenUnits, WhatStartsFrozenHasNoMemoryForGradients) {
  for (const bool on_host : {false, true}) {
    run_device_ranks(2, [&](const DeviceRank& self) {
      const auto bytes_with = [&](bool frozen) {
        const auto before = device::memory_use(self.device)->in_use;
        auto model = mlp_on(self.device);
        model->first->weight.requires_grad_(!frozen);
        auto options = layers_by_messages();
        options.cpu_offload = on_host;
        auto fsdp = fully_shard(*model, self.world, options);
        const auto bytes = device::memory_use(self.device)->in_use - before;
        loss_of(model, batch_on(self.device, 0, self.world.rank())).backward();
        return bytes;
      };
      // Half of the weight, or what lies on the host.
      const std::int64_t saved = on_host ? 0 : 16 * 16 * 4 / 2;
      EXPECT_EQ(bytes_with(false) - bytes_with(true), saved);
    });
  }
}

// Units of equal and of unequal shards; every second gather of a unit stays within its group.
TEST(DeviceSecondaryShards, TrainToTheBitsOfTheCpuAndSendAsMuch) {
  for (const auto dtype :
       {std::optional<torch::Dtype>(), std::optional(torch::kBFloat16)}) {
    expect_as_on_the_cpu(4, [&](const World& world, c10::Device device) {
      auto model = mlp_on(device);
      auto options = layers_by_messages();
      options.secondary_ranks = 2;
      options.mixed_precision.param_dtype = dtype;
      options.mixed_precision.reduce_dtype = torch::kFloat;
      auto fsdp = fully_shard(*model, world, options);
      torch::optim::SGD sgd(fsdp.parameters(), 0.05);
      auto values = trained(fsdp, model, world, device, [&] {
        sgd.step();
        sgd.zero_grad();
        fsdp.publish();
      });
      const auto report = fsdp.report();
      EXPECT_GT(report.unshards, 0);
      values.push_back(value_of(static_cast<double>(report.gather_sent_bytes)));
      return values;
    });
  }
}

TEST(DeviceSummons, GradientsAndValuesAreThoseOfTheCpu) {
  expect_as_on_the_cpu(2, [](const World& world, c10::Device device) {
    auto model = mlp_on(device);
    auto fsdp = fully_shard(*model, world, layers_by_messages());
    loss_of(model, batch_on(device, 0, world.rank())).backward();
    Values values;
    {
      const auto whole = fsdp.summon_full_parameters({.with_gradients = true});
      const torch::NoGradGuard no_grad;
      for (const auto& item : model->named_parameters()) {
        const auto gradient = whole.gradient(item.key());
        if (gradient.defined()) {
          values.push_back(gradient.cpu().clone());
          whole.tensor(item.key()).sub_(gradient, 0.1);
        }
      }
    }
    const auto after = whole_parameters_of(fsdp, *model);
    values.insert(values.end(), after.begin(), after.end());
    return values;
  });
}

}  // namespace
}  // namespace sherd::test
