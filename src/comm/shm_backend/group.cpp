// SPDX-License-Identifier: Apache-2.0
#include "comm/shm_backend/group.h"

#include <utility>
#include "comm/shm/mailbox.h"
#include "comm/shm_backend/join_attempts.h"

namespace sherd::comm::shm {
namespace {

std::size_t bytes_for(int ranks, const StageOptions& options) {
  return Stage::bytes(ranks, options) + Mailbox::bytes(ranks);
}

}  // namespace

Group::Group(HostSegment joined, const StageOptions& options)
    : segment(std::move(joined)),
      stage(
          segment.at<std::byte>(
              0, Stage::bytes(segment.peers().ranks(), options)),
          segment.peers(),
          clock,
          options) {}

Bytes Group::mailbox_memory() const {
  return segment.at<std::byte>(
      Stage::bytes(stage.ranks(), stage.options()),
      Mailbox::bytes(stage.ranks()));
}

std::shared_ptr<Group> join_group(
    const c10::intrusive_ptr<c10d::Store>& store, const GroupOptions& options) {
  const SteadyClock clock;
  JoinAttempts attempts(store, options.rank, clock);
  JoinOptions join;
  join.rank = options.rank;
  join.ranks = options.ranks;
  join.names = options.names;
  join.key = JoinAttempts::kKey;
  join.store = attempts.strings();
  join.segment.bytes = bytes_for(options.ranks, options.stage);
  join.deadline = options.deadline;
  auto group =
      std::make_shared<Group>(join_segment(join, clock).value(), options.stage);
  if (options.rank == 0 && options.ranks > 1) {
    attempts.end();
  }
  group->stage.open(options.deadline).throw_if_failed();
  return group;
}

}  // namespace sherd::comm::shm
