// SPDX-License-Identifier: Apache-2.0
//
// What scripts/cuda_check.py links and starts: it counts CUDA devices, and where there is one, it
// lets two streams wait for each other, gathers over NCCL with itself, copies what fault-tolerant
// replicas send, replays a captured step, and trains a small model on all devices, a rank each, and
// with two and four ranks on one device, in every way that differs in what is moved, beside the same
// ranks on the CPU. With an argument it is one of several ranks that torchrun has started, over
// NCCL.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Context.h>
#include <ATen/cuda/Sleep.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sherd/ddp/comm_hook.h>
#include <sherd/ddp/replicate.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/adamw.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "base/clock.h"
#include "compat/nccl_backend.h"
#include "cuda_graph.h"
#include "device/host_memory.h"
#include "device/last_use.h"
#include "device/stream.h"
#include "exchange/flat_collectives.h"
#include "ft/replica/session/replica_gradients.h"
#include "ft/replica/session/state_bytes.h"
#include "support/threads_on_device.h"
#include "world/device_backend.h"

namespace {

using sherd::device::CurrentStream;
using sherd::device::LastUse;
using sherd::device::Place;
using sherd::device::Stream;

constexpr std::int64_t kNumel = 1 << 24;

// NCCL's sum of one rank, in the current stream.
at::Tensor sum_over(
    const c10::intrusive_ptr<c10d::Backend>& nccl, at::Tensor values) {
  std::vector<at::Tensor> all{values};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  nccl->allreduce(all, options);
  auto sum = at::empty_like(values);
  c10d::ReduceScatterOptions scatter;
  scatter.asyncOp = false;
  nccl->_reduce_scatter_base(sum, values, scatter);
  return sum;
}

// Gathers into one place, sums it up and computes with it, by turns; returns whether the result was
// right each time.
bool take_turns(
    const c10::intrusive_ptr<c10d::Backend>& nccl, const c10::Device& device) {
  sherd::plan::FlatLayout layout;
  layout.numel = kNumel;
  layout.cuts = {0, kNumel};
  const auto compute = Stream::current(device);
  const auto gather = Stream::with_high_priority(device);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  const auto place = at::empty({kNumel}, options);
  LastUse uses;
  uses.record(Place::of(place), compute);
  bool right = true;
  for (int turn = 1; turn <= 20; ++turn) {
    const auto shard = at::full({kNumel}, turn, options);
    gather.wait(compute.record());
    uses.wait(Place::of(place), gather);
    {
      const CurrentStream on(gather);
      sherd::exchange::gather_flat(nccl, layout, shard, place);
    }
    compute.wait(gather.record());
    right = right &&
        sum_over(nccl, place).mean().item<float>() == static_cast<float>(turn);
    uses.record(Place::of(place), compute);
  }
  return right;
}

double microseconds_of_a_wait(const c10::Device& device) {
  const auto compute = Stream::current(device);
  const auto gather = Stream::with_high_priority(device);
  constexpr int kTimes = 10'000;
  const sherd::SteadyClock clock;
  const auto start = clock.now();
  for (int i = 0; i < kTimes; ++i) {
    gather.wait(compute.record());
  }
  const std::chrono::duration<double, std::micro> took = clock.now() - start;
  return took.count() / kTimes;
}

// ---- fault-tolerant replicas ----

// Whether all of these floats are that number.
bool are_all(const float* floats, std::int64_t count, float number) {
  return std::all_of(
      floats, floats + count, [&](float one) { return one == number; });
}

// Some steps of a replica whose device is always busy: gradients go to pinned memory bucket by bucket,
// and a sum comes back. Says how fast.
bool sends_gradients(const c10::Device& device) {
  constexpr int kSteps = 10;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  sherd::NamedParameters named;
  for (const std::int64_t numel : {kNumel, kNumel / 3, std::int64_t{5}}) {
    named.items.push_back(
        {std::to_string(numel), at::full({numel}, 0, options)});
  }
  sherd::ft::ReplicaGradients gradients(named, std::int64_t{1} << 20U);
  const auto& buckets = gradients.layout().buckets();
  const auto all =
      std::accumulate(buckets.begin(), buckets.end(), std::int64_t{0});
  const auto pinned =
      sherd::device::empty_on_host({2 * all}, at::kFloat, device);
  auto* mine = pinned.mutable_data_ptr<float>();
  auto* sum = mine + all;
  const auto busy = at::full({2048, 2048}, 0.5, options);
  bool right = pinned.is_pinned();
  double seconds_there = 0;
  double seconds_back = 0;
  const sherd::SteadyClock clock;
  const auto since = [&clock](sherd::Instant start) {
    return std::chrono::duration<double>(clock.now() - start).count();
  };
  for (int step = 1; step <= kSteps; ++step) {
    const auto number = static_cast<float>(step);
    gradients.begin(mine, [&](int bucket) {
      const auto& layout = gradients.layout();
      for (std::size_t i = 0; i < named.items.size(); ++i) {
        right = right &&
            (layout.bucket_of(i) != bucket ||
             are_all(
                 mine + layout.begin_of(i), named.items[i].slice.numel(),
                 number));
      }
    });
    (void)busy.mm(busy);
    for (const auto& item : named.items) {
      item.slice.mutable_grad() = at::full({item.slice.numel()}, step, options);
    }
    const auto finishing = clock.now();
    gradients.finish();
    seconds_there += since(finishing);
    std::transform(mine, mine + all, sum, [](float one) { return 2 * one; });
    (void)busy.mm(busy);
    const auto showing = clock.now();
    for (int i = 0; i < static_cast<int>(buckets.size()); ++i) {
      gradients.show(i, sum);
    }
    for (const auto& item : named.items) {
      item.slice.add_(item.slice.grad());
    }
    gradients.clear();
    seconds_back += since(showing);
    std::fill_n(sum, all, -1.0F);  // As the next sum does.
  }
  for (const auto& item : named.items) {
    const auto values = sherd::device::on_host(item.slice);
    right = right &&
        are_all(values.const_data_ptr<float>(), values.numel(),
                kSteps * (kSteps + 1));
  }
  const double gigabytes = 4e-9 * static_cast<double>(all) * kSteps;
  std::printf(
      "gradients to replicas and back: %s; %.1f GB/s there, checked on the "
      "host, %.1f GB/s back\n",
      right ? "right" : "WRONG", gigabytes / seconds_there,
      gigabytes / seconds_back);
  return right;
}

// A state goes to another replica, which has its own.
bool sends_a_state(const c10::Device& device) {
  const auto state_of = [](const at::Tensor& values) {
    sherd::CheckpointState state;
    state.add(
        "model",
        {.name = "w", .shape = values.sizes().vec(), .elements = values});
    return state;
  };
  const auto values = at::arange(kNumel, at::kFloat);
  const auto donor = state_of(values.to(device));
  const auto mine = at::full({kNumel}, 0.0, at::TensorOptions().device(device));
  sherd::ft::restore_state(state_of(mine), 0, sherd::ft::state_bytes(donor, 0));
  const bool right = at::equal(mine.cpu(), values) &&
      sherd::ft::state_digest(donor, 0) ==
          sherd::ft::state_digest(state_of(values), 0);
  std::printf("a state to a replica: %s\n", right ? "right" : "WRONG");
  return right;
}

// ---- training ----

struct Recipe {
  const char* name = "";
  sherd::FullyShardOptions options = {};
  int replicas = 1;
  bool replicated = false;  // By replicate().
  bool hooked = false;      // Its gradients travel in bf16.
  // Sums in rank order: equal in each run, to the bit.
  bool deterministic = false;
};

// LibTorch runs the backwards of all ranks of one device on one thread, so that only those of each
// rank's own device may wait for each other there, as replicate() does.
std::vector<Recipe> recipes(int ranks, bool share_device) {
  sherd::FullyShardOptions options;
  options.units = sherd::units::by_name("*");
  options.exchange = sherd::ExchangeKind::kCollective;
  if (ranks == 1) {  // A rank alone has an exchange where its shards are cast.
    options.mixed_precision.param_dtype = at::kBFloat16;
    options.mixed_precision.reduce_dtype = at::kFloat;
  }
  std::vector<Recipe> all = {{"full_shard", options}};
  all.push_back({"shard_grad_op", options});
  all.back().options.strategy = sherd::Strategy::kShardGradOp;
  all.push_back({"no_shard", options});
  all.back().options.strategy = sherd::Strategy::kNoShard;
  all.push_back({"cpu_offload", options});
  all.back().options.cpu_offload = true;
  all.push_back({"memory_from_backend", options});
  all.back().options.memory_from_backend = true;
  all.push_back({"memory_bytes", options});
  all.back().options.memory_bytes = std::int64_t{1} << 30U;
  if (ranks > 1) {
    all.push_back(
        {.name = "sums in rank order",
         .options = options,
         .deterministic = true});
  }
  if (ranks % 2 == 0 && ranks > 2) {
    all.push_back({"two replicas", options, 2});
    all.push_back({"two replicas, both axes", options, 2});
    all.back().options.optimizer_axes = sherd::OptimizerAxes::kBoth;
    all.push_back({"two replicas, cpu_offload", options, 2});
    all.back().options.cpu_offload = true;
  }
  if (!share_device) {
    all.push_back({.name = "replicate", .replicated = true});
  }
  if (ranks > 1 && !share_device) {
    all.push_back(
        {.name = "replicate, bf16 hook", .replicated = true, .hooked = true});
  }
  return all;
}

torch::nn::Sequential small_model(const c10::Device& device) {
  torch::nn::Sequential model(
      torch::nn::Linear(64, 128), torch::nn::Tanh(), torch::nn::Linear(128, 37),
      torch::nn::Tanh(), torch::nn::Linear(37, 1));
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    parameter.copy_(at::arange(parameter.numel(), at::kFloat)
                        .mul(1.7)
                        .sin()
                        .mul(0.2)
                        .view(parameter.sizes()));
  }
  model->to(device);
  return model;
}

