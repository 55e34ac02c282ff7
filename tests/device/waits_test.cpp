// SPDX-License-Identifier: Apache-2.0
//
// The order of streams in whole training steps of the engine: each wait that it makes is needed. One
// rank, whose engine and exchange are those of many.
#include <string>
#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>
#include "device/device_models.h"
#include "exchange/collective_exchange.h"
#include "exchange/hybrid_exchange.h"
#include "exchange/stream_unit_transport.h"
#include "fsdp/fsdp_engine.h"
#include "support/checking_device/checking_device.h"
#include "support/checking_device/thread_backend.h"

namespace sherd::test {
namespace {

enum class Axes { kShard, kWithReplicas, kBothForOptimizers };

struct WaitRecipe {
  Axes axes = Axes::kShard;
  FullyShardOptions options = {};
  // Reduces gradients across replicas or, without any, of the shard axis.
  std::optional<exchange::ReduceHook> hook = std::nullopt;
  // Codes what gathers carry.
  std::shared_ptr<const exchange::ShardCoder> coder = nullptr;
};

exchange::DeviceBackends axis_over(
    ThreadNetwork& network,
    const std::string& name,
    const WaitRecipe& recipe,
    bool with_hook) {
  return {
      .device = checking_device(),
      .gather = network.backend(0, name + "/gathers"),
      .reduce =
          {.backend = network.backend(0, name + "/reductions"),
           .hook = with_hook ? recipe.hook : std::nullopt,
           .messages = world::make_c10d_transport(
               World::single(), name + "/messages", {0})},
      .gathers =
          {.coder = recipe.coder,
           .secondary_ranks = recipe.options.secondary_ranks},
      .secondary = network.backend(0, name + "/group")};
}

std::unique_ptr<exchange::Exchange> exchange_over(
    const std::string& name, exchange::DeviceBackends axis) {
  const auto world = World::single();
  return exchange::make_collective_exchange(
      world::make_c10d_transport(world, name + "/gather", {0}),
      world::make_c10d_transport(world, name + "/reduce", {0}),
      exchange::over_devices(std::move(axis)));
}

std::shared_ptr<fsdp::FsdpEngine> engine_over(
    const torch::nn::Module& module,
    ThreadNetwork& network,
    const WaitRecipe& recipe) {
  const bool both = recipe.axes == Axes::kBothForOptimizers;
  auto within =
      axis_over(network, "within", recipe, recipe.axes == Axes::kShard);
  std::unique_ptr<exchange::Exchange> exchange;
  if (recipe.axes == Axes::kShard) {
    exchange = exchange_over("within", std::move(within));
  } else {
    auto across = axis_over(network, "across", {.hook = recipe.hook}, true);
    within.across = across.reduce;
    exchange = exchange::make_hybrid_exchange(
        exchange_over("within", std::move(within)),
        exchange_over("across", std::move(across)), {.both_axes = both},
        exchange::ReduceAcross::kByShardAxis, checking_device());
  }
  fsdp::FsdpEngine::Options options;
  options.both_axes = both;
  auto units = fsdp::build_units(module, 1, recipe.options);
  for (auto& unit : units.units) {
    for (auto& flat : unit.flats) {
      flat.coded = recipe.coder != nullptr;
    }
  }
  auto engine = std::make_shared<fsdp::FsdpEngine>(
      std::move(units), std::move(exchange), options);
  engine->start();
  return engine;
}

// Waits by stream, so far.
struct WaitCounts {
  std::vector<int> when_planned;
  std::vector<int> at_end;
};

// Copies to the device make the host wait, and so would stand for waits of streams: none comes between
// steps. In the first steps, which follow no plan, units are dropped after the update, so that who
// waits for their room waits for the shards, too.
WaitCounts train(
    ThreadNetwork& network,
    const WaitRecipe& recipe,
    const StreamWaits& waits) {
  std::vector<torch::Tensor> batches;
  for (int batch = 0; batch < 5; ++batch) {
    batches.push_back(batch_on(checking_device(), batch, 0));
  }
  auto model = mlp_on(checking_device());
  const auto engine = engine_over(*model, network, recipe);
  AdamW optimizer(engine->named_parameters());
  const auto backward = [&](std::size_t step) {
    loss_of(model, batches[step]).backward();
  };
  WaitCounts counts;
  for (std::size_t step = 0; step < 4; ++step) {
    counts.when_planned = step == 2 ? waits.counts() : counts.when_planned;
    backward(step);
    optimizer.step();
    optimizer.zero_grad();
  }
  backward(4);
  for (const auto& item : engine->named_parameters().items) {
    if (item.slice.grad().defined()) {
      (void)item.slice.grad().add(1);
    }
  }
  EXPECT_GE(engine->report().plan.steps_planned, 2);
  counts.at_end = waits.counts();
  return counts;
}

// What was not in order.
std::string fault_of_training(
    const WaitRecipe& recipe,
    const StreamWaits& waits,
    WaitCounts* counts = nullptr) {
  ThreadNetwork network(1);
  std::string fault;
  try {
    const auto found = train(network, recipe, waits);
    if (counts != nullptr) {
      *counts = found;
    }
  } catch (const std::exception& error) {
    fault = error.what();
  }
  for (const auto& of_free : take_faults(checking_device())) {
    fault += of_free;
  }
  return fault;
}

void expect_every_wait_is_needed(const WaitRecipe& recipe) {
  WaitCounts counts;
  {
    const StreamWaits waits(checking_device());
    ASSERT_EQ(fault_of_training(recipe, waits, &counts), "");
  }
  // To compute; of the replicate axis to gather, and one that nobody uses; to sum across, to gather and
  // to reduce.
  const bool replicates = recipe.axes != Axes::kShard;
  ASSERT_EQ(counts.at_end.size(), replicates ? 6U : 3U);
  for (std::size_t stream = 0; stream < counts.at_end.size(); ++stream) {
    const int first = counts.when_planned[stream];
    // Nothing is gathered across equal replicas.
    const bool idle = (stream == 1 && recipe.axes == Axes::kWithReplicas) ||
        (stream == 2 && replicates);
    EXPECT_GE(counts.at_end[stream] - first, idle ? 0 : 3)
        << "stream " << stream;
    for (int wait = first; wait < counts.at_end[stream]; ++wait) {
      StreamWaits waits(checking_device());
      waits.leave_out(stream, wait);
      EXPECT_THAT(
          fault_of_training(recipe, waits),
          ::testing::HasSubstr("[checking device]"))
          << "without wait " << wait << " of " << counts.at_end[stream]
          << " of stream " << stream;
    }
  }
}

FullyShardOptions units_by_layer() {
  FullyShardOptions options;
  options.units = units::by_name("*");
  return options;
}

TEST(DeviceWaits, T30EveryWaitOfTheEngineIsNeeded) {
  expect_every_wait_is_needed({.options = units_by_layer()});
}

TEST(DeviceWaits, T30EveryWaitOfMixedPrecisionIsNeeded) {
  auto options = units_by_layer();
  options.mixed_precision.param_dtype = torch::kBFloat16;
  options.mixed_precision.reduce_dtype = torch::kFloat;
  expect_every_wait_is_needed({.options = options});
}

TEST(DeviceWaits, T30EveryWaitWithSecondaryShardsIsNeeded) {
  auto options = units_by_layer();
  options.secondary_ranks = 1;
  expect_every_wait_is_needed({.options = options});
}

exchange::ReduceHook sent_in_bf16() {
  return {
      .name = "bf16",
      .reduce = [](plan::UnitId, const std::vector<at::Tensor>& flats,
                   const exchange::HookTransport& transport) {
        for (const auto& flat : flats) {
          if (flat.defined()) {
            const auto sent = flat.to(torch::kBFloat16);
            transport.collectives->all_reduce_mean(sent);
            flat.copy_(sent);
          }
        }
      }};
}

TEST(DeviceWaits, EveryWaitWithAHookIsNeeded) {
  expect_every_wait_is_needed(
      {.options = units_by_layer(), .hook = sent_in_bf16()});
}

TEST(DeviceWaits, EveryWaitWithCodedGathersIsNeeded) {
  auto coder = std::make_shared<exchange::ShardCoder>();
  coder->name = "bf16";
  coder->bytes = [](std::int64_t numel, at::ScalarType) { return 2 * numel; };
  coder->encode = [](const exchange::CodedShard&, const at::Tensor& shard,
                     at::ScalarType, const at::Tensor& coded) {
    coded.view(torch::kBFloat16).copy_(shard);
  };
  coder->decode = [](const exchange::CodedShard&, const at::Tensor& coded,
                     const at::Tensor& part) {
    part.copy_(coded.view(torch::kBFloat16));
  };
  expect_every_wait_is_needed({.options = units_by_layer(), .coder = coder});
}

// The sum of one replica would be made without touching anything, unlike what a hook does.
TEST(DeviceWaits, T30EveryWaitBetweenReplicasIsNeeded) {
  expect_every_wait_is_needed(
      {.axes = Axes::kWithReplicas,
       .options = units_by_layer(),
       .hook = sent_in_bf16()});
}

TEST(DeviceWaits, T30EveryWaitOfOptimizersOverBothAxesIsNeeded) {
  expect_every_wait_is_needed(
      {.axes = Axes::kBothForOptimizers, .options = units_by_layer()});
}

}  // namespace
}  // namespace sherd::test
