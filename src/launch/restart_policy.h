// SPDX-License-Identifier: Apache-2.0
//
// RestartPolicy decides when the replicas of a fault-tolerant job are started, restarted, replaced
// by a spare and asked to leave, and when the job is over. It is pure: it is told what happened and
// when, and returns what to do. Thread rule: one thread.
//
// A group consists of ranks that start and end together, by the table of StopPolicy. It runs one
// replica, or waits as a spare until it takes the place of one. When a group that runs a replica
// has ended:
//
//   why it ended                       what follows
//   all ranks returned 0               done; the others go on
//   it was asked to leave              drained, until it is admitted again
//   the job is stopping                ended
//   code 2 soon after its first start  failed: the command line is wrong
//   code 2, and it was refused         failed: the coordinator does not let it in
//   a rank failed, and a spare runs    the spare takes the replica; the group is
//                                      restarted as a spare, after its back-off
//   a rank failed, otherwise           restarted after its back-off
//   ... too often within a window,     failed
//   or a rank hangs
//
// A replica that fails when others are done is also restarted a few times: either they ended too
// early, or it learns that the run has ended and is done, too. The job is over when no replica runs
// or will be restarted; once the last running one was done, no restart is waited for.
#pragma once

#include <optional>
#include <string>
#include <vector>
#include "base/backoff.h"
#include "base/clock.h"
#include "base/restart_budget.h"
#include "base/status.h"
#include "launch/stop_policy.h"

namespace sherd::launch {

struct RestartPolicyOptions {
  int replicas = 1;
  int spares = 0;
  int ranks = 1;  // In each group.
  // A group that was restarted this often within the window is given up; admitting it starts the
  // count again. With a window of 0, the limit applies to its whole life. With the delays between
  // starts, a program that fails at once is given up after half an hour, and one that runs for
  // minutes between failures never.
  int restarts_max = 30;
  Duration restart_window = std::chrono::hours(1);
  Duration stop_grace = std::chrono::seconds(30);
};

// What is to be done with a group.
struct GroupAction {
  // kStart: start it as `replica`, or as a spare; kPromote: tell a spare that it is `replica` from now
  // on; kSignal: send `signal`, whose reason is not shown; kSay: nothing, there is only a reason.
  enum class What { kSay, kStart, kPromote, kSignal };
  What what = What::kSay;
  int group = 0;
  std::optional<int> replica{};
  SignalRequest signal{};
  std::string reason{};  // Shown to the user, unless empty.
};
using GroupActions = std::vector<GroupAction>;

// A temporary failure according to sysexits.h: the user is invited to try again.
inline constexpr int kAllLeft = 75;

class RestartPolicy {
 public:
  // REQUIRES: replicas, ranks >= 1; spares, restarts_max >= 0.
  explicit RestartPolicy(const RestartPolicyOptions& options);

  // Nothing runs before this call, and no request is accepted. A signal that came earlier, to stop
  // or to leave, ends the job here.
  GroupActions begin(Instant now);
  // All ranks whose end was noticed at the same moment.
  GroupActions ranks_ended(const std::vector<RankExit>& ends, Instant now);
  // A group that was to be started has no process. Its first start is not repeated, since the
  // program is at fault.
  GroupActions start_failed(
      int group, int status, const std::string& why, Instant now);
  // SIGUSR1 asks every replica to leave, so that the job ends in order; SIGUSR2 is passed on to the
  // ranks; the others end the job.
  GroupActions signal_received(int number, Instant now);
  // Does nothing before deadline().
  GroupActions time_passed(Instant now);
  std::optional<Instant> deadline() const;

  // What an operator may request; a refusal says why, and changes nothing.
  Result<GroupActions> drain(int replica, Instant now);
  Result<GroupActions> admit(int replica, Instant now);

  bool finished() const;
  // Whether a replica has returned 0 and was not admitted again.
  bool some_are_done() const { return any(State::kDone); }
  // The launcher's exit status: 128 + the signal that stopped the job; otherwise 0 if the replica
  // that ended last was done, since the run has then reached its end; kAllLeft if all_left();
  // otherwise the status of the last failure. REQUIRES: finished().
  int exit_status() const;
  // No replica was done or has failed: each was asked to leave, and somebody may want to continue
  // the run.
  bool all_left() const;
  struct Failure {
    int group = 0;
    std::string what;  // "replica 1: rank 0 was killed by ..."
    // Within the group; nullopt if it could not start.
    std::optional<int> rank;
    int status = 0;
  };
  // The last failure of a replica; those of spares do not count.
  const std::optional<Failure>& last_failure() const { return failure_; }
  int stop_signal() const { return stop_signal_; }

 private:
  // kIdle: before begin().
  enum class State { kIdle, kRunning, kWaiting, kDone, kDrained, kFailed };
  struct Group {
    std::optional<int> replica;
    State state = State::kIdle;
    bool draining = false;
    // It was given up while one of its processes survived SIGKILL and has still not ended.
    bool hangs = false;
    // Its command line is right: it has run before, or has become a replica.
    bool proved = false;
    RestartBudget budget;
    // The wait between starts.
    Backoff backoff{
        {.first = std::chrono::seconds(1),
         .longest = std::chrono::seconds(60),
         .starts_at_zero = true}};
    int restarts_after_done = 0;  // In a row.
    Instant started{};
    Instant start_at{};
    std::optional<StopPolicy> stop_policy{};
  };

  std::size_t group_of(int replica) const;
  std::string name(std::size_t index) const;
  bool any(State state) const;
  // Why no request about the replica is possible; success if it is.
  Status can_ask_about(int replica) const;

  void say(const std::string& reason);
  void signal(
      std::size_t index,
      const std::optional<SignalRequest>& request,
      const std::string& reason = {});
  void start(std::size_t index, const std::string& reason);
  void group_ended(std::size_t index);
  std::string why_in_vain(const Group& group, const RankExit& end) const;
  void failed(std::size_t index, const std::string& what);
  void start_again(std::size_t index, const std::string& what);
  std::optional<std::size_t> running_spare() const;
  void request_leave(std::size_t index);
  void give_up_waiting();
  // Ends groups that no longer have a purpose, starts that nothing waits for and spares, and
  // returns all that was decided.
  GroupActions end_purposeless_groups();

  const RestartPolicyOptions options_;
  std::vector<Group> groups_;
  int stop_signal_ = 0;
  bool begun_ = false;
  bool over_ = false;  // Spares have been told to end.
  // Whether the replica that ended last, not counting drained ones, has succeeded.
  bool last_was_done_ = false;
  std::optional<Failure> failure_;
  // Only set during a call: its time, and what it has decided so far.
  Instant now_{};
  GroupActions actions_;
};

}  // namespace sherd::launch
