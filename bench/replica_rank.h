// SPDX-License-Identifier: Apache-2.0
//
// The contender "replica": a rank of a fault-tolerant run, started by `sherd run --fault-tolerant`,
// that trains the same GPT as the others until it is asked to leave, and logs the outcome of each
// step (step_log.h). Thread rule: one thread.
#pragma once

#include "bench/step_runner.h"

namespace sherd::bench {

// Collective over the ranks of the replica; returns when SIGUSR1 has asked them to leave and they
// have left. Throws Error if options.folder is not writable or the replica no longer has a place.
void train_as_replica(const StepRunnerOptions& options);

}  // namespace sherd::bench
