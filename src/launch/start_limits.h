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

// What the system allows this process and its children.
struct HostLimits {
  std::uint64_t descriptors = kNoLimit;  // Per process; the hard limit.
  std::uint64_t processes = kNoLimit;    // In addition to those that run.
  std::uint64_t memory_bytes = kNoLimit;
};

struct JobSize {
  std::uint64_t processes = 1;
  // Open in the launcher at once.
  std::uint64_t descriptors = 0;
};
// The size of a job with `groups` of ranks that start together, each with a port reserved for it.
// REQUIRES: neither is negative.
JobSize size_of_job(std::int64_t groups, std::int64_t processes);

// Why a job of this size cannot run; empty if nothing prevents it. Memory is compared with what the
// smallest program needs, so a job that passes may still be too large for its own program.
std::string exceeded_limit(const JobSize& job, const HostLimits& limits);

// Read from rlimits, cgroup and /proc; what cannot be read counts as unlimited.
HostLimits host_limits();

// Compares the job with this host, and raises this process's soft limit of descriptors if it is too
// low; children inherit that.
StartFailure make_room(const JobSize& job);

}  // namespace sherd::launch
