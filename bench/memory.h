// SPDX-License-Identifier: Apache-2.0
//
// What the kernel counts of a process.
// Proportional set size: a page that n processes map counts 1/n in each, so that
// ranks can be summed. Contenders share LibTorch's pages, too, which are spread
// over all that run. Minor faults: pages that were given back to the kernel, or
// never touched, and had to be made anew; a step that frees and allocates
// large tensors may fault in thousands. Thread rule: any thread.
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
  std::int64_t ticks = 0;  // Of processor time, in user mode and in the kernel.
};

// From the text of /proc/PID/stat. Nothing when it is none.
std::optional<ProcessUsage> parse_usage(const std::string& stat);

// Of these processes together; one that has ended counts nothing.
ProcessUsage usage_of(const std::vector<int>& processes);
std::int64_t pss_bytes(const std::vector<int>& processes);

}  // namespace sherd::bench
