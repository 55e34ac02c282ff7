// SPDX-License-Identifier: Apache-2.0
//
// SessionTimeouts as text, "leave=10,fetch=2.5" in seconds, which is how they come to a replica from
// its launcher, and as the agents want them. Thread rule: pure functions.
#pragma once

#include <string>
#include <sherd/ft/replica_session.h>
#include "ft/replica/agent_timeouts.h"

namespace sherd::ft {

// What the text does not name keeps its default. Throws Error, naming what was expected, for another
// text and for times that are not positive.
SessionTimeouts timeouts_of(const std::string& text);

// Throws Error unless all are positive.
AgentTimeouts agent_timeouts(const SessionTimeouts& timeouts);

}  // namespace sherd::ft
