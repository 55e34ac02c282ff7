// SPDX-License-Identifier: Apache-2.0
//
// The CPU affinity of this process. Thread rule: any thread.
#pragma once

#include <vector>

namespace sherd {

// The numbers of the hardware threads that the process may run on, ascending; at least one.
std::vector<int> allowed_cores();

}  // namespace sherd
