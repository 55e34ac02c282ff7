// SPDX-License-Identifier: Apache-2.0
//
// What the kernel counts for a process. The proportional set size (PSS) counts 1/n of a page that n
// processes map, so that ranks can be summed; contenders share LibTorch's pages, too. A minor page
// fault provides a page that was never touched or was returned to the kernel: a step that frees and
// allocates large tensors may cause thousands. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::bench {

// The line "Pss:" in the text of /proc/PID/smaps_rollup, in bytes. Nothing if there is no such
// line.
std::optional<std::int64_t> parse_pss(const std::string& smaps_rollup);

// Since the process began.
struct ProcessUsage {
  std::int64_t faults = 0;  // Minor page faults.
  std::int64_t ticks = 0;   // Processor time, in user mode and in the kernel.
};

// From the text of /proc/PID/stat. Nothing for any other text.
std::optional<ProcessUsage> parse_usage(const std::string& stat);

// The sums over these processes; one that has ended adds nothing.
ProcessUsage usage_of(const std::vector<int>& processes);
std::int64_t pss_bytes(const std::vector<int>& processes);

}  // namespace sherd::bench
