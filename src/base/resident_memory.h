// SPDX-License-Identifier: Apache-2.0
//
// The resident memory of this process, including pages that it shares with others. Thread rule: any
// thread.
#pragma once

#include <cstdint>

namespace sherd {

// The current resident memory in bytes; 0 if /proc does not say.
std::int64_t resident_bytes();

// The largest resident memory since the process began, in bytes.
std::int64_t resident_bytes_peak();

}  // namespace sherd
