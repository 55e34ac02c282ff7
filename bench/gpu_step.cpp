// SPDX-License-Identifier: Apache-2.0
//
// The cost of sherd on one GPU: training steps of a GPT and a Llama with plain LibTorch and with
// fully_shard on one rank, in alternating blocks. docs/design/gpu.md, *On a GPU*
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sherd/fsdp/activation_checkpointing.h>
#include <sherd/models/llama.h>
#include <sherd/optim/adamw.h>

#include "base/check.h"
#include "base/clock.h"
#include "bench/fused_adamw.h"
#include "bench/statistics.h"
#include "gpu_workload.h"

namespace sherd::bench {
namespace {

constexpr double kLearningRate = 1e-4;
constexpr int kStepsOfBlock = 5;
constexpr int kRounds = 9;
// What the host needs for a step varies more.
constexpr int kRoundsOfTiny = 41;

using models::LanguageModel;
using MakeModel = std::function<std::shared_ptr<LanguageModel>()>;

struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
};

// One way to train.
using Step = std::function<at::Tensor(const Batch&)>;  // Returns the loss.
struct Training {
  Step step;
  std::function<ShardReport()> report = [] { return ShardReport(); };
};

const c10::Device kDevice(c10::kCUDA, 0);

// Several ranks, all on this device, if torchrun has started this process.
const World& world() {
  static const World all = std::getenv("RANK") != nullptr
      ? World::from_environment()
      : World::single();
  return all;
}

void synchronise() { at::accelerator::synchronizeDevice(0); }

std::int64_t allocated_bytes_peak() {
  return at::accelerator::getDeviceStats(0).allocated_bytes[0].peak;
}

std::int64_t reserved_bytes_peak() {
  return at::accelerator::getDeviceStats(0).reserved_bytes[0].peak;
}

std::vector<at::Tensor> gradients_of(
    const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

void drop_gradients(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() = at::Tensor();
  }
}

std::shared_ptr<LanguageModel> on_device(const MakeModel& make, bool bf16) {
  auto model = make();
  if (bf16) {
    model->to(kDevice, at::kBFloat16);
  } else {
    model->to(kDevice);
  }
  return model;
}

// Parameters, gradients and optimizer state in bf16.
Training libtorch_bf16(const MakeModel& make) {
  auto model = on_device(make, true);
  auto parameters = model->parameters();
  auto adamw = std::make_shared<FusedAdamW>(parameters, kLearningRate);
  return {[=](const Batch& batch) {
    auto loss = model->loss(batch.inputs, batch.targets);
    loss.backward();
    adamw->step(gradients_of(parameters));
    drop_gradients(parameters);
    return loss;
  }};
}

// fp32 parameters and optimizer state, and a bf16 copy for forward and backward.
Training libtorch_mixed(const MakeModel& make) {
  auto model = on_device(make, true);
  auto narrow = model->parameters();
  std::vector<at::Tensor> wide;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : narrow) {
    wide.push_back(parameter.detach().to(at::kFloat));
    gradients.push_back(at::zeros_like(wide.back()));
  }
  auto adamw = std::make_shared<FusedAdamW>(wide, kLearningRate);
  return {[=](const Batch& batch) {
    auto loss = model->loss(batch.inputs, batch.targets);
    loss.backward();
    const at::NoGradGuard no_grad;
    at::_foreach_copy_(gradients, gradients_of(narrow));
    drop_gradients(narrow);
    adamw->step(gradients);
    at::_foreach_copy_(narrow, wide);
    return loss;
  }};
}

Training sherd_training(
    const MakeModel& make, bool bf16, FullyShardOptions options) {
  auto model = on_device(make, bf16);
  if (options.memory_bytes) {
    options.checkpointing = ActivationCheckpointing(*model);
    model->run_layers_with(*options.checkpointing);
  }
  auto fsdp = std::make_shared<FullyShardedDataParallel>(
      fully_shard(*model, world(), options));
  auto adamw = std::make_shared<AdamW>(
      fsdp->named_parameters(), AdamWOptions{.learning_rate = kLearningRate});
  const auto step = [model, fsdp, adamw](const Batch& batch) {
    auto loss = model->loss(batch.inputs, batch.targets);
    loss.backward();
    adamw->step();
    adamw->zero_grad();
    return loss;
  };
  return {step, [fsdp] { return fsdp->report(); }};
}

