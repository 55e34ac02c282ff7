// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/handshake_queue.h"

#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <utility>
#include "base/check.h"
#include "base/descriptor.h"
#include "net/tcp_socket.h"

namespace sherd::ft::ring {
namespace {

constexpr std::size_t kPendingMax = 32;
constexpr int kAcceptsMax = 8;
constexpr Duration kExhaustedPause = std::chrono::milliseconds(50);
constexpr Duration kHandshakeTimeout = std::chrono::seconds(1);

}  // namespace

void HandshakeQueue::accept_waiting(int listener, Instant now) {
  for (int i = 0; i < kAcceptsMax; ++i) {
    Descriptor socket(
        ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.open()) {
      const bool exhausted = errno == EMFILE || errno == ENFILE ||
          errno == ENOBUFS || errno == ENOMEM;
      closed_until_ = exhausted ? now + kExhaustedPause : Instant{};
      return;
    }
    net::set_peer_options(socket.get(), options_.user_timeout);
    evict_oldest(now);
    IncomingPeer& peer = pending_.emplace_back(IncomingPeer{
        .link = FramedSocket(std::move(socket)),
        .challenge = net::random_number(),
        .until = now + kHandshakeTimeout});
    peer.link.queue_frame(challenge_frame(peer.challenge));
    peer.link.write();
  }
}

void HandshakeQueue::evict_oldest(Instant now) {
  if (pending_.size() < kPendingMax) {
    return;
  }
  // Members send their handshake at once, so the oldest silent connection is probably not a
  // member's.
  auto oldest = std::ranges::find(pending_, false, &IncomingPeer::spoke);
  if (oldest == pending_.end()) {
    oldest = pending_.begin();
  }
  if (oldest->spoke) {
    ++counters_.refused_connections;
  } else {
    ++counters_.silent_connections;
    warn(oldest->link, now, "makes way for others: it has said nothing yet");
  }
  pending_.erase(oldest);
}

void HandshakeQueue::warn(
    const FramedSocket& link, Instant now, const std::string& what) {
  log_.warn(
      now,
      str("[ft] ", net::peer_of(link.fd()), ", at the port of the all-reduce, ",
          what));
}

void HandshakeQueue::advance(Instant now) {
  if (now >= closed_until_) {
    closed_until_ = {};
  }
  std::erase_if(
      pending_, [&](IncomingPeer& peer) { return advance(peer, now); });
}

bool HandshakeQueue::refuse(const FramedSocket& link, Instant now) {
  ++counters_.refused_connections;
  warn(
      link, now,
      "is refused: expected a member's handshake, found other bytes");
  return true;
}

bool HandshakeQueue::advance(IncomingPeer& peer, Instant now) {
  // Read first: this process may not have run for a while, and what has arrived meanwhile is in
  // time.
  if (peer.spoke ? has_spoken_again(peer) : read_handshake(peer, now)) {
    return true;
  }
  if (now < peer.until) {
    return false;
  }
  ++(peer.spoke ? counters_.stale_connections : counters_.silent_connections);
  if (!peer.spoke) {
    warn(
        peer.link, now,
        str("is refused: expected a member's handshake within ",
            seconds(kHandshakeTimeout), " s, found none"));
  }
  return true;
}

// The peer waits for an answer, so nothing but its end may arrive.
bool HandshakeQueue::has_spoken_again(IncomingPeer& peer) {
  const bool silent = peer.link.read() == FramedSocket::ReadEvent::kNothing;
  counters_.refused_connections += silent ? 0 : 1;
  return !silent;
}

bool HandshakeQueue::read_handshake(IncomingPeer& peer, Instant now) {
  FramedSocket& link = peer.link;
  for (;;) {
    const auto got = link.read();
    if (got == FramedSocket::ReadEvent::kNothing) {
      return false;
    }
    const auto& header = link.header();
    const bool ended = got == FramedSocket::ReadEvent::kEnd;
    if (ended && link.problem().code() == ErrorCode::kPeerLost) {
      ++counters_.refused_connections;
      return true;
    }
    if (ended ||
        (got == FramedSocket::ReadEvent::kHeader &&
         header.kind != FrameKind::kHandshake)) {
      return refuse(link, now);
    }
    if (got == FramedSocket::ReadEvent::kHeader) {
      link.receive_text();
    }
    if (got == FramedSocket::ReadEvent::kFrame) {
      break;
    }
  }
  const auto handshake = parse_handshake(link.text());
  if (!handshake.ok() || !link.intact()) {
    return refuse(link, now);
  }
  peer.spoke = true;
  peer.epoch = link.header().epoch;
  peer.handshake = handshake.value();
  peer.until = now + options_.connect_timeout;
  return false;
}

void HandshakeQueue::polls(std::vector<pollfd>& list) const {
  for (const auto& peer : pending_) {
    list.push_back({peer.link.fd(), POLLIN, 0});
  }
}

std::optional<Instant> HandshakeQueue::next_instant() const {
  std::optional<Instant> next;
  if (closed_until_ != Instant{}) {
    next = closed_until_;
  }
  for (const auto& peer : pending_) {
    next = earlier(next, peer.until);
  }
  return next;
}

}  // namespace sherd::ft::ring
