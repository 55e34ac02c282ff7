// SPDX-License-Identifier: Apache-2.0
#include "net/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <limits>
#include <gtest/gtest.h>

namespace sherd::net {
namespace {

int option_of(const Descriptor& socket, int name) {
  int value = 0;
  socklen_t bytes = sizeof value;
  ::getsockopt(socket.get(), IPPROTO_TCP, name, &value, &bytes);
  return value;
}

TEST(TcpSocket, ATimeBeyondTheKernelsIsItsLongest) {
  using std::chrono::hours;
  const ListeningSocket listening = std::move(listen_on("127.0.0.1")).value();
  set_peer_options(listening.socket.get(), hours(25 * 24));
  EXPECT_EQ(
      option_of(listening.socket, TCP_USER_TIMEOUT),
      std::numeric_limits<int>::max());
}

TEST(TcpSocket, APeerOfIpv6HasBrackets) {
  auto listening = listen_on("::1");
  if (!listening.ok()) {
    GTEST_SKIP() << "no IPv6: " << listening.status().message();
  }
  const std::uint16_t port = listening.value().port;
  const Descriptor client =
      std::move(begin_connect(resolve("::1", port).value())).value();
  EXPECT_EQ(peer_of(client.get()), "[::1]:" + std::to_string(port));
}

}  // namespace
}  // namespace sherd::net