std::vector<double> losses_of_steps(
    torch::nn::Sequential& model,
    const sherd::World& world,
    const c10::Device& device,
    sherd::AdamW& optimizer,
    const std::function<void()>& clip) {
  std::vector<double> losses;
  for (int step = 0; step < 8; ++step) {
    const auto x = at::arange(8 * 64, at::kFloat)
                       .mul(0.37)
                       .add(5 * (step % 3) + world.rank())
                       .cos()
                       .view({8, 64})
                       .to(device);
    const auto loss =
        (model->forward(x).to(at::kFloat) - x.mean(1, true)).square().mean();
    loss.backward();
    clip();
    optimizer.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// This rank's losses.
std::vector<double> losses_of(
    const sherd::World& world,
    const c10::Device& device,
    const Recipe& recipe) {
  auto model = small_model(device);
  const sherd::AdamWOptions adamw{.learning_rate = 0.01};
  if (recipe.replicated) {
    auto ddp = sherd::replicate(
        *model, world,
        {.hook = recipe.hooked ? sherd::compress(at::kBFloat16) : nullptr});
    sherd::AdamW optimizer(ddp.named_parameters(), adamw);
    return losses_of_steps(model, world, device, optimizer, [] {});
  }
  auto options = recipe.options;
  if (device.is_cpu()) {
    options.memory_bytes.reset();  // There it is a limit for the process.
  }
  auto fsdp = sherd::fully_shard(
      *model, sherd::Mesh(world, {.replicate = recipe.replicas}), options);
  sherd::AdamW optimizer(fsdp.named_parameters(), adamw);
  return losses_of_steps(
      model, world, device, optimizer, [&] { (void)fsdp.clip_grad_norm(1.0); });
}

// Ranks are threads, on a device each or on one device together.
struct Ranks {
  int count = 1;
  int devices = 0;  // 0: on the CPU.
  bool delayed = false;
};

c10::Device device_of(const Ranks& ranks, int rank) {
  return ranks.devices == 0
      ? c10::Device(c10::kCPU)
      : c10::Device(
            c10::kCUDA, static_cast<c10::DeviceIndex>(rank % ranks.devices));
}

// Ranks that share a device have no NCCL.
std::unique_ptr<sherd::test::ThreadsOnDevice> shared_device(
    const Ranks& ranks) {
  constexpr std::int64_t kDelayCycles = 500'000;  // 0.3 ms and more.
  if (ranks.devices == 0 || ranks.count <= ranks.devices) {
    return nullptr;
  }
  return std::make_unique<sherd::test::ThreadsOnDevice>(
      std::chrono::seconds(5),
      ranks.delayed
          ? std::function<void()>([] { at::cuda::sleep(kDelayCycles); })
          : std::function<void()>());
}

using LossesByRank = std::vector<std::vector<double>>;

LossesByRank losses_by_rank(const Ranks& ranks, const Recipe& recipe) {
  at::globalContext().setDeterministicAlgorithms(
      recipe.deterministic, /*warn_only=*/true);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto shared = shared_device(ranks);
  LossesByRank all(static_cast<std::size_t>(ranks.count));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks.count; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto world = ranks.count == 1
            ? sherd::World::single()
            : sherd::World::from_store(store, rank, ranks.count);
        const auto device = device_of(ranks, rank);
        if (!device.is_cpu()) {
          c10::impl::VirtualGuardImpl(c10::kCUDA).setDevice(device);
        }
        if (shared) {
          sherd::world::set_device_backend(
              world, c10::kCUDA,
              [&](const std::string& name, const std::vector<int>& members) {
                return shared->backend(rank, name, members);
              });
        }
        all[static_cast<std::size_t>(rank)] = losses_of(world, device, recipe);
      } catch (const std::exception& error) {
        std::printf("rank %d: %s\n", rank, error.what());
      }
    });
  }
  threads.clear();
  return all;
}

