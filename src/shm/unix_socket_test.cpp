// SPDX-License-Identifier: Apache-2.0
#include "shm/unix_socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "shm/available_memory.h"
#include "support/child_process.h"

namespace sherd::shm {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

struct Pair {
  UnixConnection one;
  UnixConnection two;
};

Pair connected() {
  const SteadyClock clock;
  UnixListener listener = UnixListener::open().value();
  UnixConnection one =
      UnixConnection::connect(listener.address(), clock, clock.now() + 10s)
          .value();
  return {std::move(one), std::move(listener.try_accept().value()).value()};
}

TEST(DescriptorPassing, ADescriptorArrivesInAnotherProcess) {
  const SteadyClock clock;
  UnixListener listener = UnixListener::open().value();
  const Descriptor file(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(::write(file.get(), "hello", 5), 5);

  const auto report =
      test::run_children({.count = 2}, [&](int index, test::ChildLink& link) {
        const Instant until = clock.now() + 20s;
        if (index == 0) {
          pollfd fd{listener.descriptor(), POLLIN, 0};
          ::poll(&fd, 1, 20000);
          UnixConnection peer =
              std::move(listener.try_accept().value()).value();
          peer.send("take this", file.get()).throw_if_failed();
          return 0;
        }
        UnixConnection peer =
            UnixConnection::connect(listener.address(), clock, until).value();
        UnixConnection::Message got = peer.receive(clock, until).value();
        char text[6] = {};
        const auto n = ::pread(got.descriptor.get(), text, 5, 0);
        const bool private_here =
            (::fcntl(got.descriptor.get(), F_GETFD) & FD_CLOEXEC) != 0;
        link.report(got.text + "/" + text);
        return n == 5 && private_here ? 0 : 1;
      });

  EXPECT_EQ(report.children[1].exit_code, 0);
  EXPECT_EQ(report.children[1].result, "take this/hello");
}

TEST(DescriptorPassing, MessagesStayApartAndInOrder) {
  auto [one, two] = connected();
  ASSERT_TRUE(one.send("first").ok());
  ASSERT_TRUE(one.send("second").ok());

  EXPECT_EQ(two.try_receive().value()->text, "first");
  EXPECT_EQ(two.try_receive().value()->text, "second");
  EXPECT_FALSE(two.try_receive().value().has_value());
}

TEST(DescriptorPassing, ATextThatIsTooLongIsCut) {
  auto [one, two] = connected();
  ASSERT_TRUE(one.send(std::string(5000, 'x')).ok());
  EXPECT_EQ(two.try_receive().value()->text.size(), UnixConnection::kTextMax);
}

TEST(DescriptorPassing, WhatWasSentBeforeTheEndStillArrives) {
  const SteadyClock clock;
  auto [one, two] = connected();
  ASSERT_TRUE(one.send("last words").ok());
  {
    const UnixConnection gone = std::move(one);
  }

  EXPECT_EQ(two.receive(clock, clock.now() + 10s).value().text, "last words");
  EXPECT_EQ(
      two.receive(clock, clock.now() + 10s).status().code(),
      ErrorCode::kPeerLost);
  // There is no SIGPIPE.
  EXPECT_EQ(two.send("anyone?").code(), ErrorCode::kPeerLost);
}

TEST(DescriptorPassing, AKilledProcessIsSeenAtOnce) {
  const SteadyClock clock;
  UnixListener listener = UnixListener::open().value();

  const auto report = test::run_children(
      {.count = 2,
       .strikes = {{.child = 1, .point = "connected", .signal = SIGKILL}}},
      [&](int index, test::ChildLink& link) {
        const Instant until = clock.now() + 20s;
        if (index == 1) {
          const auto peer =
              UnixConnection::connect(listener.address(), clock, until).value();
          link.reach("connected");
          return 1;
        }
        pollfd fd{listener.descriptor(), POLLIN, 0};
        ::poll(&fd, 1, 20000);
        UnixConnection peer = std::move(listener.try_accept().value()).value();
        const auto end = peer.receive(clock, until);
        return end.status().code() == ErrorCode::kPeerLost ? 0 : 1;
      });

  EXPECT_EQ(report.children[0].exit_code, 0);
  EXPECT_LT(report.children[0].ended_at - report.struck_at, 10s);
}

TEST(DescriptorPassing, SilenceEndsAtTheDeadline) {
  const SteadyClock clock;
  auto [one, two] = connected();
  EXPECT_EQ(
      two.receive(clock, clock.now() + 20ms).status().code(),
      ErrorCode::kDeadlineExceeded);
}

TEST(DescriptorPassing, NothingIsLeftOfAListener) {
  const SteadyClock clock;
  std::string address;
  {
    const UnixListener listener = UnixListener::open().value();
    address = listener.address();
    EXPECT_THAT(*read_small_file("/proc/net/unix"), HasSubstr("@" + address));
  }
  EXPECT_THAT(
      *read_small_file("/proc/net/unix"), ::testing::Not(HasSubstr(address)));
  EXPECT_EQ(
      UnixConnection::connect(address, clock, clock.now() + 10s)
          .status()
          .code(),
      ErrorCode::kUnavailable);
}

TEST(DescriptorPassing, AddressesThatMakeNoSenseAreRefused) {
  const SteadyClock clock;
  for (const std::string& address : {std::string(), std::string(200, 'a')}) {
    EXPECT_EQ(
        UnixConnection::connect(address, clock, clock.now() + 10s)
            .status()
            .code(),
        ErrorCode::kUnavailable);
  }
}

TEST(DescriptorPassing, AFullTableOfDescriptorsIsAnErrorThatSaysSo) {
  const auto report =
      test::run_children({.count = 1}, [](int, test::ChildLink& link) {
        auto [one, two] = connected();
        one.send("take this", one.descriptor()).throw_if_failed();
        const int next = ::fcntl(one.descriptor(), F_DUPFD_CLOEXEC, 0);
        ::close(next);
        const auto most = static_cast<rlim_t>(next);
        const rlimit limit{.rlim_cur = most, .rlim_max = most};
        ::setrlimit(RLIMIT_NOFILE, &limit);
        link.report(two.try_receive().status().message());
        return 0;
      });
  EXPECT_THAT(report.children[0].result, HasSubstr("ulimit -n"));
}

// Only root can become another user.
TEST(OtherUsers, AreKeptOut) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "needs root";
  }
  const auto report =
      test::run_children({.count = 1}, [](int, test::ChildLink&) {
        const SteadyClock clock;
        UnixListener own = UnixListener::open().value();
        if (::seteuid(65534) != 0) {
          return 1;
        }
        const auto to_other =
            UnixConnection::connect(own.address(), clock, clock.now() + 10s);
        if (to_other.status().code() != ErrorCode::kPeerMismatch) {
          return 2;
        }
        if (::seteuid(0) != 0) {
          return 3;
        }
        return own.try_accept().value().has_value() ? 4 : 0;
      });
  EXPECT_EQ(report.children[0].exit_code, 0);
}

}  // namespace
}  // namespace sherd::shm
