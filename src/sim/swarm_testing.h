// SPDX-License-Identifier: Apache-2.0
//
// The swarm: many simulated worlds, each with its own size, times and random faults, all from one
// seed (swarm testing: Groce et al., ISSTA 2012). Each seed draws which kinds of faults there are
// and how often they come, so that rare combinations come, too. After so many steps all faults end,
// everything is restored, and training must go on. Thread rule: functions, values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "sim/world.h"

namespace sherd::sim {

enum class SwarmFault {
  kEnds,              // A replica's processes end.
  kVanishes,          // Its host is gone.
  kHangs,             // It computes for ever.
  kLeaves,            // It leaves in order.
  kPair,              // Two end at once.
  kAll,               // All end at once.
  kLinkReset,         // A connection between two fails once.
  kLinkCut,           // Nothing passes between two for a while.
  kConnectionReset,   // One connects to the coordinator again.
  kCoordinator,       // It is killed and started again.
  kCoordinatorTells,  // It is killed when it has told some of what it wrote.
  kLog,               // It is killed, and its log is lost.
  kStall,             // Training stands still.
  kSlow,              // A replica computes slowly for a while.
  kDelays,            // Messages come late and overtake each other.
  kLosses,            // Messages are lost.
  kRepeats,           // Messages come twice.
};
inline constexpr int kSwarmFaults = 17;

// What one seed draws.
struct SwarmOptions {
  SimulatedWorldOptions world;
  std::vector<SwarmFault> faults;  // Those that happen.
  Duration heartbeat{};
  Duration between_faults{};  // Mean, of all kinds that come at one time.
  Duration away{};            // Mean time until a replica is started again.
  double keeps_state = 0;     // How often it then has its last state.
  double has_checkpoint = 0;  // How often it has an earlier one; else none.
  double per_message = 0;     // Share of messages, for each kind of fault.
  Duration delay{};           // Mean, of those that come late.
};
SwarmOptions draw_swarm_options(std::uint64_t seed);
std::string text_of(const SwarmOptions& options);

struct SwarmResult {
  std::string violation;  // Begins with what does not hold; empty: all does.
  std::uint64_t digest = 0;
  // So that a swarm in which nothing happens is noticed.
  std::int64_t commits = 0;
  std::int64_t rollbacks = 0;
  std::int64_t recoveries = 0;
  std::int64_t events = 0;
  std::vector<std::int64_t> faults;  // How often each came.
  std::vector<std::string> last;     // What happened before the end, if traced.
};
// Commits `steps` under faults, if they let it within some multiple of their time, and a few more
// when all is restored. The same seed makes the same run.
SwarmResult run_swarm(
    std::uint64_t seed, std::int64_t steps, bool traced = false);

}  // namespace sherd::sim
