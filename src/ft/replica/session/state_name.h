// SPDX-License-Identifier: Apache-2.0
//
// A state's identity as text, for checkpoints. Thread rule: pure functions.
#pragma once

#include <string>
#include "ft/protocol/identity.h"

namespace sherd::ft {

// "step 12 of 0123456789abcdef0123456789abcdef": all of it.
std::string name_of(const StateId& state);

// Throws Error for what name_of() does not write.
StateId state_named(const std::string& name);

}  // namespace sherd::ft
