// SPDX-License-Identifier: Apache-2.0
//
// The collective by which the ranks of a host come to share a segment: rank 0 creates it and passes
// it to the others. Each rank gets a HostSegment: the memory, and the peers that share it. Thread
// rule: as Segment and Peers. docs/design/shared_memory.md
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include "base/clock.h"
#include "base/status.h"
#include "shm/peers.h"
#include "shm/segment.h"

namespace sherd::shm {

// What the ranks have in common before they share memory: a place for one text of rank 0, a
// different one for each segment. A single rank needs none. Exceptions thrown by its functions leave
// join_segment().
struct StringStore {
  std::function<Status(const std::string& text)> put{};
  // Returns the last text put, waiting until there is one; fails after `at_most` at the latest, or
  // earlier and with a better reason if there is one.
  std::function<Result<std::string>(Duration at_most)> get{};
  // Fails when a process is lost that the ranks cannot do without, even if it is not one of them.
  // Called while rank 0 waits; may be empty.
  std::function<Status()> check_others{};
};

struct SegmentJoinOptions {
  // ---- behaviour ----
  PeersOptions peers{};  // Those that share.
  StringStore store{};
  // The memory for the caller, in addition to what peers need. Equal on every rank.
  SegmentOptions segment{};
  // The limit for the whole call.
  Duration deadline = std::chrono::seconds(60);
};

class HostSegment {
 public:
  HostSegment(Segment segment, std::unique_ptr<Peers> peers)
      : segment_(std::move(segment)), peers_(std::move(peers)) {}

  Peers& peers() { return *peers_; }

  // The caller's memory: `count` objects from `offset` on, zeros until a rank writes. Offset 0
  // begins a page. See Segment::at().
  template <typename T>
  std::span<T> at(std::size_t offset, std::size_t count) const {
    return segment_.at<T>(head_bytes(peers_->ranks()) + offset, count);
  }
  std::size_t bytes() const {
    return segment_.bytes() - head_bytes(peers_->ranks());
  }
  // As in Segment, for the caller's memory.
  Status make_read_only(std::size_t offset, std::size_t bytes) const {
    return segment_.make_read_only(head_bytes(peers_->ranks()) + offset, bytes);
  }
  Status make_private(std::size_t offset, std::size_t bytes) const {
    return segment_.make_private(head_bytes(peers_->ranks()) + offset, bytes);
  }

  // The size of what precedes the caller's memory, in whole pages.
  static std::size_t head_bytes(int ranks);

 private:
  Segment segment_;  // Outlives the peers, which lie in it.
  std::unique_ptr<Peers> peers_;
};

// Returns ok on every rank if all have mapped the segment; otherwise a failure on every rank that
// lives, which names the rank at fault: kPeerLost for one that died meanwhile, kDeadlineExceeded
// for one that did not come, kPeerMismatch for different options, kUnavailable if there is not
// enough memory. Either way nothing is left behind.
Result<HostSegment> join_segment(
    const SegmentJoinOptions& options, const Clock& clock);

}  // namespace sherd::shm
