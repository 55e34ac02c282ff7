// SPDX-License-Identifier: Apache-2.0
//
// How much memory a new segment may take. A memfd promises pages that may not exist: a process that
// writes one too many is killed, or gets SIGBUS, in the middle of training. So the size is first
// compared with the available memory. Pure except for read_small_file(). Thread rule: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include "base/status.h"

namespace sherd::shm {

struct AvailableMemory {
  std::uint64_t bytes = 0;
  std::string source{};  // Its source, e.g. "MemAvailable of /proc/meminfo".
};

// The content of a file; nothing if it cannot be read.
using ReadFile =
    std::function<std::optional<std::string>(const std::string& path)>;
std::optional<std::string> read_small_file(const std::string& path);

// The least of what the host has (without swap, since a step that swaps is useless), what it may
// still promise if it does not overcommit, and what the control groups of this process leave.
// Nothing if no file tells.
std::optional<AvailableMemory> available_memory(const ReadFile& read_file);

// kUnavailable, naming both numbers, if `wanted_bytes` exceed `left`.
Status check_available_memory(
    std::uint64_t wanted_bytes, const std::optional<AvailableMemory>& left);

}  // namespace sherd::shm
