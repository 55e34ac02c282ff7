// SPDX-License-Identifier: Apache-2.0
//
// What the kernel knows of a process's memory.
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

namespace sherd::tools::bench {

// The line "Pss:" of the text of /proc/PID/smaps_rollup, in bytes. Nothing when
// there is no such line.
std::optional<std::int64_t> parse_pss(const std::string& smaps_rollup);

// The minor faults so far in the text of /proc/PID/stat. Nothing when it is
// none.
std::optional<std::int64_t> parse_faults(const std::string& stat);

// Of these processes together; one that has ended counts nothing.
std::int64_t faults(const std::vector<int>& processes);
std::int64_t pss_bytes(const std::vector<int>& processes);

}  // namespace sherd::tools::bench
