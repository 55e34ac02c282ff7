// SPDX-License-Identifier: Apache-2.0
//
// What the leader of a replica, its rank 0, tells all ranks, itself included, and
// what they answer. Commands come in order and are carried out in order, so that
// the ranks of a replica do the same things in the same order, which their own
// collectives need. Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>
#include "base/status.h"
#include "ft/protocol/messages.h"
#include "ft/ring/ring_types.h"

namespace sherd::ft {

// ---- from the leader ----

// Before all others: whose run it is.
struct RunCommand {
  std::uint64_t run = 0;
};
// Connect to the counterparts in these replicas.
struct JoinCommand {
  RingMembership epoch;
};
// Gradients of these samples of the replica. None: it follows.
struct ComputeCommand {
  std::uint64_t serial = 0;  // 0: to warm up; what comes of it is thrown away.
  StateId base;
  std::vector<SampleRange> samples;
  int replicas = 0;  // Members, also those that follow.
  int place = 0;     // Of this one among them.
};
struct ReduceCommand {
  Attempt attempt;
  std::vector<double> weights;  // By member.
};
struct StopReduceCommand {
  Epoch epoch;
};
// What was reduced.
struct ApplyCommand {
  Commit commit;
};
// Of what is held now, for a replica that asks.
struct SnapshotCommand {
  StateId state;
};
// Each of the donors has it, or will have.
struct FetchStateCommand {
  std::uint64_t serial = 0;
  std::vector<RankAddress> donors;
  StateId state;
};
// Of the commit that was made from `base`.
struct FetchSumCommand {
  std::uint64_t serial = 0;
  RankAddress donor;
  StateId base;
};
struct DropFetchCommand {};
// What was fetched last.
struct InstallCommand {
  std::uint64_t serial = 0;  // The protocol's.
};
struct StopCommand {
  std::string reason;  // Empty: it left in order.
};

using Command = std::variant<
    RunCommand,
    JoinCommand,
    ComputeCommand,
    ReduceCommand,
    StopReduceCommand,
    ApplyCommand,
    SnapshotCommand,
    FetchStateCommand,
    FetchSumCommand,
    DropFetchCommand,
    InstallCommand,
    StopCommand>;

// ---- to the leader ----

struct JoinedEvent {
  Epoch epoch;
};
struct ReducedEvent {
  Attempt attempt;
  std::uint64_t digest = 0;
};
struct PeerLostEvent {
  Suspicion suspicion;
};
struct AppliedEvent {
  StateId state;
  std::optional<StateDigest> digest{};  // Of this rank's part, if it is time.
};
// Of this rank's part of the replica's gradients.
struct BadGradientsEvent {
  std::uint64_t serial = 0;
  GradientFault fault;
};
struct FetchedEvent {
  std::uint64_t serial = 0;
  std::string failure;  // Empty: it has it.
  Commit commit;        // Of a sum.
  std::uint64_t digest = 0;
};
struct InstalledEvent {
  std::uint64_t serial = 0;
  StateId state;
  std::optional<StateDigest> digest{};
};
struct ProgressEvent {
  TrainingProgress progress;
};
// The program of this rank wants the replica to leave.
struct LeaveEvent {};
// The program of this rank makes no more steps; others may still need what it has.
struct FinishedEvent {};

using RankEvent = std::variant<
    JoinedEvent,
    ReducedEvent,
    PeerLostEvent,
    AppliedEvent,
    FetchedEvent,
    InstalledEvent,
    ProgressEvent,
    LeaveEvent,
    FinishedEvent,
    BadGradientsEvent>;

// Types of frames within a replica.
enum class RankFrame : std::uint16_t {
  kHello = 1,  // Of a rank: its number, as text.
  kCommand = 2,
  kEvent = 3,
};

inline std::uint16_t type_of(RankFrame frame) {
  return static_cast<std::uint16_t>(frame);
}

std::string bytes_of(const Command& command);
std::string bytes_of(const RankEvent& event);
Result<Command> command_of(std::string_view bytes);
Result<RankEvent> event_of(std::string_view bytes);

}  // namespace sherd::ft
