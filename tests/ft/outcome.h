// SPDX-License-Identifier: Apache-2.0
//
// Outcome is all that a Cluster's run has left: what each process told, how it
// ended, and the coordinator's log. Its checks are the oracles O1 to O9, which
// fail the test. Thread rule: one thread.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include "ft/protocol/history.h"
#include "ft/toy_rank.h"

namespace sherd::ft::test {

// Of one process.
struct Life {
  ReplicaId replica = 0;
  int rank = 0;
  int life = 1;  // Of its replica, from 1.
  Incarnation incarnation = 0;
  pid_t pid = 0;
  std::vector<TraceEvent> trace;
  bool done = false;  // It made its last step and left in order.
  std::string failure;
  int exit_code = -1;  // -1: a signal.
  int signal = 0;
  Instant ended_at{0};
};

struct Expectation {
  // Replicas that nothing has happened to.
  std::vector<ReplicaId> survivors{};
  // Between two commits that survivors saw; 0: whatever.
  Duration gap_max{0};
  // Computations of all survivors together that no commit has used.
  int unused_max = 0;
  // Replicas below it commit nothing.
  int replicas_min = 1;
  // The last step was made.
  bool ends = true;
  // Replicas that may have other bits than the log says.
  std::vector<ReplicaId> wrong_bits{};
  // Parts of what the coordinator said.
  std::vector<std::string> says{};
};

class Outcome {
 public:
  std::vector<Life> lives;
  std::vector<Record> log;
  std::string coordinator;  // What it said.
  bool in_time = false;
  // Files of shared memory that nobody has any more.
  std::set<std::string> segments_left;
  Instant struck_at{0};  // When the last armed act was done.
  std::int64_t steps = 0;
  int ranks = 1;
  std::vector<std::int64_t> buckets;

  // O1 to O6, O8, O9.
  void check(const Expectation& expected) const;

  // ---- questions ----

  // What a rank with this state would have, had no bit gone wrong: by the log.
  std::optional<std::uint64_t> replayed(const StateId& state, int rank) const;

  History history() const;
  std::int64_t epochs() const;
  std::int64_t rollbacks() const;
  // Members of the commit of that step on the chain; 0: there is none.
  int members_at(std::int64_t step) const;
  bool committed_with(ReplicaId replica, Incarnation incarnation) const;
  // From the first commit on; by what the survivors held.
  Duration longest_gap(const std::vector<ReplicaId>& survivors) const;
  // From the last strike to the first step that was held after it.
  Duration recovery() const;
  std::vector<const Life*> lives_of(ReplicaId replica) const;
  // What was committed and not rolled back, oldest first.
  std::vector<const CommitRecord*> chain() const;

 private:
  std::vector<ReplicaId> all_replicas() const;
  void check_log(const Expectation& expected) const;
  // How many states were not what the log makes of them.
  int check_bits(const std::vector<ReplicaId>& wrong) const;
  // How many of its computations nobody has used.
  int check_survivor(const Life& life) const;
  void check_leaks(const Life& life) const;
  // What happened, for whoever reads of a failure.
  void tell_all() const;
};

// Whether the ring has a link between the two.
bool are_neighbours(
    const std::vector<Member>& ring, ReplicaId one, ReplicaId other);

// Files of shared memory that have a name of sherd's.
std::set<std::string> segments();

// Of the database; throws Error when it cannot be read.
std::vector<Record> records_of(const std::string& path);

}  // namespace sherd::ft::test
