// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <gtest/gtest.h>

namespace sherd {
namespace {

// Whether the process behind `pidfd` has ended, waiting up to `timeout_ms`.
bool ended(const Descriptor& pidfd, int timeout_ms) {
  pollfd fd{pidfd.get(), POLLIN, 0};
  return ::poll(&fd, 1, timeout_ms) == 1;
}

TEST(Process, PidfdTellsTheEndOfAProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
      ::pause();
    }
  }
  const Descriptor pidfd = open_pidfd(child);
  ASSERT_TRUE(pidfd.open());
  EXPECT_FALSE(ended(pidfd, 0));

  ::kill(child, SIGKILL);

  EXPECT_TRUE(ended(pidfd, 10000));
  ::waitpid(child, nullptr, 0);
  errno = 0;
  EXPECT_FALSE(open_pidfd(child).open());
  EXPECT_EQ(errno, ESRCH);
}

TEST(Process, StartTicksAreTheSameForEverybodyAndUnknownForNobody) {
  const std::uint64_t own = process_start_ticks(static_cast<int>(::getpid()));
  EXPECT_GT(own, 0U);
  EXPECT_LE(process_start_ticks(static_cast<int>(::getppid())), own);
  EXPECT_EQ(process_start_ticks(-1), 0U);
}

// The name of a program is its own choice and stands before the start time.
TEST(Process, StartTicksDoNotDependOnTheNameOfTheProgram) {
  const std::uint64_t before =
      process_start_ticks(static_cast<int>(::getpid()));
  char name[16] = {};
  ::prctl(PR_GET_NAME, name);

  ::prctl(PR_SET_NAME, "a) 1 2 (b");
  const std::uint64_t after = process_start_ticks(static_cast<int>(::getpid()));

  ::prctl(PR_SET_NAME, name);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace sherd
