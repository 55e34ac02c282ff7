// SPDX-License-Identifier: Apache-2.0
//
// Proportional set size: a process's memory, where a page that n processes map
// counts 1/n in each, so that ranks can be summed. Contenders share LibTorch's
// pages, too, which are spread over all that run. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::tools::bench {

// The line "Pss:" of the text of /proc/PID/smaps_rollup, in bytes. Nothing when
// there is no such line.
std::optional<std::int64_t> parse_pss(const std::string& smaps_rollup);

// Of these processes together; one that has ended counts nothing.
std::int64_t pss_bytes(const std::vector<int>& processes);

}  // namespace sherd::tools::bench