// The times of a step in each round, in ms.
struct Times {
  std::vector<double> step;
  std::vector<double> host;  // Until the host had submitted the whole step.
};

void time_block(const Step& step, const Batch& batch, Times& times) {
  (void)step(batch);  // Another contender has filled the caches.
  synchronise();
  const SteadyClock clock;
  const auto begin = clock.now();
  for (int i = 0; i < kStepsOfBlock; ++i) {
    (void)step(batch);
  }
  const auto given = clock.now();
  synchronise();
  times.step.push_back(1e3 * seconds(clock.now() - begin) / kStepsOfBlock);
  times.host.push_back(1e3 * seconds(given - begin) / kStepsOfBlock);
}

struct Contender {
  std::string name;
  std::function<Training()> make;
  std::size_t beside = 0;  // The contender by whose times its own are divided.
};

void compare(
    const char* title,
    const std::vector<Contender>& contenders,
    const Batch& batch,
    int rounds = kRounds) {
  std::vector<Training> trainings;
  std::vector<Times> times(contenders.size());
  for (const auto& contender : contenders) {
    synchronise();
    at::accelerator::emptyCache();
    const auto before =
        at::accelerator::getDeviceStats(0).allocated_bytes[0].current;
    at::accelerator::resetPeakStats(0);
    trainings.push_back(contender.make());
    double loss = 0;
    for (int i = 0; i < 5; ++i) {
      loss = trainings.back().step(batch).item<double>();
    }
    // Shards include the whole units of a single rank.
    const auto report = trainings.back().report();
    const auto planned = report.shard_bytes + report.gradient_slot_bytes_peak;
    std::printf(
        "%s, %s: loss after 5 steps %.4f, %lld MiB allocated, of which sherd "
        "planned %lld MiB, %lld MiB reserved in all\n",
        title, contender.name.c_str(), loss,
        static_cast<long long>((allocated_bytes_peak() - before) >> 20),
        static_cast<long long>(planned >> 20),
        static_cast<long long>(reserved_bytes_peak() >> 20));
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < trainings.size(); ++i) {
      const auto at = (i + static_cast<std::size_t>(round)) % trainings.size();
      time_block(trainings[at].step, batch, times[at]);
    }
  }
  for (std::size_t i = 0; i < trainings.size(); ++i) {
    const auto beside = contenders[i].beside;
    const auto ratio =
        estimate_median(ratios(times[i].step, times[beside].step));
    std::vector<double> more;
    for (std::size_t round = 0; round < times[i].host.size(); ++round) {
      more.push_back(times[i].host[round] - times[beside].host[round]);
    }
    const auto host = estimate_median(more);
    std::printf(
        "%s, %s: %.2f ms a step, %.4f (%.4f-%.4f) of %s; host %.2f ms, %+.2f "
        "(%+.2f to %+.2f) beside it\n",
        title, contenders[i].name.c_str(), median(times[i].step), ratio.median,
        ratio.low, ratio.high, contenders[beside].name.c_str(),
        median(times[i].host), host.median, host.low, host.high);
  }
}

// The same training within less and less memory of the device, until the choice has nothing to keep.
void limit_memory(
    const char* title, const MakeModel& make, const Batch& batch) {
  constexpr int kSteps = 12;
  std::int64_t limit = 0;
  for (const int percent : {100, 90, 75, 60}) {
    auto options = mixed_precision();
    if (percent < 100) {
      options.memory_bytes = limit * percent / 100;
    }
    synchronise();
    at::accelerator::emptyCache();
    at::accelerator::resetPeakStats(0);
    const auto training = sherd_training(make, false, options);
    const SteadyClock clock;
    auto begin = clock.now();
    double loss = 0;
    for (int i = 0; i < kSteps; ++i) {
      if (i == kSteps / 2) {
        begin = clock.now();
      }
      loss = training.step(batch).item<double>();
    }
    limit = percent == 100 ? reserved_bytes_peak() : limit;
    const auto report = training.report().memory;
    std::printf(
        "%s, memory_bytes %lld MiB (%d %%): %lld MiB reserved at most, %d of "
        "%d regions recomputed, %.2f ms a step (foreseen %.2f, no choice takes "
        "less than %.2f), loss %.4f\n",
        title, static_cast<long long>(options.memory_bytes.value_or(0) >> 20),
        percent, static_cast<long long>(reserved_bytes_peak() >> 20),
        report.recomputed, report.regions,
        1e3 * seconds(clock.now() - begin) / (kSteps - kSteps / 2),
        1e3 * report.step_s, 1e3 * report.lower_bound_s, loss);
  }
}

