// SPDX-License-Identifier: Apache-2.0
//
// MemoryPlanner keeps a process, or its device, within FullyShardOptions::memory_bytes. It lets
// five steps run in which nothing is kept, measures them, agrees with the other ranks on the
// figures, and decides (plan/memory_plan.h) which regions keep their activations and how many bytes
// of units may be whole. Thread rule: the engine's lock. Mechanism: docs/design/memory.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>
#include <sherd/fsdp/fully_shard.h>
#include "fsdp/checkpoint_regions.h"
#include "fsdp/memory_meter.h"
#include "fsdp/step_recorder.h"
#include "plan/recorded_memory.h"

namespace sherd::fsdp {

class MemoryPlanner {
 public:
  struct Limit {
    std::int64_t bytes = 0;
    std::shared_ptr<CheckpointRegions> regions;  // Null: none.
  };

  struct Options {
    Limit limit;
    std::shared_ptr<MemoryMeter> meter;
    // By unit, when whole; empty if nothing is gathered.
    std::vector<std::int64_t> unit_bytes = {};
    // The initial budget of whole units.
    std::int64_t budget_bytes = 0;
    // Collective.
    std::function<std::vector<double>(std::vector<double>)> max_over_ranks =
        [](auto numbers) { return numbers; };
  };

  // Collective. Throws Error, on every rank, if the limit is below what a process needs at least,
  // which is the maximum over ranks.
  static void refuse_limit_below(
      const Options& options, std::int64_t least_bytes);

  // Collective. Throws Error, on every rank, if a process already uses more.
  explicit MemoryPlanner(Options options);
  ~MemoryPlanner();
  MemoryPlanner(const MemoryPlanner&) = delete;
  MemoryPlanner& operator=(const MemoryPlanner&) = delete;

  StepRecorder& recorder() { return *recorder_; }

  // Collective; called when the update of a training step was published, under this budget of
  // units. Returns the new budget of units if it changes. Throws Error, naming the floor, on every
  // rank, if the limit cannot be kept.
  std::optional<std::int64_t> step_ended(std::int64_t budget_bytes);

  // Whether steps for the measurement are still to come.
  bool measuring() const;
  const MemoryReport& report() const { return report_; }

 private:
  std::optional<std::int64_t> decide();
  // Empty if ranks ran different regions, or if one could not count.
  std::optional<plan::StepMemory> agreed_step();
  std::pair<plan::RecordedMemory, std::vector<plan::UnitMemory>> measured()
      const;
  std::vector<plan::UnitMemory> gathered_units(
      const std::vector<std::int64_t>& again_ns) const;
  plan::MemoryPlan plan_within_limit();
  std::int64_t carry_out(const plan::MemoryPlan& plan);
  MemoryChoice described(
      const plan::MemoryPlan& plan, std::int64_t limit_bytes) const;
  std::optional<std::int64_t> correct();
  void keep_whole_units_for_good();
  void note_choices();

  const Options options_;
  std::shared_ptr<StepRecorder> recorder_;
  std::vector<StepRecorder::Record> records_;  // The first one is for memory.
  std::vector<int> regions_;                   // In the order of forward.
  plan::StepMemory step_;
  std::vector<plan::UnitChoice> choice_;  // As step_.units.
  std::int64_t budget_bytes_ = 0;         // While nothing is kept.
  int steps_ = 0;
  std::int64_t seen_bytes_ = 0;  // The meter's peak, the most of any rank.
  Instant step_began_;           // At first, when the planner was made.
  MemoryReport report_;
};

}  // namespace sherd::fsdp
