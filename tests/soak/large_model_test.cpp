// SPDX-License-Identifier: Apache-2.0
//
// A model that is large for the machine: a Llama of 1.1 B parameters, the size
// and shape of TinyLlama, made on the meta device and trained in bf16 by two
// ranks. Losses are those of LibTorch alone, in a process that has ended before,
// and memory is what the formula of docs/guide/cache.md says. Both take 21 GB,
// one after the other.
#include "support/ranks.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>
#include <ATen/ops/_fused_adamw.h>
#include <gtest/gtest.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/models/llama.h>
#include <sherd/optim/adamw.h>
#include <torch/torch.h>

namespace sherd::test {
namespace {

constexpr int kRanks = 2;
constexpr int kSteps = 3;
constexpr std::int64_t kTokens = 16;  // Of one row, a rank's batch.
constexpr double kLearningRate = 3e-4;
constexpr std::int64_t kBytesNeeded = 22'000'000'000;
constexpr auto kBf16 = torch::kBFloat16;

models::LlamaConfig tiny_llama() {
  return {
      .layers = 22,
      .width = 2048,
      .heads = 32,
      .kv_heads = 4,
      .intermediate = 5632,
      .sequence = 2048,
      .vocabulary = 32000,
      .norm_epsilon = 1e-5,
      .seed = 1,
      .device = torch::kMeta};
}

// The same row every step: a model that learns has a falling loss.
torch::Tensor loss_of(models::Llama& model, int rank) {
  const auto vocabulary = model->config().vocabulary;
  const auto ids =
      (torch::arange(kTokens + 1, torch::kLong) * 7919 + rank * 104729 + 17)
          .remainder(vocabulary)
          .view({1, -1});
  return model->loss(
      ids.slice(1, 0, kTokens).contiguous(), ids.slice(1, 1).contiguous());
}

// ---- LibTorch alone ----

// A parameter with what mixed precision keeps of it.
struct Master {
  torch::Tensor parameter;  // The module's own, bf16.
  torch::Tensor value, exp_avg, exp_avg_sq, step;
  std::vector<torch::Tensor> gradients;  // By rank, bf16.

  void update() {
    const auto gradient =
        (gradients[0].to(torch::kFloat) + gradients[1].to(torch::kFloat))
            .mul_(1.0 / kRanks);
    gradients.clear();
    step += 1;
    at::_fused_adamw_(
        {value}, {gradient}, {exp_avg}, {exp_avg_sq}, {}, {step}, kLearningRate,
        0.9, 0.999, 1e-2, 1e-8, /*amsgrad=*/false, /*maximize=*/false);
    parameter.copy_(value);
  }
};

Master make_master(const std::string& name, models::Llama& model) {
  auto parameter = model->named_parameters()[name];
  auto value = torch::empty(parameter.sizes());
  model->reset_parameter(name, value);
  parameter.unsafeGetTensorImpl()->shallow_copy_from(
      value.to(kBf16).getIntrusivePtr());
  return {parameter,
          value,
          torch::zeros_like(value),
          torch::zeros_like(value),
          torch::zeros({}),
          {}};
}

// Losses by step, then by rank.
std::vector<double> train_alone(const models::LlamaConfig& config) {
  models::Llama model(config);
  const torch::NoGradGuard no_grad;
  std::vector<Master> masters;
  for (const auto& name : model->named_parameters().keys()) {
    masters.push_back(make_master(name, model));
  }
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const torch::AutoGradMode grad(true);
      const auto loss = loss_of(model, rank);
      losses.push_back(loss.item<double>());
      loss.backward();
      for (auto& master : masters) {
        master.gradients.push_back(master.parameter.grad());
        master.parameter.mutable_grad().reset();
      }
    }
    for (auto& master : masters) {
      master.update();
    }
  }
  return losses;
}

// ---- sherd ----

// Of a line "FIELD: N kB"; -1 when there is none.
std::int64_t bytes_in(const char* path, const std::string& field) {
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(field + ":")) {
      return std::stoll(line.substr(field.size() + 1)) * 1024;
    }
  }
  return -1;
}

// Resident pages of this process, now and at most.
double resident() {
  return static_cast<double>(bytes_in("/proc/self/status", "VmRSS"));
}
double resident_peak() {
  return static_cast<double>(bytes_in("/proc/self/status", "VmHWM"));
}

struct Trained {
  std::vector<double> losses;
  double resident_before = 0;
  double resident_peak = 0;
  double owned = 0;  // Elements.
  double budget = 0;
  double largest_unit = 0;  // Bytes, whole.
};

