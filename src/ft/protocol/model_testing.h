// SPDX-License-Identifier: Apache-2.0
//
// Explores every order in which replicas, their coordinator and the network can
// do things, up to bounds, with the real state machines, and compares each state
// with what must always hold (S1 to S8 of docs/design/fault_tolerance.md). Crashes
// come between any two decisions; messages are delayed, overtaken, repeated and
// lost. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::ft {

// A protocol that is wrong on purpose, which the check must find out.
enum class Mutation {
  kNone,
  kApplyWithoutCommit,  // A replica applies what it has reduced.
  kForgottenLog,        // A coordinator starts again with an empty one.
  kStepIsIdentity,      // Two states of one step count as the same.
  kCommitBeforeTheLog,  // Replicas are told before the record is written.
  kLogTakesOldTerms,    // A coordinator that was replaced still writes.
  kBadGradientsCount,   // A replica reduces what it has found to be of no use.
  kRecoverFromSome,     // A lost log is made from whoever answers first.
  kHoldUnnamedStates,   // What was fetched is held before a view names it.
  kApplyPreparedSums,  // What was copied of a sum is applied, whatever is committed.
};

struct ModelOptions {
  int replicas = 3;
  int replicas_min = 2;
  // Bounds: beyond them nothing more happens.
  int steps = 2;
  // What the update needs of a sum may be copied while it is undecided.
  bool prepares = false;
  std::uint64_t epochs = 3;
  int crashes = 0;              // Of replicas, which may come back, fresh.
  int coordinator_crashes = 0;  // Which then starts again.
  int coordinator_pauses = 0;   // It goes on beside the one that replaces it.
  int log_losses = 0;           // With the coordinator; the next one recovers.
  int damages = 0;              // Of parameters, which a replica notices.
  int bad_gradients = 0;        // It notices them, too.
  int leaves = 0;
  int partitions = 0;    // A replica is cut off from all, for a while.
  int false_losses = 0;  // Connections that end between live ones.
  // Ring links, in one direction, that carry nothing from then on.
  int link_cuts = 0;
  int slow_links = 0;  // That the coordinator finds slow from then on.
  int lost_messages = 0;
  int repeated_messages = 0;
  int timeouts = 0;
  // Of messages from one to another only the last is under way: fewer orders of
  // events, of which deeper ones can be seen. Else they overtake each other.
  bool latest_messages = false;
  // Two reports, or all that are under way, may also be heard together, before any
  // rule is applied.
  bool reports_together = false;
  Mutation mutation = Mutation::kNone;
  std::int64_t states_max = 20'000'000;
  // Of so many states one is asked whether training can go on from it, once
  // nothing fails any more. 0: none.
  std::int64_t progress_every = 0;
};

struct ModelResult {
  std::int64_t states = 0;
  std::int64_t transitions = 0;
  bool complete = false;  // All within the bounds were seen.
  std::string
      violation;  // What does not hold, and the way there; empty: all do.
  std::int64_t asked = 0;
  std::int64_t stuck = 0;  // Of those asked.
  std::string stuck_at;
  // So that a check that sees nothing is noticed.
  std::int64_t commits_seen = 0;
  std::int64_t rollbacks_seen = 0;
};

// Breadth first, to the bounds.
ModelResult check_model(const ModelOptions& options);

// Random ways instead, for bounds that are too wide to see everything: `walks` of
// them, each to the last step, to a dead end or `length` choices long. The same
// seed makes the same ways. `states` counts those they came through.
ModelResult walk_model(
    const ModelOptions& options,
    std::uint64_t seed,
    std::int64_t walks,
    std::int64_t length = 2000);

}  // namespace sherd::ft
