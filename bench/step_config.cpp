// SPDX-License-Identifier: Apache-2.0
#include "bench/step_bench.h"

#include <cmath>
#include "base/check.h"
#include "refuse.h"
#include "train/config.h"

namespace sherd::bench {
namespace {

using tools::expect_at_least;
using tools::expect_one_of;
using tools::refuse;

// Refuses options that belong to sharding only.
void check_ddp(const StepConfig& config) {
  const StepConfig preset;
  const auto expect = [](const char* flag, const auto& wanted,
                         const auto& found) {
    if (found != wanted) {
      refuse(flag, str(wanted, " with --mode ddp"), str(found));
    }
  };
  expect("--strategy", preset.strategy, config.strategy);
  expect("--dtype", preset.dtype, config.dtype);
  expect("--update", preset.update, config.update);
  expect("--replicate", preset.replicate, config.replicate);
  if (!config.budget.empty()) {
    refuse("--budget", "none with --mode ddp", config.budget);
  }
}

}  // namespace

std::int64_t budget_bytes_of(const StepConfig& config) {
  return config.budget.empty() ? 0 : tools::parse_bytes(config.budget).count;
}

void check(const StepConfig& config) {
  workload_named(config.work);
  expect_one_of("--mode", {"fsdp", "ddp"}, config.mode);
  expect_one_of(
      "--exchange", {"auto", "collective", "shm", "hierarchical"},
      config.exchange);
  expect_one_of("--dtype", {"fp32", "bf16"}, config.dtype);
  expect_one_of(
      "--strategy", {"full_shard", "shard_grad_op", "no_shard"},
      config.strategy);
  expect_one_of("--update", {"step", "backward"}, config.update);
  expect_one_of("--peers", {"all", "none"}, config.peers);
  expect_one_of("--language", {"cpp", "python"}, config.language);
  expect_one_of("--heap", {"glibc", "kept"}, config.heap);
  expect_at_least("--ranks", 1, config.ranks);
  if (config.replicate < 1 || config.ranks % config.replicate != 0) {
    refuse(
        "--replicate",
        "a number that divides the " + std::to_string(config.ranks) + " ranks",
        std::to_string(config.replicate));
  }
  if (!config.budget.empty() && budget_bytes_of(config) < 1) {
    refuse("--budget", "at least 1 byte", config.budget);
  }
  if (config.mode == "ddp") {
    check_ddp(config);
  }
  if (config.language == "python" && config.exchange == "hierarchical") {
    refuse(
        "--exchange", "auto, collective or shm with --language python",
        config.exchange);
  }
  if (!config.budget.empty() && config.strategy == "no_shard") {
    refuse("--budget", "none with --strategy no_shard", config.budget);
  }
  if (!(config.limits.interval_width > 0.0) ||
      !std::isfinite(config.limits.interval_width)) {
    refuse(
        "--interval-width", "a number above 0",
        str(config.limits.interval_width));
  }
  expect_at_least("--rounds-max", 1, config.limits.rounds_max);
  if (!(config.limits.minutes_max > 0.0)) {
    refuse("--minutes-max", "a number above 0", str(config.limits.minutes_max));
  }
  expect_at_least("--block-steps", 0, config.block_steps);
}

std::vector<std::string> contenders_of(const StepConfig& config) {
  std::vector<std::string> names = {"bound", "sherd"};
  if (config.language == "python") {
    names.emplace_back("python");
  }
  if (config.ranks > 1 && config.peers == "all") {
    if (config.strategy != "no_shard" && config.mode == "fsdp") {
      names.emplace_back("fsdp2");
    }
    names.emplace_back("ddp");
  }
  return names;
}

}  // namespace sherd::bench
