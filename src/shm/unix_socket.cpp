// SPDX-License-Identifier: Apache-2.0
#include "shm/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include "base/check.h"
#include "base/printable.h"
#include "base/text.h"

namespace sherd::shm {
namespace {

// Preserves message boundaries and shows when the other end has closed.
constexpr int kKind = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;

Status failed(const char* call) {
  return {
      ErrorCode::kUnavailable,
      str("[shm] a Unix socket: ", call, " failed: ", std::strerror(errno))};
}

Status closed() {
  return {ErrorCode::kPeerLost, "[shm] the other end closed its connection"};
}

struct Address {
  sockaddr_un name{};
  socklen_t length = 0;
  const sockaddr* any() const {
    return reinterpret_cast<const sockaddr*>(&name);
  }
};

// The leading zero byte makes it abstract; its length is significant, not a zero at the end.
std::optional<Address> abstract_address(const std::string& text) {
  Address address;
  address.name.sun_family = AF_UNIX;
  if (text.empty() || text.size() + 1 > sizeof(address.name.sun_path)) {
    return std::nullopt;
  }
  std::memcpy(&address.name.sun_path[1], text.data(), text.size());
  address.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return address;
}

bool is_same_user(const Descriptor& socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) ==
      0 &&
      peer.uid == ::geteuid();
}

std::string random_name() {
  std::random_device random;
  const auto word = [&] { return std::uint64_t{random()} << 32U | random(); };
  return str("sherd-", hex(word()), hex(word()));
}

// Room for one descriptor that accompanies a message.
union Control {
  cmsghdr header;
  std::array<char, CMSG_SPACE(sizeof(int))> bytes;
};

}  // namespace

Result<UnixConnection> UnixConnection::connect(
    const std::string& text, const Clock& clock, Instant until) {
  const auto address = abstract_address(text);
  if (!address) {
    return Status(
        ErrorCode::kUnavailable,
        str("[shm] expected the address of a Unix socket, found '", text, "'"));
  }
  Descriptor socket(::socket(AF_UNIX, kKind, 0));
  if (!socket.open()) {
    return Status(ErrorCode::kFailedPrecondition, failed("socket").message());
  }
  while (::connect(socket.get(), address->any(), address->length) != 0) {
    if (errno != EAGAIN && errno != EINTR) {
      return failed("connect");
    }
    // The listener's queue is full, and nothing announces when it no longer is.
    if (clock.now() >= until) {
      return Status(
          ErrorCode::kDeadlineExceeded,
          "[shm] a Unix socket: nobody accepted the connection in time");
    }
    ::poll(nullptr, 0, 1);
  }
  if (!is_same_user(socket)) {
    return Status(
        ErrorCode::kPeerMismatch,
        str("[shm] expected a process of user ", ::geteuid(),
            " at the Unix socket, found another user's"));
  }
  return UnixConnection(std::move(socket));
}

Status UnixConnection::send(std::string_view text, int descriptor) {
  text = shortened(text, kTextMax);
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control = {};
  if (descriptor >= 0) {
    message.msg_control = &control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) {
    return {};
  }
  return errno == EPIPE || errno == ECONNRESET ? closed() : failed("sendmsg");
}

Result<std::optional<UnixConnection::Message>> UnixConnection::try_receive() {
  Message received;
  received.text.resize(kTextMax);
  iovec part{received.text.data(), received.text.size()};
  Control control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = &control;
  message.msg_controllen = sizeof(control);
  ssize_t size = 0;
  do {
    size = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && errno == EAGAIN) {
    return std::optional<Message>();
  }
  if (size == 0 || (size < 0 && errno == ECONNRESET)) {
    return closed();
  }
  if (size < 0) {
    return failed("recvmsg");
  }
  received.text.resize(static_cast<std::size_t>(size));
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET &&
      header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int passed = -1;
    std::memcpy(&passed, CMSG_DATA(header), sizeof(int));
    received.descriptor = Descriptor(passed);
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return Status(
        ErrorCode::kUnavailable,
        "[shm] expected room for one more descriptor (ulimit -n), found "
        "none");
  }
  return std::optional<Message>(std::move(received));
}

Result<UnixConnection::Message> UnixConnection::receive(
    const Clock& clock, Instant until) {
  for (;;) {
    SHERD_ASSIGN_OR_RETURN(std::optional<Message> found, try_receive());
    if (found) {
      return *std::move(found);
    }
    const Instant now = clock.now();
    if (now >= until) {
      return Status(
          ErrorCode::kDeadlineExceeded,
          "[shm] a Unix socket: no message came in time");
    }
    pollfd fd{socket_.get(), POLLIN, 0};
    ::poll(&fd, 1, poll_ms(now, until));
  }
}

Result<UnixListener> UnixListener::open() {
  Descriptor socket(::socket(AF_UNIX, kKind, 0));
  if (!socket.open()) {
    return failed("socket");
  }
  const std::string name = random_name();
  const Address address = abstract_address(name).value();
  if (::bind(socket.get(), address.any(), address.length) != 0) {
    return failed("bind");
  }
  if (::listen(socket.get(), SOMAXCONN) != 0) {
    return failed("listen");
  }
  return UnixListener(std::move(socket), name);
}

Result<std::optional<UnixConnection>> UnixListener::try_accept() {
  for (;;) {
    Descriptor socket(::accept4(
        socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.open()) {
      if (is_same_user(socket)) {
        return std::optional<UnixConnection>(UnixConnection(std::move(socket)));
      }
      continue;
    }
    if (errno == EAGAIN) {
      return std::optional<UnixConnection>();
    }
    if (errno != EINTR && errno != ECONNABORTED) {
      return failed("accept");
    }
  }
}

}  // namespace sherd::shm