bool are_close(
    const LossesByRank& found, const LossesByRank& expected, double tolerance) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    if (expected[rank].empty() || found[rank].size() != expected[rank].size()) {
      return false;
    }
    for (std::size_t i = 0; i < expected[rank].size(); ++i) {
      if (std::abs(found[rank][i] - expected[rank][i]) >
          tolerance * (std::abs(expected[rank][i]) + 0.01)) {
        return false;
      }
    }
  }
  return true;
}

// Devices add in orders of their own, which shows where bf16 keeps 8 bits.
double tolerance_of(const Recipe& recipe, int ranks) {
  return ranks == 1 ? 0.3 : recipe.hooked ? 2e-2 : 1e-3;
}

// `again` trains on the device once more.
bool is_right(
    const Recipe& recipe,
    int ranks,
    const LossesByRank& found,
    const LossesByRank& expected,
    const std::function<LossesByRank()>& again) {
  return are_close(found, expected, tolerance_of(recipe, ranks)) &&
      (!recipe.deterministic || found == again());
}

bool trains_as_on_the_cpu(const Ranks& ranks) {
  bool right = true;
  for (const auto& recipe : recipes(ranks.count, ranks.count > ranks.devices)) {
    const auto found = losses_by_rank(ranks, recipe);
    const auto expected = losses_by_rank({.count = ranks.count}, recipe);
    const bool close = is_right(recipe, ranks.count, found, expected, [&] {
      return losses_by_rank(ranks, recipe);
    });
    std::printf(
        "%s on %d ranks, %d devices%s: %s; the last loss of rank 0 is %.6f, on "
        "the CPU %.6f\n",
        recipe.name, ranks.count, ranks.devices,
        ranks.delayed ? ", collectives delayed" : "", close ? "right" : "WRONG",
        found[0].empty() ? 0.0 : found[0].back(),
        expected[0].empty() ? 0.0 : expected[0].back());
    right = right && close;
  }
  return right;
}

