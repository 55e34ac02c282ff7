// SPDX-License-Identifier: Apache-2.0
//
// The two kinds of jobs: both run on this host until they are over, and return the exit status.
// REQUIRES: descriptors 0, 1 and 2 are open. Thread rule: one thread, the only one of the process.
#pragma once

#include <sherd/launch/launch.h>

namespace sherd::launch {

// The ranks of a plain job start and end together, by the decisions of StopPolicy.
int run_plain_job(const LaunchOptions& options);

// A fault-tolerant job has replicas, which are groups of ranks that may die and are restarted,
// spares and, unless it runs elsewhere, their coordinator. It goes by the decisions of
// RestartPolicy. REQUIRES: options.replicas.
int run_replica_job(const LaunchOptions& options);

}  // namespace sherd::launch
