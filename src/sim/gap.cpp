// SPDX-License-Identifier: Apache-2.0
#include "sim/gap.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "base/check.h"

namespace sherd::sim {

Duration gap_of_loss(
    int replicas,
    int ranks_per_replica,
    const WorldTimes& times,
    Duration into_step) {
  SHERD_CHECK(
      replicas > 1, "[sim] expected replicas that stay, found ", replicas,
      " replica in all");
  SimulatedWorldOptions options;
  options.replicas = replicas;
  options.ranks_per_replica = ranks_per_replica;
  options.times = times;
  options.coordinator.replicas_start = replicas;
  options.coordinator.recovers = true;
  options.every_step = true;
  constexpr std::int64_t kUsualSteps = 20;
  constexpr int kStepsAfter = 10;
  // Longer than the effect of a loss, which lasts until a silent replica counts as lost.
  constexpr Duration kRecovers = std::chrono::seconds(5);
  SimulatedWorld world(options);
  for (int i = 0; i < replicas; ++i) {
    world.start(static_cast<ft::ReplicaId>(i), SimulatedWorld::first_state());
  }
  std::int64_t steps = 0;
  std::optional<Instant> lost_at;
  Instant last{};
  Duration longest{0};
  world.set_on_record([&](const ft::Record& record) {
    if (!std::holds_alternative<ft::CommitRecord>(record)) {
      return;
    }
    if (lost_at && world.now() > *lost_at) {
      longest = std::max(longest, world.now() - last);
    }
    last = world.now();
    if (++steps == kUsualSteps) {
      lost_at = last + into_step;
      world.events().add_outside(
          *lost_at, [&] { world.lose(0, FailureKind::kProcess); });
    }
  });
  world.run_until(
      Instant(std::chrono::seconds(1)) + kRecovers +
      (kUsualSteps + kStepsAfter) * times.step);
  return longest;
}

}  // namespace sherd::sim
