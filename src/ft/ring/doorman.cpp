// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/doorman.h"

#include <sys/socket.h>
#include <algorithm>
#include <cerrno>
#include <utility>
#include "ft/ring/socket.h"

namespace sherd::ft::ring {
namespace {

constexpr std::size_t kGuestsMax = 32;
constexpr int kAcceptsMax = 8;
constexpr Duration kExhaustedPause = std::chrono::milliseconds(50);
constexpr Duration kHelloTime = std::chrono::seconds(1);

}  // namespace

void Doorman::let_in(int listener, Instant now) {
  for (int i = 0; i < kAcceptsMax; ++i) {
    Descriptor socket(
        ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.open()) {
      const bool exhausted = errno == EMFILE || errno == ENFILE ||
          errno == ENOBUFS || errno == ENOMEM;
      closed_until_ = exhausted ? now + kExhaustedPause : Instant{};
      return;
    }
    set_peer_options(
        socket.get(),
        {.user_timeout = options_.user_timeout,
         .keep_alive_idle = options_.keep_alive_idle});
    make_room();
    Guest guest;
    guest.link.emplace(std::move(socket));
    guest.until = now + kHelloTime;
    guests_.push_back(std::move(guest));
  }
}

void Doorman::make_room() {
  if (guests_.size() < kGuestsMax) {
    return;
  }
  // Members speak at once, so that the oldest silent one is hardly one.
  auto oldest = std::find_if(
      guests_.begin(), guests_.end(),
      [](const Guest& guest) { return !guest.caller; });
  if (oldest == guests_.end()) {
    oldest = guests_.begin();
  }
  ++(oldest->caller ? counters_.refused_connections
                    : counters_.silent_connections);
  guests_.erase(oldest);
}

void Doorman::advance(Instant now) {
  std::erase_if(guests_, [&](Guest& guest) { return listen_to(guest, now); });
}

bool Doorman::listen_to(Guest& guest, Instant now) {
  if (now >= guest.until) {
    ++(guest.caller ? counters_.stale_connections
                    : counters_.silent_connections);
    return true;
  }
  if (guest.caller) {
    // It has nothing to say before it is answered: only its end may come.
    const bool silent = guest.caller->link.read() == Link::Got::kNothing;
    counters_.refused_connections += silent ? 0 : 1;
    return !silent;
  }
  for (;;) {
    const auto got = guest.link->read();
    if (got == Link::Got::kNothing) {
      return false;
    }
    const auto& header = guest.link->header();
    if (got == Link::Got::kEnd ||
        (got == Link::Got::kHeader && header.kind != FrameKind::kHello)) {
      ++counters_.refused_connections;
      return true;
    }
    if (got == Link::Got::kHeader) {
      guest.link->payload_to_text();
    }
    if (got == Link::Got::kFrame) {
      break;
    }
  }
  const auto hello = parse_hello(guest.link->text());
  if (!hello.ok() || !guest.link->intact()) {
    ++counters_.refused_connections;
    return true;
  }
  const Epoch epoch = guest.link->header().epoch;
  guest.caller = Caller{std::move(*guest.link), epoch, hello.value()};
  guest.link.reset();
  guest.until = now + options_.connect_timeout;
  return false;
}

void Doorman::polls(std::vector<pollfd>& list) const {
  for (const auto& guest : guests_) {
    const int fd = guest.caller ? guest.caller->link.fd() : guest.link->fd();
    list.push_back({fd, POLLIN, 0});
  }
}

std::optional<Instant> Doorman::next_instant() const {
  std::optional<Instant> next;
  if (closed_until_ != Instant{}) {
    next = closed_until_;
  }
  for (const auto& guest : guests_) {
    next = std::min(next.value_or(guest.until), guest.until);
  }
  return next;
}

}  // namespace sherd::ft::ring
