// SPDX-License-Identifier: Apache-2.0
//
// What the options of a replica share with its agents, which do without LibTorch: what it does with
// unusable gradients, and how long it waits for others.
#pragma once

#include <chrono>

namespace sherd::ft {

// What happens to gradients that a replica has found to be unusable.
enum class GradientPolicy {
  kGive,  // They are reduced like others.
  // All replicas make the step without this replica's gradients, as a gradient scaler skips a step.
  // Its samples count as taken.
  kLeaveOut,
  kStop,  // Nothing is committed any more until a person has intervened.
};

// How long a replica waits for others. Longer times suit slow networks and busy hosts; shorter ones
// notice failures sooner.
struct SessionTimeouts {
  // When a replica was asked to leave and its ranks have nothing to do, it waits this long for the
  // coordinator's decision. Then it leaves with the state that it has, so that the program can save
  // it.
  std::chrono::milliseconds leave = std::chrono::seconds(10);
  // A replica to which no connection was made within this time counts as lost. Must be at most
  // seven tenths of the coordinator's join_timeout.
  std::chrono::milliseconds connect = std::chrono::milliseconds(700);
  // A connection counts as lost if sent bytes were not acknowledged for this long.
  std::chrono::milliseconds link = std::chrono::seconds(5);
  // When fetching a state, a donor that sends nothing for this long is given up.
  std::chrono::milliseconds fetch = std::chrono::seconds(5);
  // How long a donor may take to finish its step and to copy its state.
  std::chrono::milliseconds snapshot = std::chrono::seconds(60);
  // How long, at the start, rank 0 waits for the other ranks of its replica.
  std::chrono::milliseconds siblings = std::chrono::seconds(60);
  // How long a replica that has made the last step waits for others that have not.
  std::chrono::milliseconds linger = std::chrono::seconds(60);
};

}  // namespace sherd::ft
