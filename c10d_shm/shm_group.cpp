// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/shm_group.h"

#include <utility>
#include "c10d_shm/communicator/p2p_channel.h"
#include "c10d_shm/join_attempts.h"

namespace sherd::c10d_shm {
namespace {

std::size_t bytes_for(int ranks, const ShmCommunicatorOptions& options) {
  return ShmCommunicator::bytes(ranks, options) + P2pChannel::bytes(ranks);
}

}  // namespace

ShmGroup::ShmGroup(
    shm::HostSegment joined, const ShmCommunicatorOptions& options)
    : segment(std::move(joined)),
      communicator(
          segment.at<std::byte>(
              0, ShmCommunicator::bytes(segment.peers().ranks(), options)),
          segment.peers(),
          clock,
          options) {}

Bytes ShmGroup::p2p_memory() const {
  return segment.at<std::byte>(
      ShmCommunicator::bytes(communicator.ranks(), communicator.options()),
      P2pChannel::bytes(communicator.ranks()));
}

std::shared_ptr<ShmGroup> join_shm_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    const ShmGroupJoinOptions& options) {
  const SteadyClock clock;
  JoinAttemptStore attempts(store, options.rank, clock);
  shm::SegmentJoinOptions join;
  join.rank = options.rank;
  join.ranks = options.ranks;
  join.names = options.names;
  join.key = JoinAttemptStore::kKey;
  join.store = attempts.strings();
  join.segment.bytes = bytes_for(options.ranks, options.communicator);
  join.deadline = options.deadline;
  auto group = std::make_shared<ShmGroup>(
      shm::join_segment(join, clock).value(), options.communicator);
  if (options.rank == 0 && options.ranks > 1) {
    attempts.end();
  }
  group->communicator.open(options.deadline).throw_if_failed();
  return group;
}

}  // namespace sherd::c10d_shm
