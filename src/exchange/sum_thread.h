// SPDX-License-Identifier: Apache-2.0
//
// Decides whether ranks that share memory sum gradients on a thread of their own. Thread rule: any
// thread.
#pragma once

#include "base/rank_environment.h"

namespace sherd::exchange {

struct HostLoad {
  int cores = 1;
  int ranks = 1;    // The ranks that share them.
  int threads = 1;  // The threads for operators of each rank.
};

// As SHERD_SUM_THREAD says ("on", "off" or "auto"); otherwise true if every rank has a core beside
// those of its operators. Throws Error if the variable has another value.
bool sums_have_a_thread(
    const HostLoad& load, const EnvironmentLookup& environment);

}  // namespace sherd::exchange
