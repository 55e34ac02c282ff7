// SPDX-License-Identifier: Apache-2.0
//
// A shorter tick for Gloo's I/O thread, in test programs only. Gloo frees a
// connection when the loop of that thread has turned once more, and the loop
// turns every 10 ms while nothing arrives: a group of four ranks takes 30 ms to
// close, and the tests close thousands of groups. The definition below precedes
// the one of the C library for all libraries of the program; it changes nothing
// but that one timeout.
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" int epoll_wait(
    int fd, epoll_event* events, int events_max, int timeout_ms) {
  constexpr int kGlooTickMs = 10;
  constexpr int kShortTickMs = 1;
  return static_cast<int>(::syscall(
      SYS_epoll_pwait, fd, events, events_max,
      timeout_ms == kGlooTickMs ? kShortTickMs : timeout_ms, nullptr, 0));
}
