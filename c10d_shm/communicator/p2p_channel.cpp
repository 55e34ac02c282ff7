// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/communicator/p2p_channel.h"

#include "base/check.h"

namespace sherd::c10d_shm {

std::size_t P2pChannel::bytes(int ranks) {
  return index(ranks) * sizeof(shm::CounterCell) +
      index(ranks) * index(ranks) * sizeof(PairQueue);
}

std::size_t P2pChannel::bytes_between_neighbours(int ranks) {
  const int others = std::min(ranks - 1, 2);
  return index(ranks) * sizeof(shm::CounterCell) +
      index(ranks) * index(others) * sizeof(PairQueue);
}

P2pChannel::P2pChannel(
    Bytes memory, shm::Peers& peers, const Clock& clock, bool single_copy)
    : memory_(memory),
      peers_(&peers),
      clock_(&clock),
      peer_memory_(peers, clock),
      single_copy_(single_copy),
      others_(index(peers.ranks())) {
  SHERD_ASSERT(
      shm::has_room(memory, bytes(peers.ranks())),
      "memory for all pair queues");
}

shm::Counter P2pChannel::doorbell_of(int rank) const {
  return shm::Counter(
      reinterpret_cast<shm::CounterCell*>(memory_.data())[index(rank)]);
}

P2pChannel::PairQueue& P2pChannel::pair_queue(int from, int to) const {
  auto* pair_queues = reinterpret_cast<PairQueue*>(
      memory_.data() + index(peers_->ranks()) * sizeof(shm::CounterCell));
  return pair_queues[index(from) * index(peers_->ranks()) + index(to)];
}

void P2pChannel::finish(P2pMessage message, const Status& outcome, int source) {
  ended_.push_back({std::move(message), outcome, source});
}

P2pChannel::TypeText P2pChannel::type_text(std::string_view type) {
  TypeText text{};
  copy_bytes(type.data(), text.data(), std::min(type.size(), kTypeMax));
  return text;
}

// Empty if the message fits into the room for it. Both ends use the same words.
std::string P2pChannel::mismatch(
    std::uint64_t room,
    const TypeText& room_type,
    std::uint64_t found,
    const TypeText& found_type) {
  if (found <= room && found_type == room_type) {
    return {};
  }
  return str(
      "expected at most ", room, " bytes of ", room_type.data(),
      ", for which the receiver has room, found ", found, " bytes of ",
      found_type.data());
}

void P2pChannel::send(P2pMessage message) {
  // In this order: a rank that leaves because of trouble has recorded it before.
  const bool left = peers_->has_left(message.peer);
  Status refused = peers_->check();
  if (refused.ok() && left) {
    refused = peers_->departure(message.peer);
  }
  if (!refused.ok()) {
    finish(std::move(message), refused, peers_->rank());
    return;
  }
  renew(message);
  PeerQueues& peer = others_[index(message.peer)];
  WaitingHeader& waiting = peer.headers_waiting.emplace_back();
  MessageHeader& header = waiting.slot.header;
  header.id = next_id_++;
  header.bytes = message.bytes.size();
  header.tag = message.tag;
  header.type = type_text(message.type);
  const int to = message.peer;
  if (message.bytes.size() <= kShortBytes) {
    copy_bytes(
        message.bytes.data(), waiting.slot.content.data(),
        message.bytes.size());
    waiting.message = std::move(message);
  } else {
    header.address = reinterpret_cast<std::uintptr_t>(message.bytes.data());
    peer.sent.emplace(header.id, std::move(message));
  }
  post_waiting(to);
}

void P2pChannel::renew(P2pMessage& message) const {
  message.until = clock_->now() + message.timeout;
}

void P2pChannel::receive(P2pMessage message) {
  renew(message);
  receives_.push_back(std::move(message));
}

bool P2pChannel::idle() const {
  return receives_.empty() &&
      std::ranges::all_of(others_, [](const PeerQueues& peer) {
           return peer.headers_waiting.empty() &&
               peer.replies_waiting.empty() && peer.sent.empty() &&
               peer.outgoing.empty() && peer.incoming.empty();
         });
}

bool P2pChannel::has_posted_all() const {
  for (int r = 0; r < peers_->ranks(); ++r) {
    const PeerQueues& peer = others_[index(r)];
    if (!(peer.headers_waiting.empty() && peer.replies_waiting.empty()) &&
        !peers_->has_left(r)) {
      return false;
    }
  }
  return true;
}

bool P2pChannel::progress() {
  bool moved = false;
  for (int r = 0; r < peers_->ranks(); ++r) {
    if (r != peers_->rank()) {
      moved = take_headers(r) || moved;
      moved = take_replies(r) || moved;
    }
  }
  moved = match() || moved;
  for (int r = 0; r < peers_->ranks(); ++r) {
    if (r != peers_->rank()) {
      moved = take_pieces(r) || moved;
      moved = fill_pieces(r) || moved;
      moved = post_waiting(r) || moved;
    }
  }
  return moved;
}

bool P2pChannel::take_headers(int rank) {
  PairQueue& from = pair_queue(rank, peers_->rank());
  shm::Counter taken(from.headers_taken);
  const std::uint64_t posted = shm::Counter(from.headers_posted).value();
  const std::uint64_t begin = taken.value();
  for (std::uint64_t n = begin; n < posted; ++n) {
    const HeaderSlot& slot = from.headers[n % kSlots];
    ReceivedHeader arrived{.header = slot.header};
    if (slot.header.address == 0) {
      const auto size =
          std::min<std::size_t>(slot.header.bytes, slot.content.size());
      arrived.content.assign(
          slot.content.begin(),
          slot.content.begin() + static_cast<std::ptrdiff_t>(size));
    }
    others_[index(rank)].arrived.push_back(std::move(arrived));
  }
  if (posted == begin) {
    return false;
  }
  taken.post(posted);
  doorbell_of(rank).advance();  // Slots are free.
  return true;
}

bool P2pChannel::take_replies(int rank) {
  PairQueue& from = pair_queue(rank, peers_->rank());
  shm::Counter taken(from.replies_taken);
  const std::uint64_t posted = shm::Counter(from.replies_posted).value();
  const std::uint64_t begin = taken.value();
  for (std::uint64_t n = begin; n < posted; ++n) {
    const Reply reply = from.replies[n % kSlots];
    taken.post(n + 1);
    handle(rank, reply);
  }
  if (posted == begin) {
    return false;
  }
  doorbell_of(rank).advance();
  return true;
}

void P2pChannel::handle(int rank, const Reply& reply) {
  PeerQueues& peer = others_[index(rank)];
  const auto found = peer.sent.find(reply.id);
  if (found == peer.sent.end()) {
    return;  // It has ended meanwhile.
  }
  P2pMessage message = std::move(found->second);
  peer.sent.erase(found);
  if (reply.what == kPull) {
    begin_transfer(peer.outgoing, std::move(message));
    return;
  }
  const auto failure = [&](ErrorCode code, const std::string& why) {
    return Status(
        code,
        str("[c10d_shm] send of tag ", message.tag, " to ", peers_->name(rank),
            ": ", why));
  };
  Status outcome;
  if (reply.what == kMismatch) {
    outcome = failure(
        ErrorCode::kPeerMismatch,
        mismatch(
            reply.room, reply.type, message.bytes.size(),
            type_text(message.type)));
  } else if (reply.what == kFailed) {
    outcome = failure(ErrorCode::kUnavailable, "it could not read the message");
  }
  finish(std::move(message), outcome, peers_->rank());
}

bool P2pChannel::post_waiting(int rank) {
  PeerQueues& peer = others_[index(rank)];
  PairQueue& to = pair_queue(peers_->rank(), rank);
  shm::Counter headers(to.headers_posted);
  shm::Counter replies(to.replies_posted);
  bool posted = false;
  while (!peer.headers_waiting.empty() &&
         headers.value() - shm::Counter(to.headers_taken).value() < kSlots) {
    WaitingHeader next = std::move(peer.headers_waiting.front());
    peer.headers_waiting.pop_front();
    to.headers[headers.value() % kSlots] = next.slot;
    headers.post(headers.value() + 1);
    posted = true;
    if (next.message) {
      finish(std::move(*next.message), {}, peers_->rank());
    }
  }
  while (!peer.replies_waiting.empty() &&
         replies.value() - shm::Counter(to.replies_taken).value() < kSlots) {
    to.replies[replies.value() % kSlots] = peer.replies_waiting.front();
    peer.replies_waiting.pop_front();
    replies.post(replies.value() + 1);
    posted = true;
  }
  if (posted) {
    doorbell_of(rank).advance();
  }
  return posted;
}

// Takes receives in the order in which they were issued; headers with one tag are in the sender's
// order.
bool P2pChannel::match() {
  bool moved = false;
  for (auto next = receives_.begin(); next != receives_.end();) {
    const auto here = next++;
    const bool any = here->peer == P2pMessage::kAnyRank;
    for (int i = 1; i <= (any ? peers_->ranks() - 1 : 1); ++i) {
      const int from =
          any ? (peers_->rank() + i) % peers_->ranks() : here->peer;
      if (receive_from(from, *here)) {
        receives_.erase(here);
        moved = true;
        break;
      }
    }
  }
  return moved;
}

// Returns false if no such header has arrived; otherwise the message is on its way.
bool P2pChannel::receive_from(int rank, P2pMessage& message) {
  PeerQueues& peer = others_[index(rank)];
  const auto found =
      std::ranges::find_if(peer.arrived, [&](const ReceivedHeader& each) {
        return each.header.tag == message.tag;
      });
  if (found == peer.arrived.end()) {
    return false;
  }
  const ReceivedHeader arrived = std::move(*found);
  const MessageHeader& header = arrived.header;
  peer.arrived.erase(found);
  const bool is_short = header.address == 0;
  const std::size_t room = message.bytes.size();
  const TypeText type = type_text(message.type);
  const std::string unlike = mismatch(room, type, header.bytes, header.type);
  const auto reply = [&](std::uint64_t what) {
    peer.replies_waiting.push_back(
        {.id = header.id, .what = what, .room = room, .type = type});
  };
  Status outcome;
  if (!unlike.empty()) {
    outcome = Status(
        ErrorCode::kPeerMismatch,
        str("[c10d_shm] receive of tag ", message.tag, " of ",
            peers_->name(rank), ": ", unlike));
    if (!is_short) {
      reply(kMismatch);
    }
    finish(std::move(message), outcome, rank);
    return true;
  }
  message.bytes = message.bytes.first(header.bytes);
  if (is_short) {
    copy_bytes(
        arrived.content.data(), message.bytes.data(), message.bytes.size());
  } else if (single_copy_) {
    outcome = peer_memory_.read(rank, header.address, message.bytes);
    reply(outcome.ok() ? kDone : kFailed);
    post_waiting(rank);
    // The sender revokes its memory, then looks for this reply once more: if its call fails because
    // the reply is missing, this one fails, too.
    if (outcome.ok()) {
      outcome = peer_memory_.still_lent(rank);
    }
  } else {
    reply(kPull);
    begin_transfer(peer.incoming, std::move(message));
    return true;
  }
  finish(std::move(message), outcome, rank);
  return true;
}

// A piece is filled when the one before has been taken.
bool P2pChannel::fill_pieces(int rank) {
  PeerQueues& peer = others_[index(rank)];
  PairQueue& to = pair_queue(peers_->rank(), rank);
  shm::Counter filled(to.pieces_filled);
  if (peer.outgoing.empty() ||
      filled.value() != shm::Counter(to.pieces_taken).value()) {
    return false;
  }
  const Bytes piece = peer.outgoing.front().next_piece();
  copy_bytes(piece.data(), to.piece.data(), piece.size());
  filled.post(filled.value() + 1);
  doorbell_of(rank).advance();
  end_piece(peer.outgoing, piece.size(), peers_->rank());
  return true;
}

bool P2pChannel::take_pieces(int rank) {
  PeerQueues& peer = others_[index(rank)];
  PairQueue& from = pair_queue(rank, peers_->rank());
  shm::Counter taken(from.pieces_taken);
  if (peer.incoming.empty() ||
      taken.value() == shm::Counter(from.pieces_filled).value()) {
    return false;
  }
  const Bytes piece = peer.incoming.front().next_piece();
  copy_bytes(from.piece.data(), piece.data(), piece.size());
  taken.post(taken.value() + 1);
  doorbell_of(rank).advance();
  end_piece(peer.incoming, piece.size(), rank);
  return true;
}

void P2pChannel::begin_transfer(
    std::deque<ChunkedTransfer>& transfers, P2pMessage message) const {
  renew(message);
  transfers.push_back({.message = std::move(message)});
}

void P2pChannel::end_piece(
    std::deque<ChunkedTransfer>& transfers, std::size_t bytes, int source) {
  ChunkedTransfer& first = transfers.front();
  first.moved += bytes;
  if (first.moved == first.message.bytes.size()) {
    P2pMessage message = std::move(first.message);
    transfers.pop_front();
    finish(std::move(message), {}, source);
  }
  if (!transfers.empty()) {
    renew(transfers.front().message);
  }
}

void P2pChannel::check_peers() {
  // Read before the last progress: what a rank posted before it ended counts. The trouble is read
  // last: a rank that leaves because of it has recorded it before.
  std::vector<int> left;
  for (int r = 0; r < peers_->ranks(); ++r) {
    if (r != peers_->rank() && peers_->has_left(r)) {
      left.push_back(r);
    }
  }
  Status trouble = peers_->check();
  while (progress()) {
  }
  for (const int r : left) {
    if (trouble.ok()) {
      end_messages_of(r, peers_->departure(r));
    }
  }
  if (trouble.ok()) {
    trouble = blame_late_peer();
  }
  if (!trouble.ok()) {
    end_all(trouble);
  }
}

// Blames the rank that has kept a message waiting for too long; ok if there is none.
Status P2pChannel::blame_late_peer() {
  const Instant now = clock_->now();
  const auto is_late = [&](const P2pMessage& message) {
    return now >= message.until;
  };
  // Those behind the first one wait for it.
  const auto is_late_first = [&](const std::deque<ChunkedTransfer>& streams) {
    return !streams.empty() && is_late(streams.front().message);
  };
  for (const P2pMessage& message : receives_) {
    if (is_late(message) && message.peer == P2pMessage::kAnyRank) {
      peers_->give_up("a receive from any rank timed out");
      return peers_->check();
    }
    if (is_late(message)) {
      return peers_->blame(message.peer);
    }
  }
  for (int r = 0; r < peers_->ranks(); ++r) {
    const PeerQueues& peer = others_[index(r)];
    if (std::ranges::any_of(
            peer.headers_waiting,
            [&](const auto& each) {
              return each.message && is_late(*each.message);
            }) ||
        std::ranges::any_of(
            peer.sent,
            [&](const auto& each) { return is_late(each.second); }) ||
        is_late_first(peer.outgoing) || is_late_first(peer.incoming)) {
      return peers_->blame(r);
    }
  }
  return {};
}

void P2pChannel::end_messages_of(int rank, const Status& why) {
  PeerQueues& peer = others_[index(rank)];
  std::vector<P2pMessage> ended;
  for (WaitingHeader& waiting : peer.headers_waiting) {
    if (waiting.message) {
      ended.push_back(std::move(*waiting.message));
    }
  }
  for (auto& [id, message] : peer.sent) {
    ended.push_back(std::move(message));
  }
  for (auto* streams : {&peer.outgoing, &peer.incoming}) {
    for (ChunkedTransfer& stream : *streams) {
      ended.push_back(std::move(stream.message));
    }
    streams->clear();
  }
  peer.sent.clear();
  peer.headers_waiting.clear();
  peer.replies_waiting.clear();
  // A receive from any rank stays as long as another rank may still send.
  bool others_left = true;
  for (int r = 0; r < peers_->ranks(); ++r) {
    others_left = others_left && (r == peers_->rank() || peers_->has_left(r));
  }
  for (auto next = receives_.begin(); next != receives_.end();) {
    const auto here = next++;
    if (here->peer == rank ||
        (others_left && here->peer == P2pMessage::kAnyRank)) {
      ended.push_back(std::move(*here));
      receives_.erase(here);
    }
  }
  for (P2pMessage& message : ended) {
    finish(std::move(message), why, rank);
  }
}

// Comes before anybody learns that a message has failed and reuses its memory. It is not done if
// nothing is lent: a receiver may still be about to look for the mark after a message that both
// have completed.
void P2pChannel::revoke_lent() {
  if (std::ranges::all_of(
          others_, [](const PeerQueues& peer) { return peer.sent.empty(); })) {
    return;
  }
  peers_->revoke_memory();
  for (int r = 0; r < peers_->ranks(); ++r) {
    if (r != peers_->rank()) {
      take_replies(r);
    }
  }
}

void P2pChannel::end_all(const Status& why) {
  revoke_lent();
  for (int r = 0; r < peers_->ranks(); ++r) {
    end_messages_of(r, why);
  }
  std::list<P2pMessage> ended;
  ended.swap(receives_);
  for (P2pMessage& message : ended) {
    finish(std::move(message), why, peers_->rank());
  }
}

}  // namespace sherd::c10d_shm
