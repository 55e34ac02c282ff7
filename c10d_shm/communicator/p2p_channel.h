// SPDX-License-Identifier: Apache-2.0
//
// Point-to-point messages with tags between any two ranks of a segment, independent of collectives.
// docs/design/shm_backend.md says how short and long ones move. A message may be shorter than the
// room for it, but not of another type, and one that nobody receives yet does not block others.
// Refers to memory of a segment, which must outlive it. Thread rule: one thread at a time; any
// thread may call ring_doorbell().
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "base/clock.h"
#include "base/status.h"
#include "c10d_shm/communicator/peer_memory.h"
#include "c10d_shm/communicator/shm_communicator.h"
#include "shm/counter.h"
#include "shm/peers.h"

namespace sherd::c10d_shm {

struct P2pMessage {
  static constexpr int kAnyRank = -1;

  int peer = 0;  // Another rank; a receive may use kAnyRank.
  int tag = 0;
  // What the bytes are, e.g. "Float": both ends must name the same type. Longer names than kTypeMax
  // are truncated.
  std::string_view type{};
  // The bytes to send, or the room for a received message; a shorter message fills the beginning.
  // They must stay valid until `done`.
  Bytes bytes{};
  // How long its peer may keep it waiting, from when it is issued and after each piece that moves.
  Duration timeout{0};
  // Called once, with the rank that sent the message.
  std::function<void(const Status& outcome, int source)> done{};
  // When it has waited for too long; the channel sets it.
  Instant until{0};
};

class P2pChannel {
 public:
  // Messages up to this size are sent together with their header.
  static constexpr std::size_t kShortBytes = 1024;

  static std::size_t bytes(int ranks);
  // How much of that takes pages where each rank exchanges messages with two others, as neighbours
  // in a pipeline do. The queues between other ranks take none until they send messages.
  static std::size_t bytes_between_neighbours(int ranks);

  // `memory` is bytes(ranks) of a segment, aligned to kCacheLine, initially zeros. `peers` and
  // `clock` must outlive the channel. `single_copy`: whether processes may copy from each other;
  // equal on every rank.
  P2pChannel(
      Bytes memory, shm::Peers& peers, const Clock& clock, bool single_copy);
  P2pChannel(const P2pChannel&) = delete;
  P2pChannel& operator=(const P2pChannel&) = delete;

  // Fails at once if the receiver has died or left, or the group has ended.
  void send(P2pMessage message);
  void receive(P2pMessage message);

  // Moves what can be moved without waiting; returns false if that was nothing.
  bool progress();
  // Ends the messages that wait in vain, with the error that all ranks of the group get: all
  // messages for a dead or silent rank, only its own messages for a rank that has left.
  void check_peers();
  // Ends all messages, and revokes the memory that this rank lent.
  void end_all(const Status& why);
  bool idle() const;
  // Whether everything that this rank has to tell present ranks lies where they find it.
  bool has_posted_all() const;
  // The messages that have ended since the last call. The caller calls `done` of each, which may
  // issue other messages.
  struct Ended {
    P2pMessage message{};
    Status outcome{};
    int source = 0;
  };
  std::vector<Ended> take_ended() { return std::exchange(ended_, {}); }

  // Changes whenever there may be something to do.
  shm::Counter doorbell() const { return doorbell_of(peers_->rank()); }
  void ring_doorbell() { doorbell().advance(); }

 private:
  static constexpr std::size_t kSlots = 16;
  static constexpr std::size_t kStreamBytes = std::size_t{64} << 10;
  static constexpr std::size_t kTypeMax = 23;
  using TypeText = std::array<char, kTypeMax + 1>;  // Zero-terminated.
  struct MessageHeader {
    std::uint64_t id;
    std::uint64_t bytes;
    std::uint64_t address;
    std::int64_t tag;
    TypeText type;
  };
  struct HeaderSlot {
    MessageHeader header;
    std::array<std::byte, kShortBytes> content;  // Of a short message.
  };
  struct WaitingHeader {
    HeaderSlot slot{};
    // A short message, which ends when the slot is posted; a long one is in `sent`.
    std::optional<P2pMessage> message{};
  };
  struct Reply {
    std::uint64_t id;
    std::uint64_t what;
    // For kMismatch: the size of the receiver's room.
    std::uint64_t room;
    TypeText type;
  };
  static constexpr std::uint64_t kDone = 1;
  static constexpr std::uint64_t kPull = 2;
  static constexpr std::uint64_t kMismatch = 3;
  static constexpr std::uint64_t kFailed = 4;
  // From one rank to another; initially zeros.
  struct PairQueue {
    shm::CounterCell headers_posted;
    shm::CounterCell headers_taken;
    // Replies to headers of the other direction.
    shm::CounterCell replies_posted;
    shm::CounterCell replies_taken;
    shm::CounterCell pieces_filled;
    shm::CounterCell pieces_taken;
    std::array<HeaderSlot, kSlots> headers;
    std::array<Reply, kSlots> replies;
    std::array<std::byte, kStreamBytes> piece;
  };
  struct ReceivedHeader {
    MessageHeader header{};
    std::vector<std::byte> content{};
  };
  struct ChunkedTransfer {
    P2pMessage message{};
    std::size_t moved = 0;

    Bytes next_piece() const {
      const std::size_t rest = message.bytes.size() - moved;
      return message.bytes.subspan(moved, std::min(kStreamBytes, rest));
    }
  };
  // What this rank keeps for each other one.
  struct PeerQueues {
    std::deque<WaitingHeader> headers_waiting{};  // They wait for a slot.
    std::deque<Reply> replies_waiting{};
    // Long messages without a reply so far, by id.
    std::map<std::uint64_t, P2pMessage> sent{};
    std::deque<ReceivedHeader> arrived{};    // Not received yet.
    std::deque<ChunkedTransfer> outgoing{};  // Requested, in that order.
    std::deque<ChunkedTransfer> incoming{};
  };

  shm::Counter doorbell_of(int rank) const;
  PairQueue& pair_queue(int from, int to) const;
  bool take_headers(int rank);
  bool take_replies(int rank);
  bool post_waiting(int rank);
  bool fill_pieces(int rank);
  bool take_pieces(int rank);
  // Its peer has answered or moved a piece of it: its timeout starts again.
  void renew(P2pMessage& message) const;
  void begin_transfer(
      std::deque<ChunkedTransfer>& transfers, P2pMessage message) const;
  // Counts a piece of the first transfer, and ends the transfer if it was the last one.
  void end_piece(
      std::deque<ChunkedTransfer>& transfers, std::size_t bytes, int source);
  bool match();
  bool receive_from(int rank, P2pMessage& message);
  static TypeText type_text(std::string_view type);
  static std::string mismatch(
      std::uint64_t room,
      const TypeText& room_type,
      std::uint64_t found,
      const TypeText& found_type);
  void handle(int rank, const Reply& reply);
  Status blame_late_peer();
  void revoke_lent();
  void end_messages_of(int rank, const Status& why);
  void finish(P2pMessage message, const Status& outcome, int source);

  Bytes memory_;
  shm::Peers* peers_;
  const Clock* clock_;
  const PeerMemory peer_memory_;
  const bool single_copy_;
  std::vector<PeerQueues> others_;  // Indexed by rank.
  std::list<P2pMessage> receives_;
  std::vector<Ended> ended_;
  std::uint64_t next_id_ = 1;
};

}  // namespace sherd::c10d_shm
