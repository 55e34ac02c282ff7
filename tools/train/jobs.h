// SPDX-License-Identifier: Apache-2.0
//
// What `sherd train` does with a Trainer. Each is collective over its ranks and returns the exit
// status, or throws Error if it cannot go on. Thread rule: one thread.
#pragma once

namespace sherd::tools {

class Trainer;

// The exit status of a process that a signal ends.
inline constexpr int kKilledBy = 128;

// The ranks stay together from the first step to the last, or until a signal asks for the end, and
// save checkpoints on the way.
int train(Trainer& trainer);

// Trains one of several replicas, as directed by a coordinator (`sherd run --fault-tolerant`), to the
// last step or until the replica is asked to leave.
int train_replica(Trainer& trainer);

// --plan: makes a few real steps and keeps nothing of them, to measure memory and time. Throws Error
// on every rank, as training would; also if --memory cannot be kept.
int print_plan(Trainer& trainer);

}  // namespace sherd::tools
