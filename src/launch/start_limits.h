// SPDX-License-Identifier: Apache-2.0
//
// Whether this host can run a job of a certain size: descriptors, processes and memory, so that one
// that is much too large is refused before its first process starts. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include "launch/program.h"

namespace sherd::launch {

inline constexpr std::uint64_t kNoLimit =
    std::numeric_limits<std::uint64_t>::max();

// What the system leaves this process and its children.
struct HostLimits {
  std::uint64_t descriptors = kNoLimit;  // Of one process; the hard limit.
  std::uint64_t processes = kNoLimit;    // Besides those that run.
  std::uint64_t memory_bytes = kNoLimit;
};

struct JobSize {
  std::uint64_t processes = 1;
  // Open in the launcher at once.
  std::uint64_t descriptors = 0;
};
// With `groups` of ranks that start together, each with a port that is reserved for it. REQUIRES:
// neither is negative.
JobSize size_of_job(std::int64_t groups, std::int64_t processes);

// Why a job of this size cannot run; empty: nothing speaks against it. Memory is compared with what
// the smallest program needs, so a job that passes may still be too large for its own program.
std::string exceeded_limit(const JobSize& job, const HostLimits& limits);

// From rlimits, cgroup and /proc; what cannot be read is no limit.
HostLimits host_limits();

// Compares the job with this host, and raises this process's soft limit of descriptors if it is too
// low; children inherit that.
StartFailure make_room(const JobSize& job);

}  // namespace sherd::launch
