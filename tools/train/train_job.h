// SPDX-License-Identifier: Apache-2.0
//
// A training job whose ranks stay together from the first step to the last, and
// save checkpoints on the way. Thread rule: one thread.
#pragma once

namespace sherd::tools {

class Trainer;

// The exit status of a process that a signal ends.
inline constexpr int kKilledBy = 128;

// Collective. Trains to the trainer's last step, or until a signal asks for the end; returns the
// exit status. Throws Error if training cannot go on.
int train(Trainer& trainer);

}  // namespace sherd::tools
