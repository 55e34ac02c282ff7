// SPDX-License-Identifier: Apache-2.0
//
// Which process is which on this host: a process id alone may be recycled.
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include "base/descriptor.h"

namespace sherd {

// A descriptor that becomes readable when process `pid` ends; not open, with
// errno, when there is no such process (ESRCH) or it cannot be had.
Descriptor open_pidfd(int pid);

// When process `pid` started, in clock ticks since the host did; 0: unknown.
std::uint64_t process_start_ticks(int pid);

}  // namespace sherd
