// SPDX-License-Identifier: Apache-2.0
//
// The kernel's wait queue behind a word of memory. Shared futexes: the word may
// be mapped by several processes, at any address. Thread rule: any thread.
#pragma once

#include <cstdint>
#include "base/clock.h"

namespace sherd::shm {

// Sleeps until futex_wake_all() of the same word, but not when *word differs
// from `expected` (compared under the lock of the queue, so no wake is missed
// in between), and at most so long. May return early for no reason.
void futex_wait(
    const std::uint32_t* word, std::uint32_t expected, Duration at_most);

void futex_wake_all(const std::uint32_t* word);

}  // namespace sherd::shm
