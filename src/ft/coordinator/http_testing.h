// SPDX-License-Identifier: Apache-2.0
//
// A client of the status page, for tests. Thread rule: one thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <array>
#include <string>
#include <gtest/gtest.h>
#include "base/descriptor.h"
#include "net/host_address.h"

namespace sherd::ft::test {

inline Descriptor new_socket() {
  return Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

inline void connect(const Descriptor& socket, const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(net::parse_host_address(address).port);
  EXPECT_EQ(
      ::connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  const timeval limit{10, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

inline Descriptor connected_to(const std::string& address) {
  Descriptor socket = new_socket();
  connect(socket, address);
  return socket;
}

inline void say(const Descriptor& socket, const std::string& bytes) {
  // The server may already have closed the connection.
  (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

inline std::string all_of(const Descriptor& socket) {
  std::string all;
  std::array<char, 4096> bytes{};
  ssize_t count = 0;
  while ((count = ::recv(socket.get(), bytes.data(), bytes.size(), 0)) > 0) {
    all.append(bytes.data(), static_cast<std::size_t>(count));
  }
  EXPECT_EQ(count, 0) << "expected the end, and in time";
  return all;
}

inline std::string answer(
    const std::string& address, const std::string& request) {
  const Descriptor socket = connected_to(address);
  say(socket, request);
  return all_of(socket);
}

}  // namespace sherd::ft::test
