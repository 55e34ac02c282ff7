// SPDX-License-Identifier: Apache-2.0
#include "shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <climits>
#include <ctime>

namespace sherd::shm {

void futex_wait(
    const std::uint32_t* word, std::uint32_t expected, Duration at_most) {
  if (at_most <= Duration::zero()) {
    return;
  }
  constexpr std::int64_t kSecond = 1'000'000'000;
  timespec rest = {};
  rest.tv_sec = static_cast<std::time_t>(at_most.count() / kSecond);
  rest.tv_nsec = static_cast<long>(at_most.count() % kSecond);
  // Every outcome means the same to the caller: look again.
  ::syscall(SYS_futex, word, FUTEX_WAIT, expected, &rest, nullptr, 0);
}

void futex_wake_all(const std::uint32_t* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace sherd::shm
