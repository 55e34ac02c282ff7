// SPDX-License-Identifier: Apache-2.0
//
// A shorter tick for Gloo's I/O thread, in test programs only. Gloo frees a connection when the
// loop of that thread has turned once more, and the loop turns every 10 ms while nothing arrives: a
// group of four ranks takes 30 ms to close, and the tests close thousands of groups. While another
// thread holds the lock of a connection, the loop asks for its events again and again; with more
// ranks than cores it would keep that thread from running, so it yields. The definition below takes
// precedence over that of the C library for all libraries of the program; it changes nothing else.
#include <sched.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cstdint>

extern "C" int epoll_wait(
    int fd, epoll_event* events, int events_max, int timeout_ms) {
  constexpr int kGlooTickMs = 10;
  constexpr int kShortTickMs = 1;
  static thread_local std::uint64_t last = 0;
  const auto found = static_cast<int>(::syscall(
      SYS_epoll_pwait, fd, events, events_max,
      timeout_ms == kGlooTickMs ? kShortTickMs : timeout_ms, nullptr, 0));
  const std::uint64_t first = found > 0 ? events[0].data.u64 : 0;
  if (first != 0 && first == last) {
    ::sched_yield();
  }
  last = first;
  return found;
}
