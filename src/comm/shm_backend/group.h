// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of a backend share, and how they come to. Thread rule: that of
// its members.
#pragma once

#include <memory>
#include <vector>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "base/clock.h"
#include "comm/shm/join.h"
#include "comm/shm/stage.h"

namespace sherd::comm::shm {

struct Group {
  SteadyClock clock{};
  HostSegment segment;
  Stage stage;

  Group(HostSegment joined, const StageOptions& options);
  // The memory of messages between two ranks, beside that of the stage.
  Bytes mailbox_memory() const;
};

struct GroupOptions {
  int rank = 0;
  int ranks = 1;
  std::vector<int> names{};  // As in JoinOptions.
  StageOptions stage{};
  Duration deadline{};
};

// Collective. Throws sherd::Error.
std::shared_ptr<Group> join_group(
    const c10::intrusive_ptr<c10d::Store>& store, const GroupOptions& options);

}  // namespace sherd::comm::shm
