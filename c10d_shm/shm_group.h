// SPDX-License-Identifier: Apache-2.0
//
// The segment that the ranks of a backend share, with the communicator in it, and the collective
// that creates it. Thread rule: that of its members.
#pragma once

#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "base/clock.h"
#include "c10d_shm/backend.h"
#include "c10d_shm/communicator/shm_communicator.h"
#include "shm/join.h"

namespace sherd::c10d_shm {

struct ShmGroup {
  SteadyClock clock{};
  shm::HostSegment segment;
  ShmCommunicator communicator;

  ShmGroup(shm::HostSegment joined, const ShmCommunicatorOptions& options);
  // The memory for messages between two ranks, in addition to that of the communicator.
  Bytes p2p_memory() const;
};

// Collective, as join_shm_group(): a segment that all ranks share.
shm::HostSegment join_host_segment(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int ranks,
    const ShmBackendOptions& options,
    const shm::SegmentOptions& segment,
    std::chrono::milliseconds timeout);

// Collective over `ranks` ranks, on which `options` are the same; all join within `timeout`. Throws
// sherd::Error.
std::shared_ptr<ShmGroup> join_shm_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int ranks,
    const ShmBackendOptions& options,
    std::chrono::milliseconds timeout);

}  // namespace sherd::c10d_shm
