// SPDX-License-Identifier: Apache-2.0
//
// RestartPolicy decides when the replicas of a fault-tolerant job are started,
// started again, replaced by a spare and told to leave, and when the job is over.
// It is told what happened and when; the actions that it returns are carried out by
// ReplicaJob, in tests by nobody. Thread rule: one thread.
//
// A group is the processes that are started and ended together, by the table of
// StopPolicy. It speaks for one replica, or waits as a spare until it takes the
// place of one. Of a group that speaks for a replica:
//
//   its life ends because         and then
//   all ranks returned 0          done; the others go on
//   it was asked to leave         drained, until it is admitted again
//   the job is stopping           ended
//   its first life, with code 2   failed: the command line is wrong
//   a rank failed, and a spare    the spare takes the replica; the group is
//   runs                          started again as a spare, after its back-off
//   a rank failed, otherwise      started again after its back-off
//   ... too often, or it hangs    failed
//
// Who fails after others are done is started again, too: perhaps they ended too
// early, and else it hears that the run has ended, and is done. It gets a few
// chances to hear that. The job is over when no replica runs or waits for its
// start; when the last that ran was done, nobody is waited for any more.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>
#include "base/backoff.h"
#include "base/clock.h"
#include "base/status.h"
#include "launch/stop_policy.h"

namespace sherd::launch {

struct RestartPolicyOptions {
  int replicas = 1;
  int spares = 0;
  int ranks = 1;  // Of each group.
  // Of each group, before it is given up; admitting it forgets them.
  int restarts_max = 100;
  // From a rank's failure to SIGKILL for its siblings. Short: what they hold is
  // lost anyway, and the replica is missed.
  Duration failure_grace = std::chrono::milliseconds(200);
  Duration stop_grace = std::chrono::seconds(30);
  // Between the starts of a group; it begins anew after a group has run for `well_after`.
  BackoffOptions backoff{
      .first = std::chrono::seconds(1),
      .longest = std::chrono::seconds(60),
      .starts_at_zero = true};
  Duration well_after = std::chrono::minutes(5);
};

// As a spare when there is no replica.
struct StartGroup {
  int group = 0;
  std::optional<int> replica;
};
// The spare is told which replica it is from now on.
struct PromoteSpare {
  int group = 0;
  int replica = 0;
};
struct SignalGroup {
  int group = 0;
  SignalRequest action;  // Its reason is not for the user.
};
struct GroupAction {
  // std::monostate: there is only something to say.
  std::variant<std::monostate, StartGroup, PromoteSpare, SignalGroup> what;
  std::string reason{};  // Shown to the user, unless empty.
};
using GroupActions = std::vector<GroupAction>;

struct GroupRankExit {
  int group = 0;
  RankExit end;  // `rank` within the group.
};

class RestartPolicy {
 public:
  // REQUIRES: replicas, ranks >= 1; spares, restarts_max >= 0.
  explicit RestartPolicy(const RestartPolicyOptions& options);

  // Nothing runs before; a stop signal that came earlier ends the job here.
  GroupActions begin(Instant now);
  // All whose end was noticed at one moment.
  GroupActions ranks_ended(const std::vector<GroupRankExit>& ends, Instant now);
  // A group that was to be started has no process. The first start of a group is
  // not tried again: the program is at fault.
  GroupActions start_failed(
      int group, int status, const std::string& why, Instant now);
  // SIGUSR1 asks every replica to leave, so that the job ends in order; SIGUSR2
  // is passed on to the ranks; the others end the job.
  GroupActions signal_received(int signal, Instant now);
  // Does nothing before deadline().
  GroupActions time_passed(Instant now);
  std::optional<Instant> deadline() const;

  // What an operator may ask for; a refusal says why, and changes nothing.
  Result<GroupActions> drain(int replica, Instant now);
  Result<GroupActions> admit(int replica, Instant now);

  bool finished() const;
  // The launcher's exit status: 128 + the signal that stopped the job; else 0 when
  // the replica that ended last was done, since the run has reached its end then,
  // or all were drained; else that of the last failure.
  // REQUIRES: finished().
  int exit_status() const;
  struct Failure {
    int group = 0;
    std::string what;         // "replica 1: rank 0 was killed by ..."
    std::optional<int> rank;  // Of the group; none: it could not be started.
    int status = 0;
  };
  // Of a replica, not of a spare.
  const std::optional<Failure>& last_failure() const { return failure_; }
  int stop_signal() const { return stop_signal_; }
  // Whom the group speaks for; none: it is a spare.
  std::optional<int> replica_of(int group) const;

 private:
  enum class State { kIdle, kRunning, kWaiting, kDone, kDrained, kFailed };
  struct Group {
    std::optional<int> replica;
    State state = State::kIdle;
    bool draining = false;
    bool hangs = false;  // A process of it outlived SIGKILL.
    int restarts = 0;
    int restarts_after_done = 0;  // In a row.
    Instant started{};
    Instant start_at{};
    Backoff backoff;
    std::optional<StopPolicy> stop_policy;
  };

  std::size_t group_of(int replica) const;
  std::string name(std::size_t index) const;
  bool any(State state) const;
  bool replica_runs() const;
  // Some replica is, or will be, at work.
  bool replicas_left() const;
  void start(
      std::size_t index,
      Instant now,
      const std::string& reason,
      GroupActions& actions);
  void group_ended(std::size_t index, Instant now, GroupActions& actions);
  void failed(
      std::size_t index,
      const std::string& what,
      Instant now,
      GroupActions& actions);
  void start_again(
      std::size_t index,
      const std::string& what,
      Instant now,
      GroupActions& actions);
  std::optional<std::size_t> running_spare() const;
  void request_leave(std::size_t index, GroupActions& actions);
  // Ends what has no purpose any more: starts that wait for nothing, spares.
  void end_purposeless_groups(Instant now, GroupActions& actions);

  const RestartPolicyOptions options_;
  std::vector<Group> groups_;
  int stop_signal_ = 0;
  bool over_ = false;  // Spares have been told to end.
  bool last_was_done_ =
      false;  // Of the replicas that have ended, but drained ones.
  std::optional<Failure> failure_;
};

}  // namespace sherd::launch
