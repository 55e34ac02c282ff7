// SPDX-License-Identifier: Apache-2.0
//
// One replica of a simulated world: its state machine, and what its ranks are doing. Thread rule: a
// value of the world's thread.
#pragma once

#include "sim/world.h"

namespace sherd::sim {

struct SimulatedWorld::Process {
  ft::ReplicaId id = 0;
  // Counts starts and ends; anything begun before is void.
  std::uint64_t life = 0;
  std::optional<ft::Replica> machine{};  // Nullopt if it does not run.
  ft::Incarnation incarnation = 0;
  // The coordinator receives nothing more from this incarnation and older ones.
  ft::Incarnation closed = 0;
  std::uint64_t reports = 0;
  std::uint64_t connection = 0;  // Counts the connections to the coordinator.
  bool hangs = false;
  double slowdown = 1;

  std::optional<ft::ComputeTask> task{};
  bool computed = false;
  std::optional<ft::Attempt> reducing{};
  std::vector<ft::Member> ring{};  // The members of that epoch.
  std::uint64_t fetches = 0;
  std::optional<Copy> fetched{};
  // Its parameters, and what they become with the sum that was reduced last.
  ft::Lineage parameters{};
  ft::Lineage with_sum{};
  ft::TrainingProgress progress{};

  void begin(ft::Activity activity) {
    progress.activity = activity;
    ++progress.serial;
  }
};

}  // namespace sherd::sim
