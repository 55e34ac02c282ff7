// SPDX-License-Identifier: Apache-2.0
#include "launch/control.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>
#include "base/check.h"
#include "base/text.h"

namespace sherd::launch {
namespace {

constexpr std::size_t kTextBytesMax = 1000;
// The launcher answers at once, from its loop.
constexpr int kAnswerTimeoutMs = 10000;

Status unavailable(const std::string& path, const std::string& what) {
  return Status(
      ErrorCode::kUnavailable, str("control socket '", path, "': ", what));
}

Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return unavailable(
        path,
        str("expected a path of at most ", sizeof address.sun_path - 1,
            " bytes, found ", path.size()));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Descriptor new_socket() {
  Descriptor socket(
      ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  SHERD_CHECK_AS(
      kUnavailable, socket.open(),
      "[launch] expected a control socket, found: ", std::strerror(errno));
  return socket;
}

bool connect_to(const Descriptor& socket, const sockaddr_un& address) {
  return ::connect(
             socket.get(), reinterpret_cast<const sockaddr*>(&address),
             sizeof address) == 0;
}

// Replaces a socket on which nobody listens any more.
Status clear(const std::string& path, const sockaddr_un& address) {
  if (connect_to(new_socket(), address)) {
    return unavailable(path, "another launcher listens there");
  }
  struct stat status = {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) {
      return unavailable(path, "there is a file that is no socket");
    }
    ::unlink(path.c_str());
  }
  return {};
}

}  // namespace

Result<ControlRequest> parse_control_request(const std::string& text) {
  const std::size_t space = text.find(' ');
  const std::string verb = text.substr(0, space);
  const auto replica = space == std::string::npos
      ? std::nullopt
      : parse_number<int>(std::string_view(text).substr(space + 1));
  if (!replica || (verb != "drain" && verb != "admit") ||
      text.size() > kTextBytesMax) {
    return Status(
        ErrorCode::kInvalidArgument,
        str("expected 'drain N' or 'admit N', found '", text.substr(0, 50),
            "'"));
  }
  return ControlRequest{
      verb == "drain" ? ControlRequest::What::kDrain
                      : ControlRequest::What::kAdmit,
      *replica};
}

Result<ControlSocket> ControlSocket::open(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const sockaddr_un address, address_of(path));
  SHERD_RETURN_IF_FAILED(clear(path, address));
  Descriptor socket = new_socket();
  // Accessible only by this user, from the first moment on.
  const mode_t before = ::umask(0077);
  const int bound = ::bind(
      socket.get(), reinterpret_cast<const sockaddr*>(&address),
      sizeof(sockaddr_un));
  const int error = errno;
  ::umask(before);
  if (bound != 0) {
    return unavailable(path, std::strerror(error));
  }
  return ControlSocket(std::move(socket), path);
}

ControlSocket::~ControlSocket() {
  if (socket_.open()) {
    ::unlink(path_.c_str());
  }
}

std::optional<ControlSocket::Datagram> ControlSocket::receive() {
  Datagram request;
  request.from_bytes = sizeof request.from;
  std::array<char, kTextBytesMax> buffer;  // NOLINT: recvfrom() fills it.
  const ssize_t count = ::recvfrom(
      socket_.get(), buffer.data(), buffer.size(), 0,
      reinterpret_cast<sockaddr*>(&request.from), &request.from_bytes);
  if (count < 0) {
    return std::nullopt;
  }
  request.text.assign(buffer.data(), static_cast<std::size_t>(count));
  return request;
}

void ControlSocket::reply(const Datagram& request, const std::string& text) {
  [[maybe_unused]] const auto sent = ::sendto(
      socket_.get(), text.data(), std::min(text.size(), kTextBytesMax), 0,
      reinterpret_cast<const sockaddr*>(&request.from), request.from_bytes);
}

Result<std::string> send_control_request(
    const std::string& path, const std::string& request) {
  SHERD_ASSIGN_OR_RETURN(const sockaddr_un address, address_of(path));
  const Descriptor socket = new_socket();
  // Binding a bare family lets the system choose a name, to which the answer is sent.
  const sa_family_t family = AF_UNIX;
  if (::bind(
          socket.get(), reinterpret_cast<const sockaddr*>(&family),
          sizeof family) != 0 ||
      !connect_to(socket, address) ||
      ::send(socket.get(), request.data(), request.size(), 0) < 0) {
    return unavailable(path, str("no launcher: ", std::strerror(errno)));
  }
  pollfd polled = {socket.get(), POLLIN, 0};
  std::array<char, kTextBytesMax> buffer;  // NOLINT: recv() fills it.
  const ssize_t count = ::poll(&polled, 1, kAnswerTimeoutMs) > 0
      ? ::recv(socket.get(), buffer.data(), buffer.size(), 0)
      : -1;
  if (count < 0) {
    return Status(
        ErrorCode::kDeadlineExceeded,
        str("the launcher at '", path, "' did not answer"));
  }
  const std::string text(buffer.data(), static_cast<std::size_t>(count));
  const std::string sentence = text.substr(std::min(
      text.size(),
      text.find(' ') == std::string::npos ? text.size() : text.find(' ') + 1));
  if (!text.starts_with("ok ")) {
    return Status(ErrorCode::kFailedPrecondition, sentence);
  }
  return sentence;
}

}  // namespace sherd::launch
