// SPDX-License-Identifier: Apache-2.0
//
// The training of one of several replicas, as directed by a coordinator: `sherd run
// --fault-tolerant`. Thread rule: one thread.
#pragma once

namespace sherd::tools {

class Trainer;

// Collective over the replica's ranks. Trains to the trainer's last step, or until the replica is
// asked to leave; returns the exit status. Throws Error if training cannot go on.
int train_replica(Trainer& trainer);

}  // namespace sherd::tools
