// SPDX-License-Identifier: Apache-2.0
//
// Wall clocks that jump: the test program's clock_gettime, gettimeofday and time
// stand in for libc's, also for libraries. Each process that a test forks may have
// one of its own, which the test moves while it runs. Thread rule: any thread.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include "base/clock.h"

namespace sherd::ft::test {

inline constexpr int kWallClocks = 16;

// From now on this process's wall clock is that one; at first it is the right one.
void use_wall_clock(int number);
// By so much it is wrong from now on, in whichever process uses it.
void shift_wall_clock(int number, Duration by);
// How often it was read.
std::int64_t wall_clock_reads(int number);

// Of children to come, the monotonic clock is ahead by so much, as on a host that
// was started earlier; 0 s: as it is. False: this system has no such name spaces,
// or they are not for this user. REQUIRES: one thread.
bool set_monotonic_clock_ahead(std::chrono::seconds ahead);

}  // namespace sherd::ft::test
