// SPDX-License-Identifier: Apache-2.0
//
// The proportional set size (PSS) of a process, which counts 1/n of a page that n processes map, so
// that ranks can be summed; contenders share LibTorch's pages, too. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::bench {

// The line "Pss:" in the text of /proc/PID/smaps_rollup, in bytes. Nothing if there is no such
// line.
std::optional<std::int64_t> parse_pss(const std::string& smaps_rollup);

// The sum over these processes; one that has ended adds nothing.
std::int64_t pss_bytes(const std::vector<int>& processes);

}  // namespace sherd::bench
