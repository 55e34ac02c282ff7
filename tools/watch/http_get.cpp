// SPDX-License-Identifier: Apache-2.0
#include "watch/http_get.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <sherd/base/error.h>
#include "base/descriptor.h"
#include "base/printable.h"

namespace sherd::tools {
namespace {

constexpr timeval kCallTime{.tv_sec = 3, .tv_usec = 0};
constexpr std::chrono::seconds kAnswerTime(5);
constexpr std::size_t kAnswerBytesMax = 16U << 20U;

[[noreturn]] void refuse(const std::string& address, const std::string& found) {
  throw Error(
      address + ": expected the status page of a coordinator, found " + found,
      ErrorCode::kUnavailable);
}

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

AddressList looked_up(const std::string& address) {
  const auto colon = address.rfind(':');
  if (colon == std::string::npos) {
    throw Error("expected HOST:PORT, found '" + address + "'");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure =
      ::getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (failure != 0) {
    refuse(address, ::gai_strerror(failure));
  }
  return {found, &::freeaddrinfo};
}

Descriptor connected(const std::string& address) {
  const auto list = looked_up(address);
  int failure = 0;
  for (const addrinfo* to = list.get(); to != nullptr; to = to->ai_next) {
    Descriptor socket(
        ::socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, to->ai_protocol));
    ::setsockopt(
        socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kCallTime, sizeof(kCallTime));
    ::setsockopt(
        socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kCallTime, sizeof(kCallTime));
    if (::connect(socket.get(), to->ai_addr, to->ai_addrlen) == 0) {
      return socket;
    }
    failure = errno == EINPROGRESS ? ETIMEDOUT : errno;
  }
  refuse(
      address, std::string("that nobody answers: ") + std::strerror(failure));
}

// Receives until the server closes.
std::string received(const Descriptor& socket, const std::string& address) {
  const auto end = std::chrono::steady_clock::now() + kAnswerTime;
  std::string all;
  std::array<char, 16384> bytes;  // NOLINT: recv fills it.
  for (;;) {
    const auto count = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (count == 0) {
      return all;
    }
    if (count < 0 && errno == EINTR) {
      continue;
    }
    const bool late = std::chrono::steady_clock::now() > end;
    if (count < 0 || late || all.size() > kAnswerBytesMax) {
      refuse(address, "a server that does not finish its answer");
    }
    all.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace

std::string http_body(const std::string& answer, const std::string& address) {
  const auto line = answer.substr(0, answer.find("\r\n"));
  const auto head_end = answer.find("\r\n\r\n");
  const bool good = line.starts_with("HTTP/1.") && line.size() > 12 &&
      line.compare(8, 5, " 200 ") == 0;
  if (!good || head_end == std::string::npos) {
    refuse(address, "the answer '" + printable(line, 60) + "'");
  }
  return answer.substr(head_end + 4);
}

std::string http_get(const std::string& address, const std::string& path) {
  const auto socket = connected(address);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: " + address +
      "\r\nConnection: close\r\n\r\n";
  const auto sent =
      ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(request.size())) {
    refuse(address, "a connection that takes no request");
  }
  return http_body(received(socket, address), address);
}

}  // namespace sherd::tools
