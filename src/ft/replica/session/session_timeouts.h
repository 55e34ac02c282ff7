// SPDX-License-Identifier: Apache-2.0
//
// Converts SessionTimeouts from text, such as "leave=10,fetch=2.5" in seconds, which is how a
// replica gets them from its launcher, and checks them. Thread rule: pure functions.
#pragma once

#include <string>
#include <sherd/ft/session_types.h>

namespace sherd::ft {

// What the text does not name keeps its default. Throws Error, naming what was expected, for
// malformed text and for times that are not positive.
SessionTimeouts timeouts_of(const std::string& text);

// Throws Error unless all are positive.
void check_timeouts(const SessionTimeouts& timeouts);

}  // namespace sherd::ft
