// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/farewell.h"

#include <sys/socket.h>
#include <array>
#include <cerrno>
#include <utility>

namespace sherd::ft::ring {
namespace {

constexpr std::size_t kLeavingMax = 16;
constexpr Duration kPatience = std::chrono::milliseconds(200);

}  // namespace

void Farewells::add(Link::Rest rest) {
  if (!rest.socket.open()) {
    return;
  }
  Leaving leaving{std::move(rest), 0, false, std::nullopt};
  if (step(leaving)) {
    return;
  }
  if (leaving_.size() == kLeavingMax) {
    leaving_.pop_front();
  }
  leaving_.push_back(std::move(leaving));
}

bool Farewells::step(Leaving& leaving) {
  const int fd = leaving.rest.socket.get();
  const std::string& bytes = leaving.rest.bytes;
  while (leaving.sent < bytes.size()) {
    const ssize_t sent = ::send(
        fd, bytes.data() + leaving.sent, bytes.size() - leaving.sent,
        MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) {
        return true;
      }
      break;
    }
    leaving.sent += static_cast<std::size_t>(sent);
  }
  if (!leaving.said && leaving.sent == bytes.size()) {
    ::shutdown(fd, SHUT_WR);
    leaving.said = true;
  }
  std::array<char, 65536> unread = {};
  const ssize_t got = ::recv(fd, unread.data(), unread.size(), MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

void Farewells::advance(Instant now) {
  std::erase_if(leaving_, [&](Leaving& leaving) {
    if (!leaving.until) {
      leaving.until = now + kPatience;
    }
    // As far as it goes, also when this process has stood still meanwhile.
    return step(leaving) || now >= *leaving.until;
  });
}

void Farewells::polls(std::vector<pollfd>& list) const {
  for (const auto& leaving : leaving_) {
    const int events = leaving.said ? POLLIN : POLLIN | POLLOUT;
    list.push_back({leaving.rest.socket.get(), static_cast<short>(events), 0});
  }
}

std::optional<Instant> Farewells::next_instant() const {
  if (leaving_.empty()) {
    return std::nullopt;
  }
  return leaving_.front().until.value_or(Instant{});
}

}  // namespace sherd::ft::ring