std::vector<Contender> contenders_for(const MakeModel& make) {
  std::vector<Contender> all = {
      {"LibTorch bf16", [=] { return libtorch_bf16(make); }, 0},
      {"sherd bf16", [=] { return sherd_training(make, true, {}); }, 0},
      {"LibTorch mixed", [=] { return libtorch_mixed(make); }, 2},
      {"sherd mixed, full_shard",
       [=] { return sherd_training(make, false, mixed_precision()); }, 2},
      {"sherd mixed, shard_grad_op",
       [=] {
         return sherd_training(
             make, false, mixed_precision(Strategy::kShardGradOp));
       },
       2},
  };
  if (world().size() > 1) {  // LibTorch alone has one rank.
    all = {all[3], all[4]};
    all[0].beside = all[1].beside = 0;
  }
  return all;
}

Batch batch_of(
    std::int64_t rows, std::int64_t sequence, std::int64_t vocabulary) {
  const auto ids = at::randint(
      vocabulary, {rows, sequence + 1}, at::dtype(at::kLong).device(kDevice));
  return {
      ids.slice(1, 0, sequence).contiguous(),
      ids.slice(1, 1, sequence + 1).contiguous()};
}

void run(const std::string& which) {
  SHERD_CHECK(
      world().size() == 1 || which == "tiny" || which == "gpt",
      "[gpu_step] several ranks compare tiny or gpt alone, found ", which);
  if (world().rank() > 0) {
    SHERD_CHECK(
        std::freopen("/dev/null", "w", stdout) != nullptr,
        "no /dev/null for the output of other ranks");
  }
  if (which == "tiny" || which == "all") {
    const MakeModel make = [] { return models::Gpt(tiny_gpt()).ptr(); };
    compare(
        "tiny, 25 units", contenders_for(make), batch_of(1, 16, 256),
        kRoundsOfTiny);
  }
  if (which == "gpt" || which == "all") {
    const models::GptConfig config{
        .layers = 12,
        .width = 768,
        .heads = 12,
        .sequence = 1024,
        .vocabulary = 50304,
        .tied_head = false};
    const MakeModel make = [=] { return models::Gpt(config).ptr(); };
    const auto batch = batch_of(16, 1024, 50304);
    compare("GPT 124 M", contenders_for(make), batch);
    auto offload = mixed_precision();
    offload.cpu_offload = true;
    compare(
        "GPT 124 M",
        {{"sherd mixed, cpu_offload",
          [=] { return sherd_training(make, false, offload); }, 0}},
        batch);
  }
  if (which == "memory" || which == "all") {
    const models::GptConfig config{
        .layers = 24,
        .width = 1024,
        .heads = 16,
        .sequence = 1024,
        .vocabulary = 8192};
    const MakeModel make = [=] { return models::Gpt(config).ptr(); };
    limit_memory("GPT 310 M", make, batch_of(16, 1024, 8192));
  }
  if (which == "llama" || which == "all") {
    const models::LlamaConfig config{
        .layers = 22,
        .width = 2048,
        .heads = 32,
        .kv_heads = 4,
        .intermediate = 5632,
        .sequence = 1024,
        .vocabulary = 32000};
    const MakeModel make = [=] { return models::Llama(config).ptr(); };
    // In pairs, since more would not fit into the memory.
    const auto all = contenders_for(make);
    compare("Llama 1.1 B", {all[0], all[1]}, batch_of(4, 1024, 32000));
    compare(
        "Llama 1.1 B",
        {{all[2].name, all[2].make, 0}, {all[3].name, all[3].make, 0}},
        batch_of(4, 1024, 32000));
  }
}

}  // namespace
}  // namespace sherd::bench

int main(int argc, char** argv) {
  try {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    sherd::bench::run(argc > 1 ? argv[1] : "all");
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
