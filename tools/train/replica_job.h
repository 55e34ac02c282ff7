// SPDX-License-Identifier: Apache-2.0
//
// The training of one replica of several, which a coordinator tells what to do:
// `sherd run --fault-tolerant`. Thread rule: one thread.
#pragma once

#include <cstdint>
#include "train/trainer.h"

namespace sherd::tools {

// Whether this process is a rank of such a replica.
bool is_replica();

// Collective over the replica's ranks. Trains to the trainer's last step, or until
// the replica is asked to leave; returns the exit status. Throws Error when
// training cannot go on.
// How many samples a replica has in a step is its coordinator's to say. Throws Error for a --batch
// of another number than SHERD_SAMPLES and SHERD_REPLICAS make.
void expect_batch_of_replica(std::int64_t batch);

int train_replica(Trainer& trainer);

}  // namespace sherd::tools
