// SPDX-License-Identifier: Apache-2.0
//
// Wall clocks that jump: the test program's clock_gettime, gettimeofday and time replace those of
// libc, also for libraries. Each process that a test forks may have its own clock, which the test
// moves while the process runs. Thread rule: any thread.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include "base/clock.h"

namespace sherd::ft::test {

inline constexpr int kWallClocks = 16;

// From now on this process uses that wall clock, which is right at first.
void use_wall_clock(int number);
// From now on it is wrong by this much, in every process that uses it.
void shift_wall_clock(int number, Duration by);
// How often it was read.
std::int64_t wall_clock_reads(int number);

// The monotonic clock of children started later is ahead by this much, as on a host that was
// started earlier; 0 s changes nothing. Returns false if this system has no such namespaces, or
// does not allow them for this user. REQUIRES: one thread.
bool set_monotonic_clock_ahead(std::chrono::seconds ahead);

}  // namespace sherd::ft::test
