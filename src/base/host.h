// SPDX-License-Identifier: Apache-2.0
//
// What this process learns of its host: its name, the cores that it may use, and the memory that it
// takes there. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

// The name of this host, for messages and to tell hosts apart; empty if it is unknown.
std::string host_name();

// The numbers of the hardware threads that the process may run on, ascending; at least one.
std::vector<int> allowed_cores();

// The resident memory of this process in bytes, including pages that it shares with others; 0 if
// /proc does not say.
std::int64_t resident_bytes();
// The largest resident memory since the process began.
std::int64_t resident_bytes_peak();

}  // namespace sherd
