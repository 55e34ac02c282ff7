// SPDX-License-Identifier: Apache-2.0
//
// How long the connections of a rank may stay without an acknowledgement.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <gtest/gtest.h>
#include "ft/replica/rank_agent.h"
#include "net/loop.h"

namespace sherd::ft {
namespace {

using namespace std::chrono_literals;

constexpr auto kLink = 4321ms;

// How many TCP connections of this process have the limit kLink.
int connections_with_limit() {
  int found = 0;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    int limit_ms = 0;
    socklen_t bytes = sizeof limit_ms;
    const int descriptor = std::stoi(one.path().filename().string());
    if (::getsockopt(
            descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &bytes) ==
        0) {
      found += limit_ms == kLink.count() ? 1 : 0;
    }
  }
  return found;
}

// The rank fetches from itself, so it is at both ends.
TEST(RankAgentLinks, OfStatesHaveTheLimitOfAllOthers) {
  net::Loop loop;
  RankAgentOptions options;
  options.incarnation = 1;
  options.buckets = {4};
  options.sums_kept = 0;
  options.timeouts.link = kLink;
  RankAgent agent(loop, options, [](const RankEvent&) {}, [] {});
  loop.post([&] {
    agent.take(StartRunTask{5});
    agent.take(FetchTask{
        .serial = 1, .donors = {agent.address()}, .state = {0, {5, 6}}});
  });
  net::Timer again;
  const std::function<void()> look = [&] {
    if (connections_with_limit() == 2) {
      loop.stop();
    } else {
      again = loop.after(5ms, look);
    }
  };
  loop.post(look);
  const auto limit = loop.after(20s, [&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(connections_with_limit(), 2);
}

}  // namespace
}  // namespace sherd::ft
