// SPDX-License-Identifier: Apache-2.0
//
// The contender "replica": a rank of a fault-tolerant run, started by `sherd run --fault-tolerant`,
// that trains the same GPT as the others until it is asked to leave, and logs the outcome of each
// step (step_log.h). Thread rule: one thread.
#pragma once

#include <string>
#include <sherd/world/world.h>
#include "bench/step_log.h"
#include "bench/step_runner.h"

namespace sherd::bench {

// From now on SIGUSR1 asks this process to leave instead of killing it. Must be called before
// anything that takes time.
void install_leave_signal_handler();

// The log of this process, without lines; replica and rank are read from the environment.
StepLog step_log_of_process();

// Collective over the ranks of the replica; returns when it has left. Throws Error if the replica
// no longer has a place.
void train_as_replica(
    const World& world, const StepRunnerOptions& options, StepLogWriter& file);

}  // namespace sherd::bench
