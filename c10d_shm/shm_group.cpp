// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/shm_group.h"

#include <utility>
#include "c10d_shm/communicator/p2p_channel.h"
#include "c10d_shm/join_attempts.h"

namespace sherd::c10d_shm {
namespace {

// Queues of messages between all pairs of 64 ranks are 330 MB. A group that has no use for most of
// them must not be refused for want of memory.
shm::SegmentOptions segment_for(
    int ranks, const ShmCommunicatorOptions& options) {
  const std::size_t communicator = ShmCommunicator::bytes(ranks, options);
  return {
      .bytes = communicator + P2pChannel::bytes(ranks),
      .touched_bytes =
          communicator + P2pChannel::bytes_between_neighbours(ranks)};
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

shm::HostSegment join_host_segment(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int ranks,
    const ShmBackendOptions& options,
    const shm::SegmentOptions& segment,
    std::chrono::milliseconds timeout) {
  const SteadyClock clock;
  JoinAttemptStore attempts(store, rank, clock);
  shm::SegmentJoinOptions join;
  join.peers = {.rank = rank, .ranks = ranks};
  for (const auto name : options.global_ranks_in_group) {
    join.peers.names.push_back(static_cast<int>(name));
  }
  join.store = attempts.strings();
  join.segment = segment;
  join.deadline = timeout;
  auto joined = shm::join_segment(join, clock).value();
  if (rank == 0 && ranks > 1) {
    attempts.end();
  }
  return joined;
}

std::shared_ptr<ShmGroup> join_shm_group(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int ranks,
    const ShmBackendOptions& options,
    std::chrono::milliseconds timeout) {
  auto group = std::make_shared<ShmGroup>(
      join_host_segment(
          store, rank, ranks, options, segment_for(ranks, options.communicator),
          timeout),
      options.communicator);
  group->communicator.open(timeout).throw_if_failed();
  return group;
}

}  // namespace sherd::c10d_shm
