// SPDX-License-Identifier: Apache-2.0
//
// What the kernel counts for a process. The proportional set size (PSS) counts 1/n of a page that
// n processes map, so ranks can be summed; contenders share LibTorch's pages, too. A minor page
// fault makes a page that was never touched or was given back to the kernel: a step that frees and
// allocates large tensors may cause thousands. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::bench {

// The line "Pss:" of the text of /proc/PID/smaps_rollup, in bytes. Nothing when
// there is no such line.
std::optional<std::int64_t> parse_pss(const std::string& smaps_rollup);

// Since the process began.
struct ProcessUsage {
  std::int64_t faults = 0;  // Minor ones.
  std::int64_t ticks = 0;   // Processor time, in user mode and in the kernel.
};

// From the text of /proc/PID/stat. Nothing for any other text.
std::optional<ProcessUsage> parse_usage(const std::string& stat);

// Sums over these processes; one that has ended adds nothing.
ProcessUsage usage_of(const std::vector<int>& processes);
std::int64_t pss_bytes(const std::vector<int>& processes);

}  // namespace sherd::bench
