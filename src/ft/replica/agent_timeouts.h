// SPDX-License-Identifier: Apache-2.0
//
// How long the agents of a replica wait for other processes. Users set them by
// SessionOptions::timeouts. Thread rule: a value.
#pragma once

#include "base/clock.h"

namespace sherd::ft {

struct AgentTimeouts {
  // The limit for connecting the neighbours of an epoch; see RingOptions.
  Duration connect = std::chrono::milliseconds(700);
  // How long sent data may stay unacknowledged before a connection counts as lost.
  Duration link = std::chrono::seconds(5);
  // A donor is given up if it is silent for this long, or has not copied its state by then.
  Duration fetch = std::chrono::seconds(5);
  Duration snapshot = std::chrono::seconds(60);
  // How long a replica that was told to leave waits for a decision while its ranks do nothing. Then
  // it leaves with the state that it holds.
  Duration leave = std::chrono::seconds(10);
  // How long a replica whose program has ended serves other replicas that lack the last step.
  Duration linger = std::chrono::seconds(60);
};

}  // namespace sherd::ft
