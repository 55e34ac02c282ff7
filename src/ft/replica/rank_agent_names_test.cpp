// SPDX-License-Identifier: Apache-2.0
//
// A rank whose neighbour has a host name that no name server answers for.
#include <dlfcn.h>
#include <netdb.h>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <variant>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/replica/rank_agent.h"
#include "net/loop.h"

namespace sherd::ft {
namespace {

constexpr const char* kSlowHost = "slow.example";

// Keeps look-ups waiting until it is released, or far too long.
class SlowNameServer {
 public:
  int look_up() {
    std::unique_lock lock(mutex_);
    in_time_ = changed_.wait_for(
        lock, std::chrono::seconds(10), [this] { return released_; });
    return EAI_AGAIN;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  bool in_time() {
    const std::lock_guard lock(mutex_);
    return in_time_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  bool in_time_ = true;
};

SlowNameServer& slow_names() {
  static SlowNameServer server;
  return server;
}

}  // namespace

// Replaces the C library's function in this program.
extern "C" int getaddrinfo(
    const char* host,
    const char* service,
    const addrinfo* hints,
    addrinfo** found) {
  if (host != nullptr && std::string(host) == kSlowHost) {
    return slow_names().look_up();
  }
  using Function =
      int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto real =
      reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(host, service, hints, found);
}

namespace {

TEST(RankAgentNames, ALookUpThatTakesLongHoldsUpNothingElse) {
  net::Loop loop;
  RankAgentOptions options;
  options.replica = 1;
  options.incarnation = 1;
  options.buckets = {4};
  std::string failure;
  RankAgent agent(
      loop, options,
      [&](const RankEvent& event) {
        if (const auto* suspicion = std::get_if<Suspicion>(&event)) {
          failure = suspicion->reason;
          loop.stop();
        }
      },
      [] {});
  const RingMembership ring = {
      {1, 1},
      {{.replica = 1, .incarnation = 1, .host = "127.0.0.1", .port = 1},
       {.replica = 2, .incarnation = 1, .host = kSlowHost, .port = 1}}};
  loop.post([&] {
    agent.take(StartRunTask{5});
    agent.take(ring);
  });
  loop.post([] { slow_names().release(); });
  loop.run();
  EXPECT_TRUE(slow_names().in_time());
  EXPECT_THAT(
      failure, ::testing::HasSubstr("no address for host 'slow.example'"));
}

}  // namespace
}  // namespace sherd::ft
