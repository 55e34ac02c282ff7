// SPDX-License-Identifier: Apache-2.0
//
// The options that a seed of the swarm draws.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "sim/random.h"
#include "sim/swarm_testing.h"

namespace sherd::sim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::array<const char*, kSwarmFaults> kNames = {
    "ends",
    "vanishes",
    "hangs",
    "leaves",
    "pair",
    "all",
    "link reset",
    "link cut",
    "reconnection",
    "coordinator",
    "half told",
    "log",
    "stall",
    "slow",
    "late messages",
    "lost messages",
    "repeated messages"};

// Drawn between both, with each order of magnitude equally likely.
Duration draw(Random& random, Duration from, Duration to) {
  const auto low = static_cast<double>(from.count());
  const auto high = static_cast<double>(to.count());
  return Duration(
      static_cast<Duration::rep>(low * std::pow(high / low, random.uniform())));
}

int draw(Random& random, int from, int to) {
  return from +
      static_cast<int>(random.below(static_cast<std::uint64_t>(to - from) + 1));
}

WorldTimes draw_times(Random& random) {
  WorldTimes times;
  times.step = draw(random, milliseconds(100), milliseconds(1000));
  times.message = draw(random, microseconds(20), milliseconds(4));
  times.sync = draw(random, microseconds(50), milliseconds(20));
  times.leader_fan_out = draw(random, microseconds(1), milliseconds(2));
  times.connect = draw(random, milliseconds(1), milliseconds(200));
  times.reduce = draw(random, microseconds(100), milliseconds(200));
  times.fetch = draw(random, milliseconds(1), milliseconds(3000));
  times.end_of_connection = draw(random, milliseconds(1), milliseconds(500));
  times.reconnect = draw(random, milliseconds(10), milliseconds(500));
  return times;
}

ft::CoordinatorOptions draw_coordinator(Random& random, int replicas) {
  ft::CoordinatorOptions options;
  options.replicas_min = draw(random, 1, replicas);
  options.replicas_start = replicas;
  options.recovers = true;
  options.samples_per_replica = draw(random, 1, 3);
  if (random.below(3) == 0) {
    options.samples_multiple = draw(random, 1, 2);
    options.samples_in_all = options.samples_multiple * draw(random, 6, 12);
  }
  options.start_timeout = std::chrono::seconds(5);
  options.hold_time = draw(random, milliseconds(8000), milliseconds(20000));
  options.settle = draw(random, microseconds(1), milliseconds(50));
  options.join_timeout = draw(random, milliseconds(2000), milliseconds(4000));
  options.reconnect_timeout =
      draw(random, milliseconds(50), milliseconds(2000));
  options.vote_timeout = draw(random, milliseconds(1), milliseconds(2000));
  options.backoff = draw(random, milliseconds(50), milliseconds(1000));
  options.backoff_max = draw(random, milliseconds(1000), milliseconds(4000));
  return options;
}

}  // namespace

SwarmOptions draw_swarm_options(std::uint64_t seed) {
  Random random(seed, "swarm options");
  SwarmOptions options;
  auto& world = options.world;
  world.replicas = draw(random, 1, 6);
  world.times = draw_times(random);
  world.coordinator = draw_coordinator(random, world.replicas);
  world.every_step = true;
  for (int i = 0; i < kSwarmFaults; ++i) {
    if (random.below(2) == 0) {
      options.faults.push_back(static_cast<SwarmFault>(i));
    }
  }
  // Messages are lost one at a time, so two reports suffice to tell what is known.
  options.heartbeat = draw(random, milliseconds(300), milliseconds(600));
  options.between_faults = draw(
      random, world.times.step + milliseconds(100),
      40 * world.times.step + milliseconds(1000));
  options.away = draw(random, milliseconds(10), milliseconds(10000));
  options.keeps_state = random.uniform();
  options.has_checkpoint = random.uniform();
  options.per_message = 0.2 * random.uniform() * random.uniform();
  options.delay = draw(random, milliseconds(1), milliseconds(50));
  return options;
}

std::string text_of(const SwarmOptions& options) {
  const auto& world = options.world;
  const auto& rules = world.coordinator;
  const auto& times = world.times;
  auto text = str(
      world.replicas, " replicas, replicas_min ", rules.replicas_min,
      ", samples ", rules.samples_per_replica, " each or ",
      rules.samples_in_all, " in all; seconds: step ",
      sherd::seconds(times.step), ", message ", sherd::seconds(times.message),
      ", sync ", sherd::seconds(times.sync), ", fan-out ",
      sherd::seconds(times.leader_fan_out), ", connect ",
      sherd::seconds(times.connect), ", reduce ", sherd::seconds(times.reduce),
      ", fetch ", sherd::seconds(times.fetch), ", end of connection ",
      sherd::seconds(times.end_of_connection), ", reconnect ",
      sherd::seconds(times.reconnect), ", hold ",
      sherd::seconds(rules.hold_time), ", settle ",
      sherd::seconds(rules.settle), ", join ",
      sherd::seconds(rules.join_timeout), ", members come back ",
      sherd::seconds(rules.reconnect_timeout), ", vote ",
      sherd::seconds(rules.vote_timeout), ", backoff ",
      sherd::seconds(rules.backoff), " to ", sherd::seconds(rules.backoff_max),
      ", heartbeat ", sherd::seconds(options.heartbeat), ", between faults ",
      sherd::seconds(options.between_faults), ", away ",
      sherd::seconds(options.away), ", delay ", sherd::seconds(options.delay),
      "; keeps state ", options.keeps_state, ", has a checkpoint ",
      options.has_checkpoint, ", of messages ", options.per_message,
      "; faults:");
  for (const auto fault : options.faults) {
    text += str(" ", kNames[static_cast<std::size_t>(fault)], ",");
  }
  return text;
}

}  // namespace sherd::sim
