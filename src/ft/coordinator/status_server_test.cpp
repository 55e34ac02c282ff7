// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/status_server.h"

#include <poll.h>
#include <sys/resource.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "ft/coordinator/http_testing.h"
#include "support/error_of.h"

namespace sherd::ft {
namespace {

using test::all_of;
using test::answer;
using test::connected_to;
using test::say;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::unique_ptr<StatusServer> server() {
  return StatusServer::listen("127.0.0.1:0").value();
}

TEST(StatusServer, ShowsWhatItWasGivenLast) {
  const auto shown = server();
  RunStatus status;
  status.canonical.step = 41;
  shown->show(status);
  status.canonical.step = 42;
  shown->show(status);
  const auto page =
      answer(shown->address(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(page, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(page, HasSubstr("<b>42</b>"));
  EXPECT_THAT(
      answer(shown->address(), "GET /metrics HTTP/1.1\r\n\r\n"),
      HasSubstr("sherd_committed_step 42"));
  EXPECT_THAT(
      answer(shown->address(), "GET /status.json HTTP/1.1\r\n\r\n"),
      HasSubstr("\"step\": 42"));
}

TEST(StatusServer, RefusesWhatItDoesNotKnow) {
  const auto shown = server();
  EXPECT_THAT(
      answer(shown->address(), "GET /etc/passwd HTTP/1.1\r\n\r\n"),
      StartsWith("HTTP/1.1 404 Not Found"));
  EXPECT_THAT(
      answer(shown->address(), "DELETE / HTTP/1.1\r\n\r\n"),
      StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(
      answer(shown->address(), "\x16\x03\x01\r\n\r\n"),
      StartsWith("HTTP/1.1 400"));
}

TEST(StatusServer, ARequestWithoutAnEndIsCutOff) {
  const auto shown = server();
  const Descriptor socket = connected_to(shown->address());
  say(socket, "GET / HTTP/1.1\r\nX: " + std::string(9000, 'x'));
  EXPECT_THAT(all_of(socket), StartsWith("HTTP/1.1 400"));
}

TEST(StatusServer, SilentConnectionsKeepNobodyWaiting) {
  const auto shown = server();
  std::vector<Descriptor> silent(20);
  for (auto& one : silent) {
    one = connected_to(shown->address());
  }
  say(silent[0], "GET / HT");
  EXPECT_THAT(
      answer(shown->address(), "GET / HTTP/1.1\r\n\r\n"),
      StartsWith("HTTP/1.1 200"));
  say(silent[0], "TP/1.1\r\n\r\n");
  EXPECT_THAT(all_of(silent[0]), StartsWith("HTTP/1.1 200"));
}

// If each silent client kept its place for its two seconds, this one would wait for 20.
TEST(StatusServer, OfTooManyThatAreSilentTheOldestAreClosed) {
  const auto shown = server();
  std::vector<Descriptor> silent(320);
  for (auto& one : silent) {
    one = connected_to(shown->address());
  }
  EXPECT_THAT(
      answer(shown->address(), "GET / HTTP/1.1\r\n\r\n"),
      StartsWith("HTTP/1.1 200"));
  EXPECT_EQ(all_of(silent[0]), "");
}

TEST(StatusServer, AsksForAStatusWhenSomebodyWantsToSeeIt) {
  std::atomic<int> asked{0};
  std::unique_ptr<StatusServer> shown;
  shown = StatusServer::listen("127.0.0.1:0", [&] {
            // Relaxed: the answer that follows orders it for the reader.
            asked.fetch_add(1, std::memory_order_relaxed);
            RunStatus status;
            status.canonical.step = 43;
            shown->show(status);
          }).value();
  EXPECT_EQ(asked.load(std::memory_order_relaxed), 0);
  EXPECT_THAT(
      answer(shown->address(), "GET /metrics HTTP/1.1\r\n\r\n"),
      HasSubstr("sherd_committed_step 43"));
  EXPECT_EQ(asked.load(std::memory_order_relaxed), 1);
}

TEST(StatusServer, ShowsTheLastStatusWhereNoneIsToBeHad) {
  const auto shown = StatusServer::listen("127.0.0.1:0", [] {}).value();
  EXPECT_THAT(
      answer(shown->address(), "GET /metrics HTTP/1.1\r\n\r\n"),
      HasSubstr("sherd_committed_step 0"));
}

Duration cpu_time() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) +
      std::chrono::nanoseconds(time.tv_nsec);
}

// A client that cannot be accepted now must be accepted later.
TEST(StatusServer, WithoutDescriptorsItWaitsForSomeAndDoesNothing) {
  const auto shown = server();
  const Descriptor socket = test::new_socket();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  test::connect(socket, shown->address());
  say(socket, "GET / HTTP/1.1\r\n\r\n");
  // The least of three measurements, since time that the host takes away may be counted, too.
  Duration spent = std::chrono::seconds(1);
  for (int i = 0; i < 3; ++i) {
    const Duration from = cpu_time();
    pollfd polled{socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&polled, 1, 300), 0) << "nobody can answer yet";
    spent = std::min(spent, cpu_time() - from);
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(spent, std::chrono::milliseconds(15));
  EXPECT_THAT(all_of(socket), StartsWith("HTTP/1.1 200"));
}

TEST(StatusServer, ListensOnThisHostAlone) {
  for (const char* address : {"0.0.0.0:0", "10.1.2.3:80", "[::]:0", "host:1"}) {
    EXPECT_THAT(
        sherd::test::error_of([&] { (void)StatusServer::listen(address); }),
        HasSubstr("expected the status page on 127.0.0.1 or [::1]"))
        << address;
  }
}

TEST(StatusServer, APortThatIsTakenIsAFailure) {
  const auto first = server();
  const auto second = StatusServer::listen(first->address());
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr("Address already in use"));
}

}  // namespace
}  // namespace sherd::ft
