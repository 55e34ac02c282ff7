// SPDX-License-Identifier: Apache-2.0
//
// The identity of processes on this host, where process ids are recycled. Thread rule: any thread.
#pragma once

#include <cstdint>
#include "base/descriptor.h"

namespace sherd {

// A descriptor that becomes readable when process `pid` ends. It is not open, and errno is set,
// when there is no such process (ESRCH) or the system has no descriptor left.
Descriptor open_pidfd(int pid);

// When process `pid` started, in clock ticks since the host's start; 0 when that is unknown.
std::uint64_t process_start_ticks(int pid);

}  // namespace sherd
