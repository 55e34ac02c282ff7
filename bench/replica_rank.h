// SPDX-License-Identifier: Apache-2.0
//
// The contender "replica": a rank of a fault-tolerant run, started by `sherd run
// --fault-tolerant`, that trains the same GPT as the others until it is asked to
// leave, and writes down what becomes of each step (step_log.h). Thread rule:
// one thread.
#pragma once

#include <string>
#include <sherd/world/world.h>
#include "bench/step_log_files.h"
#include "bench/step_runner.h"

namespace sherd::bench {

struct ReplicaRankOptions {
  // Where the step log is written.
  std::string folder;
  // File of a StepGate that steps wait for; empty: none.
  std::string gate;
  // A step whose number it divides is logged with a hash, which reads all parameters and optimizer
  // state; 0: no hashes.
  int hash_every = 0;
};

// From now on SIGUSR1 asks this process to leave instead of killing it. Call it before anything
// that takes time.
void install_leave_signal_handler();

// The name of this process's log; replica and rank are read from the environment.
StepLogName step_log_name();

// Collective over the ranks of the replica; returns when it has left. Throws
// Error when the replica has no place any more.
void train_as_replica(
    const World& world,
    const StepRunnerOptions& runner,
    const ReplicaRankOptions& options,
    StepLogWriter& file);

}  // namespace sherd::bench
