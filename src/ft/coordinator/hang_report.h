// SPDX-License-Identifier: Apache-2.0
//
// Explains a hang from the progress that all ranks report: sentences that say who waits for whom
// and for which bytes of which unit, and the dead link when replicas wait for each other in a
// circle. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "base/clock.h"
#include "ft/protocol/link_faults.h"
#include "ft/protocol/messages.h"
#include "ft/wire/codec.h"

namespace sherd::ft {

struct RankActivity {
  TrainingProgress progress;
  Duration standing{};  // How long its activity and serial have not changed.
};

struct ReplicaActivity {
  ReplicaId replica = 0;
  // Those ranks that the replica reports.
  std::vector<RankActivity> ranks;
  // The replica that this one as a whole waits for.
  std::optional<ReplicaId> waits_for{};
};

// How long the agent of the rank has been silent; 0 if it is not.
inline Duration silence_of(const TrainingProgress& progress) {
  return progress.missed_heartbeats < kSilentAfterHeartbeats
      ? Duration(0)
      : progress.missed_heartbeats * kHeartbeatInterval;
}

// The indices in its list of the ranks that the others wait for: those that have moved least, or
// all ranks if none is behind.
std::vector<std::size_t> ranks_behind(const ReplicaActivity& replica);

// "waits for the bytes of replica 0 in bucket 3 (layers.4), 41 of 96 slices done",
// "has been computing for 6.2 s".
std::string text_of(const RankActivity& rank);

// What the culprit's ranks do and who waits for it, directly or not: "rank 1 has been computing for
// 6.2 s; replica 0 rank 1 waits for its bytes in bucket 3 (layers.4), 41 of 96 slices done". If many
// wait, the first few are named.
std::string hang_report(
    const ReplicaActivity& culprit, const std::vector<ReplicaActivity>& others);

// A link of a ring in which nothing moves.
struct DeadLink {
  Epoch epoch;
  ReplicaId from = 0;
  ReplicaId to = 0;
  std::size_t rank = 0;
  std::uint64_t frames = 0;  // How many frames were sent but not received.
};
// A rank that reads all the time has received everything that has arrived, so if frames are
// missing, the link or its end is dead. Returns all such links between these replicas, each once.
std::vector<DeadLink> dead_links(const std::vector<ReplicaActivity>& replicas);
std::string text_of(const DeadLink& link);
// The receiving ends of the links are accused.
std::vector<BrokenLink> broken_links_of(const std::vector<DeadLink>& links);

// "computing".
std::string text_of(Activity activity);
// "6.2 s".
std::string tenths(Duration duration);

}  // namespace sherd::ft