// The two large tables are units of their own: in the root unit both would be
// whole at once.
units::Policy units_of_llama() {
  const auto layers = units::children_of_lists();
  return [layers](const units::Candidate& candidate) {
    return layers(candidate) || candidate.name == "lm_head" ||
        candidate.name == "model.embed_tokens";
  };
}

Trained train_sharded(const models::LlamaConfig& config, const World& world) {
  Trained result;
  result.resident_before = resident();
  models::Llama model(config);
  FullyShardOptions options;
  options.units = units_of_llama();
  options.mixed_precision.param_dtype = kBf16;
  options.initialise = [&](const std::string& name, const at::Tensor& value) {
    model->reset_parameter(name, value);
  };
  auto fsdp = fully_shard(*model, world, options);
  AdamW adamw(fsdp.named_parameters(), {.learning_rate = kLearningRate});
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = loss_of(model, world.rank());
    loss.backward();
    adamw.step();
    adamw.zero_grad();
    result.losses.push_back(loss.item<double>());
  }
  for (const auto& slice : fsdp.parameters()) {
    result.owned += static_cast<double>(slice.numel());
  }
  const auto report = fsdp.report();
  result.budget = static_cast<double>(report.budget_bytes);
  result.largest_unit =
      2.0 * static_cast<double>(config.vocabulary * config.width);
  result.resident_peak = resident_peak();
  fsdp.close();
  return result;
}

// docs/guide/cache.md, "How much memory a rank needs".
double formula(const Trained& rank) {
  const double shards = rank.owned * (4 + 4 + 8 + 2);
  const double others = static_cast<double>(kRanks - 1) / kRanks;
  const double gradients = 2 * rank.largest_unit * (1 + others);
  const double program = 128e6;  // Libraries' heaps, activations.
  return shards + rank.budget + gradients + program;
}

RankOptions patient() {
  RankOptions options;
  options.timeout = std::chrono::minutes(20);
  options.world.deadline = std::chrono::minutes(5);
  return options;
}

void expect_trains(const models::LlamaConfig& config, bool memory) {
  const auto alone = run_processes(
      1,
      [&](int, Rank& self) {
        at::set_num_threads(1);
        const auto losses = train_alone(config);
        self.report(
            {reinterpret_cast<const char*>(losses.data()),
             losses.size() * sizeof(double)});
      },
      patient());
  expect_all_ok(alone);
  ASSERT_EQ(alone[0].result.size(), kSteps * kRanks * sizeof(double));
  std::vector<double> expected(kSteps * kRanks);
  std::memcpy(expected.data(), alone[0].result.data(), alone[0].result.size());

  const auto together = run_ranks(
      kRanks,
      [&](World world, Rank&) {
        at::set_num_threads(1);
        const auto found = train_sharded(config, world);
        double total = 0;
        for (const auto& row : world.all_gather({found.resident_peak})) {
          total += row[0];
        }
        for (int step = 0; step < kSteps; ++step) {
          const auto s = static_cast<std::size_t>(step);
          const auto wanted =
              expected[s * kRanks + static_cast<std::size_t>(world.rank())];
          std::printf(
              "step %d: loss %.6f, alone %.6f\n", step + 1, found.losses[s],
              wanted);
          EXPECT_NEAR(found.losses[s], wanted, 1e-3 * wanted);
        }
        EXPECT_LT(found.losses.back(), 0.9 * found.losses.front());
        const double used = found.resident_peak - found.resident_before;
        std::printf(
            "peak %.0f MB, before %.0f MB, used %.0f MB, formula %.0f MB\n",
            found.resident_peak / 1e6, found.resident_before / 1e6, used / 1e6,
            formula(found) / 1e6);
        if (memory) {
          EXPECT_LT(total, 24e9);
          EXPECT_NEAR(used, formula(found), 0.05 * formula(found));
        }
      },
      patient());
  expect_all_ok(together);
  for (int rank = 0; rank < kRanks; ++rank) {
    std::printf("rank %d\n%s", rank, together[rank].output.c_str());
  }
}

TEST(SmallModel, TrainsAsLibTorchAlone) {
  auto config = tiny_llama();
  config.layers = 3;
  config.width = 256;
  config.intermediate = 704;
  config.heads = 8;
  expect_trains(config, /*memory=*/false);
}

TEST(LargeModel, ABillionParametersTrainInTheMemoryOfTheFormula) {
  if (bytes_in("/proc/meminfo", "MemAvailable") < kBytesNeeded) {
    GTEST_SKIP() << "needs " << kBytesNeeded << " bytes of free memory";
  }
  expect_trains(tiny_llama(), /*memory=*/true);
}

}  // namespace
}  // namespace sherd::test
