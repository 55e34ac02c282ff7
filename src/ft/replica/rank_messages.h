// SPDX-License-Identifier: Apache-2.0
//
// The messages within one replica: the tasks that the leader in rank 0 gives to every rank,
// including itself, and the events that ranks answer with, encoded as frames. Tasks arrive and are
// carried out in one order, so that all ranks of a replica run the same collectives in the same
// order. Thread rule: values.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>
#include "base/clock.h"
#include "base/status.h"
#include "ft/protocol/tasks.h"
#include "ft/ring/ring_types.h"

namespace sherd::ft {

// ---- from the leader, besides the tasks of the protocol ----

// Precedes all other tasks.
struct StartRunTask {
  std::uint64_t run = 0;
  RingKey key{};  // This replica's.
};
// Takes a snapshot of the held state for a replica that has asked for one.
struct SnapshotTask {
  StateId state;
};
// Fetches this rank's part of the state from the donors, each of which has it or will have it, or
// from the first of them the sum of the commit that was made from the state.
struct FetchTask {
  std::uint64_t serial = 0;
  std::vector<RankAddress> donors;
  StateId state;
  bool is_sum = false;
};

// The index of an alternative is its kind on the wire, so new ones go to the end. RingMembership
// tells the rank to connect to the counterparts in these replicas.
using RankTask = std::variant<
    StartRunTask,
    RingMembership,
    ComputeTask,
    ReduceTask,
    StopReduceTask,
    ApplyTask,
    SnapshotTask,
    FetchTask,
    StopCatchUpTask,
    InstallTask,
    StopTask>;

// ---- to the leader ----

struct JoinedEvent {
  Epoch epoch;
};
struct ReducedEvent {
  Attempt attempt;
  std::uint64_t digest = 0;
};
// The state that an ApplyTask or an InstallTask names is written.
struct WrittenEvent {
  std::uint64_t serial = 0;  // That of the InstallTask; 0 for an ApplyTask.
  StateId state;
  // This rank's part, in steps that compare digests.
  std::optional<StateDigest> digest{};
};
struct BadGradientsEvent {
  std::uint64_t serial = 0;  // That of the ComputeTask.
  GradientFault fault;
};
struct FetchedEvent {
  std::uint64_t serial = 0;
  std::string failure{};     // Empty if the fetch succeeded.
  Commit commit{};           // The commit, if it fetched a sum,
  std::uint64_t digest = 0;  // and the digest of this rank's part of the sum.
};
// How fast data arrive from this rank's counterparts, as far as known.
using LinkSpeeds = std::vector<LinkSpeed>;
// The program of this rank wants the replica to leave.
struct LeaveEvent {};
// The program of this rank makes no further steps; others may still need what this rank has.
struct FinishedEvent {};

// Here, too, the index is the kind on the wire. A Suspicion says that a counterpart is lost.
// TrainingProgress is sent all the time and is the rank's heartbeat.
using RankEvent = std::variant<
    JoinedEvent,
    ReducedEvent,
    Suspicion,
    WrittenEvent,
    FetchedEvent,
    TrainingProgress,
    LeaveEvent,
    FinishedEvent,
    BadGradientsEvent,
    LinkSpeeds>;

// How often each rank of a replica reports its activity to the leader. The leader receives at most
// a few thousand such messages a second, however many ranks there are, as long as the interval does
// not make ranks look silent (kSilentAfterHeartbeats).
inline Duration rank_heartbeat_interval(int ranks) {
  constexpr int kRanksAtOnce = 256;
  return std::chrono::milliseconds(
      std::clamp(100 * ranks / kRanksAtOnce, 100, 500));
}

// ---- encoding ----

// Types of frames within a replica.
enum class RankFrame : std::uint16_t {
  kHello = 1,  // A rank's number and incarnation, as text.
  kTask = 2,
  kEvent = 3,
};

inline std::uint16_t type_of(RankFrame frame) {
  return static_cast<std::uint16_t>(frame);
}

std::string bytes_of(const RankTask& task);
std::string bytes_of(const RankEvent& event);
Result<RankTask> rank_task_of(std::string_view bytes);
Result<RankEvent> event_of(std::string_view bytes);

}  // namespace sherd::ft
