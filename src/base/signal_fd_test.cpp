// SPDX-License-Identifier: Apache-2.0
#include "base/signal_fd.h"

#include <sys/wait.h>
#include <unistd.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Sets the action on a signal, and restores the one before.
class SignalAction {
 public:
  SignalAction(int signal, sighandler_t action)
      : signal_(signal), before_(::signal(signal, action)) {}
  ~SignalAction() { ::signal(signal_, before_); }
  SignalAction(const SignalAction&) = delete;
  SignalAction& operator=(const SignalAction&) = delete;

 private:
  const int signal_;
  const sighandler_t before_;
};

sighandler_t action_on(int signal) {
  struct sigaction now = {};
  ::sigaction(signal, nullptr, &now);
  return now.sa_handler;
}

TEST(SignalFd, TakesItsSignalsExceptIgnoredOnes) {
  const SignalAction ignored(SIGINT, SIG_IGN);
  const SignalFd signals{SIGINT, SIGTERM};
  ::raise(SIGINT);
  ::raise(SIGTERM);
  EXPECT_THAT(signals.take(), ElementsAre(SIGTERM));
  EXPECT_THAT(signals.take(), IsEmpty());
}

TEST(SignalFd, ChildrenHaveAnExitStatusEvenIfTheirEndsWereIgnored) {
  const SignalAction ignored(SIGCHLD, SIG_IGN);
  {
    const SignalFd signals{SIGCHLD};
    const pid_t child = ::fork();
    if (child == 0) {
      ::_exit(3);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 3);
    EXPECT_THAT(signals.take(), ElementsAre(SIGCHLD));
    EXPECT_EQ(signals.before().child.sa_handler, SIG_IGN);
  }
  EXPECT_EQ(action_on(SIGCHLD), SIG_IGN);
}

}  // namespace
}  // namespace sherd
