// SPDX-License-Identifier: Apache-2.0
//
// ForkedProcess is a fork of a test, which the test can stop and kill, with a channel between the
// two that carries one value in each message. Thread rule: one thread.
#pragma once

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <csignal>
#include <functional>
#include "base/check.h"
#include "base/descriptor.h"

namespace sherd::test {

template <typename T>
void send_over(int channel, const T& value) {
  SHERD_CHECK(
      ::write(channel, &value, sizeof value) ==
          static_cast<ssize_t>(sizeof value),
      "nobody listens at the other end of the channel");
}

template <typename T>
T receive_over(int channel) {
  T value = {};
  SHERD_CHECK(
      ::read(channel, &value, sizeof value) ==
          static_cast<ssize_t>(sizeof value),
      "the other end of the channel said nothing");
  return value;
}

class ForkedProcess {
 public:
  // `body` runs in the fork, with one end of the channel. Must be created before what the fork must
  // not inherit, such as a ring with its sockets.
  explicit ForkedProcess(const std::function<void(int channel)>& body) {
    std::array<int, 2> ends{};
    SHERD_CHECK(
        ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) ==
            0,
        "no sockets");
    channel_ = Descriptor(ends[0]);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      channel_.close();
      // An exception must not reach the test, which goes on in the parent alone.
      [&]() noexcept { body(ends[1]); }();
      ::_exit(0);
    }
    ::close(ends[1]);
    SHERD_CHECK(pid_ > 0, "no process");  // kill() takes -1 for all processes.
  }
  ForkedProcess(const ForkedProcess&) = delete;
  ForkedProcess& operator=(const ForkedProcess&) = delete;
  ~ForkedProcess() {
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  int channel() const { return channel_.get(); }
  void signal(int number) const { ::kill(pid_, number); }

 private:
  Descriptor channel_;
  int pid_ = -1;
};

}  // namespace sherd::test
