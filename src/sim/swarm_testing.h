// SPDX-License-Identifier: Apache-2.0
//
// The swarm: many simulated worlds, each with its own size, times and random faults, all from one
// seed (swarm testing: Groce et al., ISSTA 2012). Each seed draws which kinds of faults there are
// and how often they come, so that rare combinations are covered, too. After a number of steps all
// faults end, everything is restored, and training must go on. Thread rule: functions, values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "sim/world.h"

namespace sherd::sim {

enum class SwarmFault {
  kEnds,              // A replica's processes end.
  kVanishes,          // Its host is gone.
  kHangs,             // It computes forever.
  kLeaves,            // It leaves in order.
  kPair,              // Two replicas end at once.
  kAll,               // All replicas end at once.
  kLinkReset,         // A connection between two replicas fails once.
  kLinkCut,           // Nothing passes between two replicas for a while.
  kConnectionReset,   // A replica reconnects to the coordinator.
  kCoordinator,       // The coordinator is killed and restarted.
  kCoordinatorTells,  // It is killed after sending some of what it wrote.
  kLog,               // It is killed, and its log is lost.
  kStall,             // Training stands still.
  kSlow,              // A replica computes slowly for a while.
  kDelays,            // Messages are late and overtake each other.
  kLosses,            // Messages are lost.
  kRepeats,           // Messages come twice.
};
inline constexpr int kSwarmFaults = 17;

// The options drawn from one seed.
struct SwarmOptions {
  SimulatedWorldOptions world;
  std::vector<SwarmFault> faults;  // The faults that happen.
  Duration heartbeat{};
  Duration between_faults{};  // Mean, for all timed kinds together.
  Duration away{};            // Mean time until a replica is restarted.
  double keeps_state = 0;     // How often it then still has its last state.
  // How often it has an earlier one; otherwise it has none.
  // The share of messages, for each kind of fault.
  double has_checkpoint = 0;
  double per_message = 0;
  Duration delay{};  // Mean delay of late messages.
};
SwarmOptions draw_swarm_options(std::uint64_t seed);
std::string text_of(const SwarmOptions& options);

struct SwarmResult {
  std::string violation;  // Begins with what does not hold; empty if all holds.
  std::uint64_t digest = 0;
  // Shows whether anything happened in the swarm.
  std::int64_t commits = 0;
  std::int64_t rollbacks = 0;
  std::int64_t recoveries = 0;
  std::int64_t events = 0;
  std::vector<std::int64_t> faults;  // How often each fault came.
  // The last events before the end, if traced.
  std::vector<std::string> last;
};
// Commits `steps` under faults, if they allow it within some multiple of the usual time, and a few
// more when all is restored. The same seed gives the same run.
SwarmResult run_swarm(
    std::uint64_t seed, std::int64_t steps, bool traced = false);

}  // namespace sherd::sim
