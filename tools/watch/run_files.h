// SPDX-License-Identifier: Apache-2.0
//
// What `sherd top` reads from a run's folder. Thread rule: any thread.
#pragma once

#include <filesystem>
#include <string>
#include <vector>
#include "watch/run_view.h"

namespace sherd::tools {

// The run in this folder, or its replicas, in folders below; none where there are
// neither. Throws Error for metrics that are none.
std::vector<RunState> read_runs(const std::filesystem::path& folder);

// Where the status page of the coordinator is that `sherd run --run-dir` keeps, by
// the second line of a file in its folder; empty: there is none.
std::string status_address(const std::filesystem::path& folder);

}  // namespace sherd::tools
