// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <string>
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

TEST(Process, StatHasTheFieldsOfTheManual) {
  const int own = static_cast<int>(::getpid());
  EXPECT_EQ(process_stat(own, 4), static_cast<std::uint64_t>(::getppid()));
  EXPECT_NE(process_stat(own, 50), 0U);  // Where the environment starts.
  EXPECT_EQ(process_stat(own, 1000), 0U);
}

// A program chooses its own name, which precedes the start time.
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

ProcessSpec shell(const std::string& script) {
  return {
      .path = "/bin/sh",
      .command = {"sh", "-c", script},
      .environment = {"COLOUR=blue"}};
}

TEST(ChildProcess, TellsHowItEnded) {
  SpawnResult exits = spawn_process(
      shell("test $COLOUR = blue && exit 7"), SignalState::current());
  ASSERT_TRUE(exits.process);
  EXPECT_EQ(exits.process->wait().status(), 7);
  SpawnResult killed =
      spawn_process(shell("kill -9 $$"), SignalState::current());
  ASSERT_TRUE(killed.process);
  const ProcessExit end = killed.process->wait();
  EXPECT_EQ(end.signal, SIGKILL);
  EXPECT_EQ(end.status(), 128 + SIGKILL);
  EXPECT_EQ(killed.process->pid(), -1);
  EXPECT_FALSE(killed.process->try_reap());
}

TEST(ChildProcess, TakesItsGroupAlong) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor in(ends[0]);
  Descriptor out(ends[1]);
  ProcessSpec spec = shell("sleep 1000 & echo; exit 3");
  spec.standard = {0, out.get(), 2};
  SpawnResult started = spawn_process(spec, SignalState::current());
  ASSERT_TRUE(started.process);
  out.close();
  EXPECT_EQ(started.process->wait().code, 3);
  // The other end is closed when `sleep` has ended, too.
  char byte = 0;
  while (::read(in.get(), &byte, 1) == 1) {
  }
}

// A debugger keeps a dead process from its parent, as a device that does not answer does.
TEST(ChildProcess, OneThatOutlivesSigkillIsNotWaitedForWithoutLimit) {
  int ends[2] = {-1, -1};
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Descriptor in(ends[0]);
  const Descriptor out(ends[1]);
  const auto pause_forever = [] {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
      ::pause();
    }
  };
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    EXPECT_EQ(::write(out.get(), "r", 1), 1);
    pause_forever();
  }
  char told = 0;
  ASSERT_EQ(::read(in.get(), &told, 1), 1);
  const pid_t debugger = ::fork();
  if (debugger == 0) {
    told = ::ptrace(PTRACE_SEIZE, child, 0, 0) == 0 ? 'y' : 'n';
    EXPECT_EQ(::write(out.get(), &told, 1), 1);
    pause_forever();
  }
  ASSERT_EQ(::read(in.get(), &told, 1), 1);
  ChildProcess process(child, open_pidfd(child));
  const bool was_reaped = process.kill_and_reap(std::chrono::seconds(1));
  EXPECT_EQ(process.pid(), -1);
  ::kill(debugger, SIGKILL);
  ::waitpid(debugger, nullptr, 0);
  if (told == 'n') {
    GTEST_SKIP() << "no process may debug another";
  }
  EXPECT_FALSE(was_reaped);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(ChildProcess, AProgramThatCannotRunIsAnErrorOfTheParent) {
  ProcessSpec spec = shell("exit 0");
  spec.path = "/no/such/program";
  const SpawnResult result = spawn_process(spec, SignalState::current());
  EXPECT_FALSE(result.process);
  EXPECT_TRUE(result.exec_failed);
  EXPECT_EQ(result.error, ENOENT);
}

}  // namespace
}  // namespace sherd
