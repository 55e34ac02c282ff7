// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/shared_floats.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/descriptor.h"
#include "ft/ring/ring_testing.h"

namespace sherd::ft::ring {
namespace {

using testing::HasSubstr;

TEST(SharedFloats, AreReadByWhoOpensThemWhileTheyAreWritten) {
  SharedFloats floats(1000);
  const auto peer = PeerFloats::open(floats.name());
  ASSERT_TRUE(peer.ok()) << peer.status().message();

  EXPECT_NE(floats.key(), 0U);
  EXPECT_EQ(peer.value().key(), floats.key());
  const float* seen = peer.value().at(0, 1000);
  ASSERT_NE(seen, nullptr);
  EXPECT_NE(seen, floats.data());
  EXPECT_EQ(seen[999], 0.0F);
  floats.data()[999] = 7.0F;
  EXPECT_EQ(seen[999], 7.0F);
}

TEST(SharedFloats, APlaceIsOnlyWhatLiesInside) {
  SharedFloats floats(100);
  const auto peer = PeerFloats::open(floats.name());
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  const float elsewhere = 0;

  EXPECT_EQ(floats.place_of(floats.data() + 90, 10), 90U);
  EXPECT_EQ(floats.place_of(floats.data() + 100, 0), 100U);
  EXPECT_EQ(floats.place_of(floats.data() + 91, 10), std::nullopt);
  EXPECT_EQ(floats.place_of(floats.data() - 1, 1), std::nullopt);
  EXPECT_EQ(floats.place_of(&elsewhere, 1), std::nullopt);
  EXPECT_NE(peer.value().at(90, 10), nullptr);
  EXPECT_EQ(peer.value().at(91, 10), nullptr);
  EXPECT_EQ(
      peer.value().at(std::numeric_limits<std::uint64_t>::max(), 1), nullptr);
  EXPECT_EQ(
      peer.value().at(1, std::numeric_limits<std::size_t>::max()), nullptr);
}

TEST(SharedFloats, ALeaseHoldsUntilItIsOverOrTheNextOneBegins) {
  SharedFloats floats(1);
  const auto peer = PeerFloats::open(floats.name());
  ASSERT_TRUE(peer.ok()) << peer.status().message();

  EXPECT_FALSE(peer.value().holds(0)) << "none is no lease";
  floats.begin_lease();
  const auto first = floats.lease();
  EXPECT_TRUE(peer.value().holds(first));
  floats.begin_lease();
  const auto second = floats.lease();
  EXPECT_FALSE(peer.value().holds(first));
  EXPECT_TRUE(peer.value().holds(second));
  floats.end_lease();
  EXPECT_FALSE(peer.value().holds(second));
  floats.begin_lease();
  EXPECT_FALSE(peer.value().holds(first));
  EXPECT_FALSE(peer.value().holds(second)) << "no number comes twice";
}

TEST(SharedFloats, NothingElseOfThatNameIsOpened) {
  const SharedFloats floats(10);
  const IpcHandle name = floats.name();
  const Descriptor other(::memfd_create("of somebody else", MFD_CLOEXEC));
  int ends[2] = {-1, -1};
  ASSERT_EQ(0, ::pipe2(ends, O_CLOEXEC));
  const Descriptor in(ends[0]);
  const Descriptor out(ends[1]);
  const auto why = [](IpcHandle changed) {
    const auto opened = PeerFloats::open(changed);
    return opened.ok() ? "nothing" : opened.status().message();
  };
  const auto with_descriptor = [&](int fd) {
    IpcHandle changed = name;
    changed.descriptor = static_cast<std::uint32_t>(fd);
    return changed;
  };
  const auto with_bytes = [&](std::uint64_t bytes) {
    IpcHandle changed = name;
    changed.bytes = bytes;
    return changed;
  };
  IpcHandle nobody = name;
  nobody.process = 0x7fffffff;

  EXPECT_THAT(why(with_descriptor(in.get())), HasSubstr("found 'pipe:"));
  EXPECT_THAT(why(with_descriptor(other.get())), HasSubstr("somebody else"));
  EXPECT_THAT(why(with_descriptor(1 << 20)), HasSubstr("found ''"));
  EXPECT_THAT(why(with_bytes(name.bytes + 4)), HasSubstr("found one of"));
  EXPECT_THAT(why(with_bytes(4)), HasSubstr("bytes and more, found 4"));
  EXPECT_THAT(
      why(with_bytes(std::numeric_limits<std::uint64_t>::max())),
      HasSubstr("expected"));
  EXPECT_THAT(why(nobody), HasSubstr("expected process 2147483647"));
}

TEST(SharedFloats, AnotherNetworkNamespaceIsAnotherHost) {
  const SharedFloats floats(10);
  const auto name = floats.name();
  const int child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNET) != 0 &&
        ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
      ::_exit(2);
    }
    ::_exit(PeerFloats::open(name).ok() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) {
    GTEST_SKIP() << "no namespaces here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(SharedFloats, OfAKilledProcessStayAsTheyWereAndGoWithTheirLastReader) {
  const std::size_t before = descriptors();
  int ends[2] = {-1, -1};
  ASSERT_EQ(0, ::pipe2(ends, O_CLOEXEC));
  const int child = ::fork();
  if (child == 0) {
    SharedFloats floats(100);
    floats.data()[50] = 4.0F;
    floats.begin_lease();
    const IpcHandle name = floats.name();
    if (::write(ends[1], &name, sizeof name) == sizeof name) {
      ::pause();
    }
    ::_exit(1);
  }
  IpcHandle name;
  ASSERT_EQ(
      static_cast<ssize_t>(sizeof name), ::read(ends[0], &name, sizeof name));
  ::close(ends[0]);
  ::close(ends[1]);
  {
    const auto peer = PeerFloats::open(name);
    ASSERT_TRUE(peer.ok()) << peer.status().message();
    EXPECT_EQ(mappings(), 1U);

    ASSERT_EQ(0, ::kill(child, SIGKILL));
    ASSERT_EQ(child, ::waitpid(child, nullptr, 0));

    EXPECT_EQ(peer.value().at(50, 1)[0], 4.0F);
    EXPECT_TRUE(peer.value().holds(1)) << "nobody writes there any more";
  }
  EXPECT_FALSE(PeerFloats::open(name).ok());
  EXPECT_EQ(mappings(), 0U);
  EXPECT_EQ(descriptors(), before);
}

}  // namespace
}  // namespace sherd::ft::ring
