// SPDX-License-Identifier: Apache-2.0
#include "train/signal_request.h"

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <gtest/gtest.h>

namespace sherd::tools {
namespace {

// Interrupts itself after its parent, the launcher, has done so. Exits with the request.
[[noreturn]] void be_interrupted_by_parent_and_others() {
  install_signal_handlers(false);
  sigset_t none;
  sigset_t interrupts;
  ::sigemptyset(&none);
  ::sigemptyset(&interrupts);
  ::sigaddset(&interrupts, SIGINT);
  ::sigprocmask(SIG_BLOCK, &interrupts, nullptr);
  const pid_t child = ::fork();
  if (child != 0) {
    ::kill(child, SIGINT);
    int status = 0;
    ::waitpid(child, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  while (take_signal_request() == 0) {
    ::sigsuspend(&none);
  }
  ::sigprocmask(SIG_UNBLOCK, &interrupts, nullptr);
  ::raise(SIGINT);
  ::_exit(signal_of(take_signal_request()));
}

TEST(SignalRequest, AnInterruptThatTheLauncherPassesOnAsWellIsOne) {
  EXPECT_EXIT(
      be_interrupted_by_parent_and_others(), ::testing::ExitedWithCode(SIGINT),
      "");
}

TEST(SignalRequest, ASecondInterruptEndsTheProcess) {
  const auto twice = [] {
    install_signal_handlers(false);
    ::raise(SIGINT);
    ::raise(SIGINT);
    ::_exit(take_signal_request());
  };
  EXPECT_EXIT(twice(), ::testing::KilledBySignal(SIGINT), "");
}

int request_after(int signal) {
  ::raise(signal);
  return take_signal_request();
}

TEST(SignalRequest, AClosedTerminalAsksForTheEndUnlessThatIsIgnored) {
  const auto hang_up = [](bool with_nohup) {
    ::signal(SIGHUP, with_nohup ? SIG_IGN : SIG_DFL);
    install_signal_handlers(false);
    ::_exit(request_after(SIGHUP));
  };
  EXPECT_EXIT(
      hang_up(false), ::testing::ExitedWithCode(kSaveRequest + SIGHUP), "");
  EXPECT_EXIT(hang_up(true), ::testing::ExitedWithCode(0), "");
}

TEST(SignalRequest, ASaveThatIsAskedForEarlyIsKept) {
  const auto early = [] {
    accept_save_requests();
    ::raise(SIGUSR1);
    install_signal_handlers(false);
    ::_exit(take_signal_request());
  };
  EXPECT_EXIT(early(), ::testing::ExitedWithCode(kSaveRequest), "");
}

}  // namespace
}  // namespace sherd::tools
