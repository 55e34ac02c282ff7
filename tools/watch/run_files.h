// SPDX-License-Identifier: Apache-2.0
//
// What `sherd top` reads from a run's folder. Thread rule: any thread.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>
#include "watch/run_view.h"

namespace sherd::tools {

// The numbers of the replicas that have subfolders here, ascending. Other hosts may have the
// remaining ones.
std::set<int> replicas_in(const std::filesystem::path& folder);

// The run in this folder, or its replicas, which are in subfolders; empty if there are neither.
// Throws Error for invalid metrics.
std::vector<RunState> read_runs(const std::filesystem::path& folder);

// The address of the status page of the coordinator of `sherd run --run-dir`, from the second line
// of a file in its folder; empty if there is none.
std::string status_address(const std::filesystem::path& folder);

}  // namespace sherd::tools
