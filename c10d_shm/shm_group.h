// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of a backend share, and how they come to. Thread rule: that of
// its members.
#pragma once

#include <memory>
#include <vector>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "base/clock.h"
#include "c10d_shm/communicator/shm_communicator.h"
#include "shm/join.h"

namespace sherd::c10d_shm {

struct ShmGroup {
  SteadyClock clock{};
  shm::HostSegment segment;
  ShmCommunicator communicator;

  ShmGroup(shm::HostSegment joined, const ShmCommunicatorOptions& options);
  // The memory of messages between two ranks, beside that of the communicator.
  Bytes p2p_memory() const;
};

struct ShmGroupJoinOptions {
  int rank = 0;
  int ranks = 1;
  std::vector<int> names{};  // As in SegmentJoinOptions.
  ShmCommunicatorOptions communicator{};
  Duration deadline{};
};

// Collective. Throws sherd::Error.
std::shared_ptr<ShmGroup> join_shm_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    const ShmGroupJoinOptions& options);

}  // namespace sherd::c10d_shm
