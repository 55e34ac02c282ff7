// SPDX-License-Identifier: Apache-2.0
//
// Whether this host can run a job of a certain size: checks descriptors, processes and memory, so
// that a job that is much too large is refused before its first process starts. Thread rule: any
// thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include "launch/program.h"

namespace sherd::launch {

inline constexpr std::uint64_t kNoLimit =
    std::numeric_limits<std::uint64_t>::max();

// What a job needs, or what the system allows this process and its children.
struct HostResources {
  // Open at once in one process; of the system, the hard limit.
  std::uint64_t descriptors = kNoLimit;
  std::uint64_t processes = kNoLimit;  // In addition to those that run.
  std::uint64_t memory_bytes = kNoLimit;
};

// The needs of a job with `groups` of ranks that start together, each with a port reserved for it.
// Its memory is what the smallest program needs, so a job that passes may still be too large for its
// own program. REQUIRES: neither is negative.
HostResources needs_of_job(std::int64_t groups, std::int64_t processes);

// Why a job with these needs cannot run; empty if nothing prevents it.
std::string exceeded_limit(
    const HostResources& needs, const HostResources& limits);

// Read from rlimits, cgroup and /proc; what cannot be read counts as unlimited.
HostResources host_limits();

// Compares the needs with this host, and raises this process's soft limit of descriptors if it is too
// low; children inherit that.
StartStatus make_room(const HostResources& needs);

}  // namespace sherd::launch
