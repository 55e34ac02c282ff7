// SPDX-License-Identifier: Apache-2.0
//
// The measurement behind `sherd bench step`: the same training step by several contenders, all
// alive at once, which run in turn in short blocks, so that each meets the same state of the
// machine. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include "bench/contender_job.h"
#include "bench/statistics.h"
#include "bench/workload.h"

namespace sherd::bench {

// The user's options, as in the flags.
struct StepConfig {
  std::string work = "wide";
  std::string mode = "fsdp";
  std::string exchange = "auto";
  std::string dtype = "fp32";
  std::string strategy = "full_shard";
  // For example "24MiB"; if empty, as the strategy says.
  std::string budget;
  std::string update = "step";  // sherd's AdamW: in step() or in backward.
  int ranks = 2;
  int replicate = 1;
  std::string peers = "all";  // PyTorch's contenders: all or none.
  std::string language = "cpp";
  std::string heap = "kept";
  std::string python;      // One with torch, for the contenders that need it.
  bool json_only = false;  // The report has no table.
  // Performance.
  StopLimits limits;
  int block_steps = 0;  // 0 means those of the workload.
};

// Throws Error that names flag, expected and found.
void check(const StepConfig& config);

// The budget as a number, 0 if there is none.
std::int64_t budget_bytes_of(const StepConfig& config);

// "bound", "sherd", "python" if requested, and the peers that make sense: none with one rank, where
// nothing is exchanged, and no FSDP2 for no_shard, which it lacks.
std::vector<std::string> contenders_of(const StepConfig& config);

// Where the contenders' programs are.
struct StepPrograms {
  std::string sherd;
  std::string rank;         // sherd-bench-rank
  std::string peer_script;  // bench/peer_rank.py
  // The folder of the Python package; if empty, where Python finds it.
  std::string package;
  std::vector<std::string> environment;  // "NAME=value" each.
};

// The user's environment with what must be equal for all contenders: one thread per rank, and a
// heap that keeps its memory if StepConfig::heap asks for it.
std::vector<std::string> contender_environment(
    std::vector<std::string> environment, const std::string& heap);

// One contender's times and its use of resources.
struct ContenderResult {
  std::string name;
  std::string torch_version;
  std::vector<double> step_ms;      // Every timed step.
  std::vector<double> round_ms;     // The median of each round.
  std::int64_t pss_bytes_peak = 0;  // All ranks together.
  // Totals of all ranks over `rank_steps`, which is steps times ranks.
  std::int64_t faults = 0;  // Minor page faults.
  double cpu_ms = 0.0;
  std::int64_t rank_steps = 0;
};

// Receives what is going on, in a few words; "" at the end.
using ProgressCallback = std::function<void(const std::string&)>;

struct StepResult {
  std::vector<ContenderResult> contenders;  // The bound first.
  int block_steps = 0;
  int rounds = 0;
  double seconds = 0.0;  // The time of measuring, without starting.
  std::string why_stopped;
};

// Starts the contenders, checks that they train alike, measures, and ends them. Throws Error if one
// fails or trains differently; and Interrupted. None is left running in either case. `progress`
// gets a sentence about what is going on.
StepResult measure(
    const StepConfig& config,
    const StepPrograms& programs,
    const SignalFd& signals,
    const ProgressCallback& progress);

}  // namespace sherd::bench
