// SPDX-License-Identifier: Apache-2.0
//
// Explores every order of events between replicas, their coordinator and the network, up to bounds,
// with the real state machines, and checks in each state what must always hold (S1 to S8 of
// docs/design/fault_tolerance.md). Crashes come between any two decisions; messages are delayed,
// overtaken, repeated and lost. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::ft {

// A deliberate mistake in the protocol that the check must find.
enum class Mutation {
  kNone,
  kApplyWithoutCommit,  // A replica applies what it has reduced.
  kForgottenLog,        // The coordinator restarts with an empty log.
  kStepIsIdentity,      // Two states of one step count as the same.
  kCommitBeforeTheLog,  // Replicas are told before the record is on disk.
  kLogTakesOldTerms,    // A replaced coordinator still writes to the log.
  kBadGradientsCount,  // A replica reduces gradients that it has found to be bad.
  kRecoverFromSome,  // A lost log is recovered from the first replicas that answer.
  kHoldUnnamedStates,  // A fetched state is held before a view names it.
  kApplyPreparedSums,  // A copied part of a sum is applied, whatever is committed.
};

struct ModelOptions {
  int replicas = 3;
  int replicas_min = 2;
  // Bounds: nothing happens beyond them.
  int steps = 2;
  // What the update needs of a sum may be copied while the attempt is undecided.
  bool prepares = false;
  std::uint64_t epochs = 3;
  int crashes = 0;              // Crashes of replicas, which may restart empty.
  int coordinator_crashes = 0;  // The coordinator then restarts.
  // The old coordinator goes on beside its replacement.
  int coordinator_pauses = 0;
  // The log is lost together with the coordinator; the next one recovers.
  int log_losses = 0;
  int damages = 0;        // Damaged parameters, which a replica notices.
  int bad_gradients = 0;  // Replicas notice them, too.
  int leaves = 0;
  int partitions = 0;    // A replica is cut off from all, for a while.
  int false_losses = 0;  // Connections between live processes that end.
  // Replicas that are found to hang, rightly or not, until they move again.
  int hangs = 0;
  // One-way ring links that carry nothing from then on.
  int link_cuts = 0;
  int slow_links = 0;  // Links that the coordinator finds slow from then on.
  int lost_messages = 0;
  int repeated_messages = 0;
  int timeouts = 0;
  // Only the last message from one process to another is under way. This leaves fewer orders of
  // events, so that deeper ones can be explored. Otherwise messages overtake each other.
  bool latest_messages = false;
  // Two reports, or all that are under way, may also be taken together before any rule is applied.
  bool reports_together = false;
  Mutation mutation = Mutation::kNone;
  std::int64_t states_max = 20'000'000;
  // One in this many states is checked for whether training can go on from it once nothing fails
  // any more. 0 checks none.
  std::int64_t progress_every = 0;
};

struct ModelResult {
  std::int64_t states = 0;
  std::int64_t transitions = 0;
  bool complete = false;  // All states within the bounds were seen.
  // What does not hold, and the events that lead there; empty if all holds.
  std::string violation;
  std::int64_t asked = 0;
  // How many of the states checked for progress make none.
  std::int64_t stuck = 0;
  std::string stuck_at;
  // Shows whether a check has seen commits at all.
  std::int64_t commits_seen = 0;
  std::int64_t rollbacks_seen = 0;
};

// Explores breadth first, up to the bounds.
ModelResult check_model(const ModelOptions& options);

// Takes random paths instead, for bounds that are too wide to see everything: `walks` of them, each
// up to the last step, to a dead end or to `length` choices. The same seed gives the same paths.
// `states` counts the states on them.
ModelResult walk_model(
    const ModelOptions& options,
    std::uint64_t seed,
    std::int64_t walks,
    std::int64_t length = 2000);

}  // namespace sherd::ft
