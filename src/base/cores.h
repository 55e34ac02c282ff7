// SPDX-License-Identifier: Apache-2.0
//
// The hardware threads a process may run on. Thread rule: any thread.
#pragma once

#include <vector>

namespace sherd {

// Their numbers, as in CPU affinity, ascending; at least one.
std::vector<int> allowed_cores();

}  // namespace sherd
