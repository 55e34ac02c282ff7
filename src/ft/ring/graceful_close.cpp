// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/graceful_close.h"

#include <sys/socket.h>
#include <array>
#include <cerrno>
#include <utility>

namespace sherd::ft::ring {
namespace {

// The sockets of two epochs, up to eight connections each, and some that were refused.
constexpr std::size_t kClosingMax = 32;
constexpr Duration kCloseTimeout = std::chrono::milliseconds(200);

}  // namespace

void GracefulClose::add(FramedSocket::Unsent rest) {
  if (!rest.socket.open()) {
    return;
  }
  ClosingSocket socket{std::move(rest), 0, false, std::nullopt};
  if (step(socket)) {
    return;
  }
  if (closing_.size() == kClosingMax) {
    closing_.pop_front();
  }
  closing_.push_back(std::move(socket));
}

bool GracefulClose::step(ClosingSocket& socket) {
  const int fd = socket.rest.socket.get();
  const std::string& bytes = socket.rest.bytes;
  while (socket.sent < bytes.size()) {
    const ssize_t sent = ::send(
        fd, bytes.data() + socket.sent, bytes.size() - socket.sent,
        MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) {
        return true;
      }
      break;
    }
    socket.sent += static_cast<std::size_t>(sent);
  }
  if (!socket.said && socket.sent == bytes.size()) {
    ::shutdown(fd, SHUT_WR);
    socket.said = true;
  }
  std::array<char, 65536> unread = {};
  const ssize_t got = ::recv(fd, unread.data(), unread.size(), MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

void GracefulClose::advance(Instant now) {
  std::erase_if(closing_, [&](ClosingSocket& socket) {
    if (!socket.until) {
      socket.until = now + kCloseTimeout;
    }
    // Sends once more before it closes, because this process may not have run meanwhile.
    return step(socket) || now >= *socket.until;
  });
}

void GracefulClose::polls(std::vector<pollfd>& list) const {
  for (const auto& socket : closing_) {
    const int events = socket.said ? POLLIN : POLLIN | POLLOUT;
    list.push_back({socket.rest.socket.get(), static_cast<short>(events), 0});
  }
}

std::optional<Instant> GracefulClose::next_instant() const {
  if (closing_.empty()) {
    return std::nullopt;
  }
  return closing_.front().until.value_or(Instant{});
}

}  // namespace sherd::ft::ring
