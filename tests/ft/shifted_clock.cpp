// SPDX-License-Identifier: Apache-2.0
#include "ft/shifted_clock.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <ctime>
#include <new>
#include <string>
#include "base/check.h"
#include "base/descriptor.h"

namespace sherd::ft::test {
namespace {

struct WallClock {
  std::atomic<std::int64_t> ahead_ns{0};
  std::atomic<std::int64_t> reads{0};
};
using WallClocks = std::array<WallClock, kWallClocks>;

// Shared with the children; null if no clock was requested, and then all are right.
WallClocks* clocks = nullptr;
int own = -1;

WallClock& clock_of(int number) {
  if (clocks == nullptr) {
    void* memory = ::mmap(
        nullptr, sizeof(WallClocks), PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    SHERD_CHECK(memory != MAP_FAILED, "[test] expected a page, found none");
    clocks = new (memory) WallClocks();
  }
  return clocks->at(static_cast<std::size_t>(number));
}

int read_clock(clockid_t which, timespec* time) {
  const int result =
      static_cast<int>(::syscall(SYS_clock_gettime, which, time));
  const bool wall = which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE;
  if (result == 0 && wall && own >= 0) {
    auto& clock = clock_of(own);
    clock.reads.fetch_add(1, std::memory_order_relaxed);
    constexpr std::int64_t kSecond = 1000000000;
    const auto now = time->tv_sec * kSecond + time->tv_nsec +
        clock.ahead_ns.load(std::memory_order_relaxed);
    time->tv_sec = now / kSecond;
    time->tv_nsec = now % kSecond;
  }
  return result;
}

}  // namespace

void use_wall_clock(int number) {
  (void)clock_of(number);
  own = number;
}

void shift_wall_clock(int number, Duration by) {
  clock_of(number).ahead_ns.store(by.count(), std::memory_order_relaxed);
}

std::int64_t wall_clock_reads(int number) {
  return clock_of(number).reads.load(std::memory_order_relaxed);
}

bool set_monotonic_clock_ahead(std::chrono::seconds ahead) {
  if (ahead.count() == 0) {
    const Descriptor usual(::open("/proc/self/ns/time", O_RDONLY | O_CLOEXEC));
    return ::setns(usual.get(), CLONE_NEWTIME) == 0;
  }
  if (::unshare(CLONE_NEWTIME) != 0) {
    return false;
  }
  const std::string offsets = "monotonic " + std::to_string(ahead.count()) +
      " 0\nboottime " + std::to_string(ahead.count()) + " 0\n";
  const Descriptor file(
      ::open("/proc/self/timens_offsets", O_WRONLY | O_CLOEXEC));
  return ::write(file.get(), offsets.data(), offsets.size()) ==
      static_cast<ssize_t>(offsets.size());
}

}  // namespace sherd::ft::test

extern "C" int clock_gettime(clockid_t which, timespec* time) {
  return sherd::ft::test::read_clock(which, time);
}
extern "C" int gettimeofday(timeval* time, void* /*zone*/) {
  timespec now = {};
  const int result = sherd::ft::test::read_clock(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return result;
}
extern "C" time_t time(time_t* time) {
  timespec now = {};
  (void)sherd::ft::test::read_clock(CLOCK_REALTIME, &now);
  if (time != nullptr) {
    *time = now.tv_sec;
  }
  return now.tv_sec;
}