// Each kind of run, also after one that was wrong.
bool all_train_as_on_the_cpu(int devices) {
  bool right = trains_as_on_the_cpu({.count = devices, .devices = devices});
  for (const int count : {2, 4}) {
    for (const bool delayed : {false, true}) {
      right = trains_as_on_the_cpu(
                  {.count = count, .devices = 1, .delayed = delayed}) &&
          right;
    }
  }
  return right;
}

// This process is one of several ranks, connected by NCCL. Goes on after a run that was wrong.
int run_as_rank(const sherd::World& world) {
  const c10::impl::VirtualGuardImpl gpus(c10::kCUDA);
  const auto device = device_of(
      {.count = world.size(), .devices = gpus.deviceCount()}, world.rank());
  gpus.setDevice(device);
  bool right = true;
  for (const auto& recipe : recipes(world.size(), /*share_device=*/false)) {
    at::globalContext().setDeterministicAlgorithms(
        recipe.deterministic, /*warn_only=*/true);
    const auto found = losses_of(world, device, recipe);
    const auto expected = losses_of(world, c10::kCPU, recipe);
    const bool close = is_right(recipe, world.size(), {found}, {expected}, [&] {
      return LossesByRank{losses_of(world, device, recipe)};
    });
    std::printf(
        "rank %d of %d, %s: %s; the last loss is %.6f, on the CPU %.6f\n",
        world.rank(), world.size(), recipe.name, close ? "right" : "WRONG",
        found.back(), expected.back());
    right = right && close;
  }
  return right ? 0 : 1;
}

int run() {
  const int devices = c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
  std::printf(
      "%d devices, NCCL is %sbuilt\n", devices,
      sherd::compat::nccl_is_built() ? "" : "not ");
  if (!sherd::compat::nccl_is_built()) {
    return 1;
  }
  if (devices == 0) {
    try {
      (void)Stream::with_high_priority(c10::Device(c10::kCUDA, 0));
    } catch (const std::exception& error) {
      const std::string text = error.what();
      std::printf("a stream: %s\n", text.substr(0, text.find('\n')).c_str());
      return 0;
    }
    return 1;
  }
  const c10::Device device(c10::kCUDA, 0);
  const auto nccl = sherd::compat::make_nccl_backend(
      c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::minutes(1));
  const bool right = take_turns(nccl, device) &&
      sherd::cuda_check::replays_collectives(nccl, device);
  std::printf(
      "gathers in a stream of their own, sums, and both in a graph: %s; an "
      "event and a wait: %.2f us\n",
      right ? "right" : "WRONG", microseconds_of_a_wait(device));
  const bool sends = sends_gradients(device) && sends_a_state(device);
  const bool replays = sherd::cuda_check::replays_a_step(device);
  const bool trains = all_train_as_on_the_cpu(devices);
  return right && sends && replays && trains ? 0 : 1;
}

}  // namespace

int main(int argc, char** /*argv*/) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    return argc > 1 ? run_as_rank(sherd::World::from_environment()) : run();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
