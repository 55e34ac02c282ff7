// SPDX-License-Identifier: Apache-2.0
//
// Outcome is everything that the run of a Cluster leaves: what each process reported, how it ended,
// and the coordinator's log. Its checks are the oracles O1 to O9, which fail the test. Thread rule:
// one thread.
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

// One process.
struct Life {
  ReplicaId replica = 0;
  int rank = 0;
  int life = 1;  // The incarnation of its replica, from 1.
  Incarnation incarnation = 0;
  pid_t pid = 0;
  std::vector<TraceEvent> trace;
  bool done = false;  // Whether it made its last step and left in order.
  std::string failure;
  int exit_code = -1;  // -1 if ended by a signal.
  int signal = 0;
  Instant ended_at{0};
};

struct Expectation {
  // Replicas to which nothing has happened.
  std::vector<ReplicaId> survivors{};
  // The limit between two commits that survivors saw, besides what the machine stood still; 0 means
  // none.
  Duration gap_max{0};
  // The limit for computations of all survivors together that no commit has used.
  int unused_max = 0;
  // Fewer replicas than this commit nothing.
  int replicas_min = 1;
  // Whether the last step was made.
  bool ends = true;
  // Replicas whose bits may differ from those of the log.
  std::vector<ReplicaId> wrong_bits{};
  // Texts that the coordinator must have printed.
  std::vector<std::string> says{};
};

class Outcome {
 public:
  std::vector<Life> lives;
  std::vector<Record> log;
  std::string coordinator;  // What it printed.
  bool in_time = false;
  // Files of shared memory that no process uses any more.
  std::set<std::string> segments_left;
  Duration stall{0};     // The longest delay that StallMeter saw.
  Instant struck_at{0};  // When the last armed act was done.
  std::int64_t steps = 0;
  int ranks = 1;
  std::vector<std::int64_t> buckets;

  // O1 to O6, O8, O9.
  void check(const Expectation& expected) const;

  // ---- questions ----

  // What a rank with this state would have, according to the log, if no bit had gone wrong.
  std::optional<std::uint64_t> replayed(const StateId& state, int rank) const;

  History history() const;
  // The epochs up to the last commit: replicas that end one by one after that may begin another one.
  std::int64_t epochs() const;
  std::int64_t rollbacks() const;
  // How many members the commit of that step on the chain has; 0 if there is none.
  int members_at(std::int64_t step) const;
  bool committed_with(ReplicaId replica, Incarnation incarnation) const;
  std::vector<ReplicaId> all_replicas() const;
  // When one of the replicas first had each step.
  std::map<std::int64_t, Instant> first_held(
      const std::vector<ReplicaId>& replicas) const;
  // From the first commit on, according to what the survivors held.
  Duration longest_gap(const std::vector<ReplicaId>& survivors) const;
  // The time from the last strike to the first step that was held after it.
  Duration recovery() const;
  std::vector<const Life*> lives_of(ReplicaId replica) const;
  // The commits that were not rolled back, oldest first.
  std::vector<const CommitRecord*> chain() const;

 private:
  void check_log(const Expectation& expected) const;
  // How many states differ from what the log gives.
  int check_bits(const std::vector<ReplicaId>& wrong) const;
  // How many of its computations were not used.
  int check_survivor(const Life& life) const;
  void check_leaks(const Life& life) const;
  // Prints what happened, for readers of a failure.
  void tell_all() const;
};

// Whether the ring has a link between the two.
bool are_neighbours(
    const std::vector<Member>& ring, ReplicaId one, ReplicaId other);

// Files of shared memory whose name is one of sherd's.
std::set<std::string> segments();

// The records of the database; throws Error if it cannot be read.
std::vector<Record> records_of(const std::string& path);

}  // namespace sherd::ft::test
