// SPDX-License-Identifier: Apache-2.0
//
// RingCommunicator's connections: connecting, handshakes and their checks.
#include "ft/ring/ring_communicator.h"

#include <poll.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>
#include "base/check.h"
#include "base/hash.h"

namespace sherd::ft::ring {
namespace {

// The kernel repeats a lost SYN only after a second; a new attempt is faster.
constexpr Duration kDialAgain = std::chrono::milliseconds(300);

std::string layout_text(const Handshake& handshake) {
  return str(
      handshake.buckets, " buckets of ", handshake.elements, " floats (layout ",
      std::hex, handshake.layout, std::dec, ") in chunks of ",
      handshake.chunk_elements, ", ", handshake.window, " at once, between ",
      handshake.members, " members");
}

}  // namespace

Handshake RingCommunicator::own_handshake() const {
  const auto& options = context_.options;
  Handshake handshake;
  handshake.run = context_.run;
  handshake.from = options.replica;
  handshake.from_incarnation = options.incarnation;
  handshake.shard_rank = static_cast<std::uint32_t>(options.shard_rank);
  handshake.members = static_cast<std::uint32_t>(schedule_.options().members);
  handshake.window = static_cast<std::uint32_t>(options.slots);
  handshake.chunk_elements =
      static_cast<std::uint64_t>(schedule_.options().chunk_elements);
  handshake.buckets = options.elements.size();
  handshake.elements = static_cast<std::uint64_t>(std::accumulate(
      options.elements.begin(), options.elements.end(), std::int64_t{0}));
  handshake.layout = hash_of(options.elements);
  return handshake;
}

const Result<net::SocketAddress>& RingCommunicator::address_of(
    const PeerLink& link) const {
  return route_.receivers[static_cast<std::size_t>(link.index)];
}

const PeerLink* RingCommunicator::sender_of(ReplicaId replica) const {
  const auto found = std::ranges::find_if(links_, [&](const PeerLink& link) {
    return link.is_sender && replica_of(link) == replica;
  });
  return found == links_.end() ? nullptr : &*found;
}

std::string RingCommunicator::identity_mismatch(
    const Handshake& handshake) const {
  const PeerLink* link = sender_of(handshake.from);
  if (link != nullptr &&
      member(*link).incarnation == handshake.from_incarnation) {
    return {};
  }
  std::string expected;
  for (const auto& one : links_) {
    if (one.is_sender) {
      expected +=
          str(expected.empty() ? "" : ", ", "replica ", replica_of(one),
              " in life ", member(one).incarnation);
    }
  }
  return str(
      "expected ", expected, ", found replica ", handshake.from, " in life ",
      handshake.from_incarnation);
}

bool RingCommunicator::is_connected(ReplicaId replica) const {
  const PeerLink* link = sender_of(replica);
  return link != nullptr && link->connected;
}

std::string RingCommunicator::configuration_mismatch(
    const Handshake& handshake) const {
  Handshake own = own_handshake();
  const std::string ours = layout_text(own);
  own.from = handshake.from;
  own.from_incarnation = handshake.from_incarnation;
  own.to = handshake.to;
  own.to_incarnation = handshake.to_incarnation;
  own.memory = handshake.memory;
  own.memory_key = handshake.memory_key;
  own.challenge = handshake.challenge;
  own.proof = handshake.proof;
  if (own == handshake) {
    return {};
  }
  return str(
      "replica ", context_.options.replica, " has ", ours, ", replica ",
      handshake.from, " has ", layout_text(handshake));
}

void RingCommunicator::accept(FramedSocket socket, const Handshake& caller) {
  PeerLink& link = sender(sender_of(caller.from)->index);
  SHERD_ASSERT(!link.connected);
  Handshake handshake = own_handshake();
  handshake.to = member(link).replica;
  handshake.to_incarnation = member(link).incarnation;
  if (context_.options.memory != nullptr && caller.memory.bytes > 0) {
    auto opened = PeerFloats::open(caller.memory);
    if (opened.ok()) {
      link.memory.emplace(std::move(opened).value());
      handshake.memory_key = link.memory->key();
    }
  }
  handshake.proof =
      proof_of(epoch(), handshake, context_.key, caller.challenge);
  socket.queue_frame(frame_of(epoch(), handshake));
  socket.write();
  link.socket.emplace(std::move(socket));
  connected(link);
}

void RingCommunicator::connected(PeerLink& link) {
  link.connected = true;
  joined_ = std::ranges::all_of(
      links_, [](const PeerLink& one) { return one.connected; });
}

bool RingCommunicator::receivers_answer() const {
  return std::ranges::all_of(links_, [](const PeerLink& link) {
    return link.is_sender || link.connected;
  });
}

// The member that was not answered knows which link fails and tells all others. A member that waits
// for connections therefore waits longer, and accuses only members that do not report either.
Instant RingCommunicator::deadline() const {
  return receivers_answer() ? deadline_ + context_.options.connect_timeout / 4
                            : deadline_;
}

// Receivers come first.
void RingCommunicator::end_at_deadline() {
  const auto& missing = *std::ranges::find_if(
      links_, [](const PeerLink& link) { return !link.connected; });
  const bool says_why = !missing.is_sender && !missing.dial_problem.empty();
  end(RingFault::kUnreachable, replica_of(missing),
      str("replica ", replica_of(missing), " was not connected for ",
          text_of(epoch()), " within ",
          seconds(context_.options.connect_timeout), " s",
          says_why ? "; it " : "", says_why ? missing.dial_problem : ""));
}

bool RingCommunicator::dial(Instant now) {
  if (joined_) {
    return false;
  }
  for (const auto& link : links_) {
    if (!link.is_sender && !address_of(link).ok()) {
      end(RingFault::kUnreachable, replica_of(link),
          address_of(link).status().message());
      return true;
    }
  }
  if (now >= deadline()) {
    if (std::exchange(suspects_, true)) {
      end_at_deadline();
      return true;
    }
    // This process itself may not have run, so the others get time to answer what it says now.
    deadline_ += now - deadline() + context_.options.connect_timeout / 8;
  }
  bool moved = false;
  for (auto& link : links_) {
    if (!link.is_sender && !ended_) {
      moved = dial(link, now) || moved;
    }
  }
  return moved;
}

bool RingCommunicator::dial(PeerLink& link, Instant now) {
  if (link.socket || (!link.dialling.open() && now < link.dial_at)) {
    return false;
  }
  if (link.dialling.open() && now < link.dial_at) {
    return dialled(link, now);
  }
  auto begun = net::begin_connect(address_of(link).value());
  if (begun.ok()) {
    link.dialling = std::move(begun).value();
    link.dial_at = now + kDialAgain;
  } else if (begun.status().code() == ErrorCode::kUnavailable) {
    end(RingFault::kResources, context_.options.replica,
        begun.status().message());
  } else {
    dial_again(link, now, begun.status().message());
  }
  return true;
}

bool RingCommunicator::dialled(PeerLink& link, Instant now) {
  pollfd ready{link.dialling.get(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) {
    return false;
  }
  const int error = net::connect_error(link.dialling.get());
  if (error != 0) {
    link.dialling.close();
    dial_again(link, now, std::strerror(error));
    return true;
  }
  net::set_peer_options(link.dialling.get(), context_.options.user_timeout);
  // The receiver's challenge comes first.
  link.socket.emplace(std::move(link.dialling));
  return true;
}

void RingCommunicator::read_challenge(PeerLink& link) {
  const auto theirs = parse_challenge(link.socket->text());
  if (!theirs.ok()) {
    on_connection_lost(link, theirs.status());
    return;
  }
  const RingMember& peer = member(link);
  link.challenge = net::random_number();
  Handshake handshake = own_handshake();
  handshake.to = peer.replica;
  handshake.to_incarnation = peer.incarnation;
  handshake.challenge = link.challenge;
  if (context_.options.memory != nullptr) {
    handshake.memory = context_.options.memory->name();
  }
  handshake.proof = proof_of(epoch(), handshake, peer.key, theirs.value());
  link.socket->queue_frame(frame_of(epoch(), handshake));
  link.socket->write();
}

void RingCommunicator::dial_again(
    PeerLink& link, Instant now, const std::string& problem) {
  const RingMember& peer = member(link);
  // A member listens as long as its process lives, so retrying a refused connection is useless.
  if (problem == std::strerror(ECONNREFUSED)) {
    end(RingFault::kUnreachable, peer.replica,
        str("replica ", peer.replica, " at ", peer.host, ":", peer.port, ": ",
            problem));
    return;
  }
  link.dial_problem = problem;
  link.dial_at = now + link.dial_backoff.next();
}

void RingCommunicator::read_answer(PeerLink& link) {
  const RingMember& peer = member(link);
  if (link.socket->header().kind == FrameKind::kRefusal) {
    end(RingFault::kMismatch, peer.replica,
        str("replica ", peer.replica,
            " refuses: ", parse_refusal(link.socket->text())));
    return;
  }
  const auto handshake = parse_handshake(link.socket->text());
  if (!handshake.ok()) {
    on_connection_lost(link, handshake.status());
    return;
  }
  if (!net::same_code(
          handshake.value().proof,
          proof_of(epoch(), handshake.value(), peer.key, link.challenge))) {
    end(RingFault::kMismatch, peer.replica,
        str("expected replica ", peer.replica, " at ", peer.host, ":",
            peer.port, ", found somebody who does not know its key"));
    return;
  }
  if (handshake.value().from != peer.replica ||
      handshake.value().from_incarnation != peer.incarnation) {
    end(RingFault::kMismatch, peer.replica,
        str("expected replica ", peer.replica, " in life ", peer.incarnation,
            " at ", peer.host, ":", peer.port, ", found replica ",
            handshake.value().from, " in life ",
            handshake.value().from_incarnation));
    return;
  }
  if (auto why = configuration_mismatch(handshake.value()); !why.empty()) {
    end(RingFault::kMismatch, peer.replica, std::move(why));
    return;
  }
  const SharedFloats* memory = context_.options.memory;
  receivers_.read_memory[static_cast<std::size_t>(link.index)] =
      memory != nullptr && handshake.value().memory_key == memory->key();
  connected(link);
}

}  // namespace sherd::ft::ring
