// SPDX-License-Identifier: Apache-2.0
//
// Point-to-point messages with tags between any two ranks of a segment, beside and independent of
// collectives. A short message travels with its header, and its sender is done at once. A long one
// stays where it is until the receiver, which has matched the header, copies it directly
// (peer_memory.h), or asks for it piece by piece where the kernel forbids that. A message may be
// shorter than the room for it, but not of another type. The rings between two ranks are short,
// but both ends keep what waits in memory of their own, so a message that nobody receives yet
// holds up no other. Refers to memory of a segment, which must outlive it. Thread rule: one thread
// at a time; ring_doorbell() any.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
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

  int peer = 0;  // Another rank; when received, kAnyRank too.
  int tag = 0;
  // What the bytes are, e.g. "Float": both ends must say the same. What is
  // longer than kTypeMax is cut.
  std::string_view type{};
  // What is sent, or room for what is received, of which a shorter message
  // fills the beginning. Must stay until `done`.
  Bytes bytes{};
  Instant until{0};
  // To be called once, with who sent it.
  std::function<void(const Status& outcome, int source)> done{};
};

struct P2pChannelOptions {
  // Equal on every rank: whether processes may copy from each other.
  bool single_copy = false;
};

class P2pChannel {
 public:
  // Up to here a message travels with its header.
  static constexpr std::size_t kShortBytes = 1024;

  static std::size_t bytes(int ranks);

  // `memory`: bytes(ranks) of a segment, aligned to kCacheLine, zeros at first.
  // `peers` and `clock` must outlive it.
  P2pChannel(
      Bytes memory,
      shm::Peers& peers,
      const Clock& clock,
      const P2pChannelOptions& options);
  P2pChannel(const P2pChannel&) = delete;
  P2pChannel& operator=(const P2pChannel&) = delete;

  // Fails at once where the receiver has died or left, or the group has ended.
  void send(P2pMessage message);
  void receive(P2pMessage message);

  // Moves what can be moved without waiting; false when that was nothing.
  bool progress();
  // Ends the messages that wait in vain, with the error that all ranks of the group
  // have: all of them for a dead or silent rank, only its own for one that has left.
  void check_peers();
  // Ends everything, and revokes the memory that this rank lent.
  void end_all(const Status& why);
  bool idle() const;
  // Whether all that this rank has to tell ranks that are there lies where they find it.
  bool has_posted_all() const;
  // The messages that have ended since the last call. The caller calls each one's
  // `done`, which may issue other messages.
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
  using TypeText = std::array<char, kTypeMax + 1>;  // Ends with a zero.
  struct MessageHeader {
    std::uint64_t id;
    std::uint64_t bytes;
    std::uint64_t address;
    std::int64_t tag;
    TypeText type;
    std::array<std::byte, kShortBytes> content;
  };
  struct Reply {
    std::uint64_t id;
    std::uint64_t what;
    // For kMismatch: what the receiver has room for.
    std::uint64_t room;
    TypeText type;
  };
  static constexpr std::uint64_t kDone = 1;
  static constexpr std::uint64_t kPull = 2;
  static constexpr std::uint64_t kMismatch = 3;
  // From one rank to another; zeros at first.
  struct PairQueue {
    shm::CounterCell headers_posted;
    shm::CounterCell headers_taken;
    shm::CounterCell replies_posted;  // To headers of the other direction.
    shm::CounterCell replies_taken;
    shm::CounterCell pieces_filled;
    shm::CounterCell pieces_taken;
    std::array<MessageHeader, kSlots> headers;
    std::array<Reply, kSlots> replies;
    std::array<std::byte, kStreamBytes> piece;
  };
  struct ReceivedHeader {
    std::uint64_t id = 0;
    std::uint64_t bytes = 0;
    std::uint64_t address = 0;
    int tag = 0;
    TypeText type{};
    std::vector<std::byte> content{};
  };
  struct ChunkedTransfer {
    P2pMessage message{};
    std::uint64_t id = 0;
    std::size_t moved = 0;

    Bytes next_piece() const {
      const std::size_t rest = message.bytes.size() - moved;
      return message.bytes.subspan(moved, std::min(kStreamBytes, rest));
    }
  };
  // What this rank keeps of each other one.
  struct PeerQueues {
    std::deque<MessageHeader> headers_waiting{};  // For a slot.
    std::deque<Reply> replies_waiting{};
    std::map<std::uint64_t, P2pMessage> sent{};  // Long ones, until replied to.
    std::deque<ReceivedHeader> arrived{};        // Not received yet.
    std::deque<ChunkedTransfer> outgoing{};      // Asked for, in that order.
    std::deque<ChunkedTransfer> incoming{};
  };

  shm::Counter doorbell_of(int rank) const;
  PairQueue& pair_queue(int from, int to) const;
  bool take_headers(int rank);
  bool take_replies(int rank);
  bool post_waiting(int rank);
  bool fill_pieces(int rank);
  bool take_pieces(int rank);
  // Counts a piece of the first transfer, and ends that when it was the last one.
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
  const P2pChannelOptions options_;
  std::vector<PeerQueues> others_;  // By rank.
  std::list<P2pMessage> receives_;
  std::vector<Ended> ended_;
  std::uint64_t next_id_ = 1;
};

}  // namespace sherd::c10d_shm
