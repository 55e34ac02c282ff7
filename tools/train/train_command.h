// SPDX-License-Identifier: Apache-2.0
//
// What the programs behind `sherd train` share: the command line, data, world and model. They
// differ in how a rank takes its steps. Thread rule: one thread.
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

// Reads the command line and calls `train` with what it describes; returns the exit status. Throws
// Error for any mistake.
int train_command(int argc, char** argv, int (*train)(Trainer& trainer));

}  // namespace sherd::tools
