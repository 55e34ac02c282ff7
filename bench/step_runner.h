// SPDX-License-Identifier: Apache-2.0
//
// StepRunner is what a contender's rank times: one training step of the same GPT on the same random
// bytes, of the contender "bound" or "sherd" (docs/design/benchmarks.md). In mode ddp every rank of
// the bound updates all elements, and sherd is replicate instead of fully_shard. Thread rule: one
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/models/gpt.h>
#include <sherd/world/world.h>
#include "bench/workload.h"

namespace sherd::bench {

// The model that every contender trains.
models::GptConfig model_config(const Workload& work);

struct StepRunnerOptions {
  std::string contender;  // "bound", "sherd" or "replica".
  Workload work;
  std::string mode = "fsdp";  // Or "ddp".
  std::string strategy;
  std::string exchange;           // That of sherd: auto, collective or shm.
  int replicate = 1;              // sherd's replicas.
  std::string dtype = "fp32";     // Or "bf16", with fp32 weights.
  std::int64_t budget_bytes = 0;  // 0: as the strategy says.
  std::string update = "step";    // sherd's: by "step" or in "backward".
  std::string barrier;            // The file of the bound's StepBarrier.
  // The three of contender "replica": where the step log is written, the file of a gate for
  // which steps wait, if any, and of which steps the log has a hash, which reads all parameters and
  // optimizer state: those whose number is a multiple of it; 0: none.
  std::string folder;
  std::string gate;
  int hash_every = 0;
};

// The options for fully_shard.
FullyShardOptions shard_options(const StepRunnerOptions& options);

// The samples with these numbers in the data on which all contenders train: random bytes [numbers,
// length], which depend only on the sample and not on the rank that trains it.
at::Tensor random_rows(
    const std::vector<std::int64_t>& numbers, std::int64_t length);

struct StepRunner {
  // A whole training step; returns this rank's loss before the update.
  // Collective.
  std::function<double(const at::Tensor& inputs, const at::Tensor& targets)>
      step;
  // Ends it in order. Collective.
  std::function<void()> close = [] {};
};

// Collective. Throws Error as fully_shard does, and for an unknown contender. `world` must outlive
// it.
StepRunner make_step_runner(
    const World& world, const StepRunnerOptions& options);

}  // namespace sherd::bench
