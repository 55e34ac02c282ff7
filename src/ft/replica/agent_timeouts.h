// SPDX-License-Identifier: Apache-2.0
//
// How long the agents of a replica wait for other processes. Users set them by
// SessionOptions::timeouts. Thread rule: a value.
#pragma once

#include <algorithm>
#include "base/clock.h"

namespace sherd::ft {

struct AgentTimeouts {
  // Until the neighbours of an epoch are connected; see RingOptions.
  Duration connect = std::chrono::milliseconds(700);
  // How long sent data may stay unacknowledged before a connection counts as lost.
  Duration link = std::chrono::seconds(5);
  // A donor that is silent for so long is given up; and one that has not copied its state by then.
  Duration fetch = std::chrono::seconds(5);
  Duration snapshot = std::chrono::seconds(60);
  // How long a replica that was told to leave waits for a decision while its ranks do nothing. Then
  // it leaves with the state that it holds.
  Duration leave = std::chrono::seconds(10);
  // How long a replica whose program has ended serves others that lack the last step.
  Duration linger = std::chrono::seconds(60);
};

// How often each rank of a replica tells its leader what it does. The leader hears a few thousand
// such messages a second at most, however many ranks there are, up to where they would look silent
// (kSilentAfterHeartbeats).
inline Duration rank_heartbeat_interval(int ranks) {
  constexpr int kRanksAtOnce = 256;
  return std::chrono::milliseconds(
      std::clamp(100 * ranks / kRanksAtOnce, 100, 500));
}

}  // namespace sherd::ft
