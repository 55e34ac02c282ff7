// SPDX-License-Identifier: Apache-2.0
//
// Resident memory of this process, which counts pages that it shares with others, too. Thread rule:
// any thread.
#pragma once

#include <cstdint>

namespace sherd {

// In bytes, now; 0 where /proc does not say.
std::int64_t resident_bytes();

// The most since the process began.
std::int64_t resident_bytes_peak();

}  // namespace sherd
