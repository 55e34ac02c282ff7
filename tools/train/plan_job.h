// SPDX-License-Identifier: Apache-2.0
//
// What `sherd train --plan` does: a few real steps, of which nothing is kept, to measure memory and
// time. Thread rule: one thread.
#pragma once

#include "train/trainer.h"

namespace sherd::tools {

// Collective. Returns the exit status. Throws Error, on every rank, as training would, so when
// --memory cannot be kept.
int print_plan(Trainer& trainer);

}  // namespace sherd::tools
