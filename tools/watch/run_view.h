// SPDX-License-Identifier: Apache-2.0
//
// What `sherd top` shows of a run's folder: how far training is, and a table of its ranks. Pure
// functions. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include "train/step_metrics.h"

namespace sherd::tools {

// A run, or one replica of a fault-tolerant run.
struct RunState {
  std::string name;   // The folder.
  std::string ranks;  // Precedes the numbers of its ranks, such as "r1.".
  std::vector<StepMetrics> records{};  // The last ones, in order.
  std::int64_t steps = 0;              // Where training ends; 0 if unknown.
  // The time since metrics were last written.
  double age_s = 0;
};

// Lines of at most `columns` characters. Ranks that do not fit into `rows` lines are counted; the
// busiest are shown.
std::string run_view(
    const std::vector<RunState>& runs, std::size_t columns, std::size_t rows);

// What a rank did, averaged over the last steps.
struct RankRow {
  std::string name;
  std::int64_t step = 0;
  RankMetrics mean{};
  // The rank of its run that was busy longest, so that the others waited for it.
  bool slowest = false;
  // The slowest rank, if it was also busy for a fifth longer than half of the others.
  bool straggler = false;
};

// The rows of a run, averaged over the last ten steps with the same number of ranks.
std::vector<RankRow> rank_rows(const RunState& run);

// "running", "finished", or that nothing runs, in words. A run counts as ended when no step has
// come for twenty times the time of a step, and for half a minute, since a validation or a
// checkpoint may lie between two steps.
std::string stage_of(const RunState& run);

}  // namespace sherd::tools
