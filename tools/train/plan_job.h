// SPDX-License-Identifier: Apache-2.0
//
// What `sherd train --plan` does: it makes a few real steps and keeps nothing of them, to measure
// memory and time. Thread rule: one thread.
#pragma once

#include "train/trainer.h"

namespace sherd::tools {

// Collective. Returns the exit status. Throws Error on every rank, as training would; also if
// --memory cannot be kept.
int print_plan(Trainer& trainer);

}  // namespace sherd::tools
