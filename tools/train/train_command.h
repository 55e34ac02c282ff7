// SPDX-License-Identifier: Apache-2.0
//
// What the programs behind `sherd train` share: the command line, data, world and model; and what
// they do with these, in which they differ. Thread rule: one thread.
#pragma once

#include <cstdlib>

namespace sherd::tools {

class Trainer;

// Whether this process is a rank of a replica, which a coordinator directs.
inline bool is_replica() { return std::getenv("SHERD_COORDINATOR") != nullptr; }

// The program that a rank of a replica executes; `make train` does not build it.
inline constexpr const char* kReplicaProgram = "sherd-train-replica";
inline constexpr const char* kReplicaProgramRemedy =
    "'make build' builds it, for replicas of a fault-tolerant run";

// The exit status of a process that a signal ends.
inline constexpr int kKilledBy = 128;

// The next three are collective over the ranks of the trainer. They return the exit status, or throw
// Error if they cannot go on.

// The ranks stay together from the first step to the last, or until a signal asks for the end, and
// save checkpoints on the way.
int train(Trainer& trainer);

// Trains one of several replicas, as directed by a coordinator (`sherd run --fault-tolerant`), to the
// last step or until the replica is asked to leave.
int train_replica(Trainer& trainer);

// --plan: makes a few real steps and keeps nothing of them, to measure memory and time. Throws Error
// on every rank, as training would; also if --memory cannot be kept.
int print_plan(Trainer& trainer);

// Reads the command line and calls `train` with what it describes; returns the exit status. Throws
// Error for any mistake.
int train_command(int argc, char** argv, int (*train)(Trainer& trainer));

}  // namespace sherd::tools
