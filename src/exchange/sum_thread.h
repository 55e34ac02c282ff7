// SPDX-License-Identifier: Apache-2.0
//
// Decides whether ranks that share memory sum gradients on a thread of their own. Thread rule: any
// thread.
#pragma once

#include "base/rank_environment.h"

namespace sherd::exchange {

struct HostLoad {
  int cores = 1;
  int ranks = 1;    // That share them.
  int threads = 1;  // Of each rank, that its operators use.
};

// As SHERD_SUM_THREAD says ("on", "off" or "auto"), else where every rank has
// a core beside those of its operators. Throws Error when the variable says
// something else.
bool sums_have_a_thread(
    const HostLoad& load, const EnvironmentLookup& environment);

}  // namespace sherd::exchange
