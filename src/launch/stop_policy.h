// SPDX-License-Identifier: Apache-2.0
//
// StopPolicy decides when the ranks of a job are signalled to end, and with which exit status the
// launcher ends. It is pure: it is told what happened and when, and returns what to do. Thread
// rule: one thread.
//
//   state     event                               signal sent     next state
//   running   a rank fails                        SIGTERM groups  ending
//   running   a rank fails that has lost          none            awaiting
//             another one, which still runs
//   running   a rank fails, with a record_grace   none            awaiting
//   awaiting  the rank that was lost ends         SIGTERM groups  ending
//             (without a record_grace)
//   awaiting  deadline                            SIGTERM groups  ending
//   awaiting  any signal                          as in running
//   running   SIGINT, SIGTERM, SIGHUP             same, groups    ending
//   running   SIGUSR1, SIGUSR2                    same, ranks     running
//   running   SIGQUIT                             SIGKILL groups  killed
//   ending    SIGINT, SIGQUIT                     SIGKILL groups  killed
//   ending    any other signal                    as in running   ending
//   ending    deadline (1 s after a failure,      SIGKILL groups  killed
//             stop_grace after a signal)
//   killed    deadline (a rank hangs in the       none            given up
//             kernel, where SIGKILL waits too)
//   any       last rank has ended                 none            finished
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>
#include "base/clock.h"
#include "launch/rank_exit.h"

namespace sherd::launch {

struct StopPolicyOptions {
  int ranks = 1;
  // The time from a rank's failure to SIGKILL for the others. It is short: they can only wait for a
  // rank that is gone.
  Duration failure_grace = std::chrono::seconds(1);
  // As in LaunchOptions. Without a record_grace the others get SIGTERM at once.
  Duration cause_grace = std::chrono::milliseconds(500);
  Duration record_grace = Duration(0);
  Duration stop_grace = std::chrono::seconds(30);
};

// The time from SIGKILL to giving up on a process that still does not end.
inline constexpr Duration kKillTimeout = std::chrono::seconds(10);

// Which processes get a signal; kFirstRank means only rank 0. Signals that end a rank also go to
// all processes that it has started; SIGUSR1 does not, because a process that does not expect it
// would die.
enum class SignalTarget { kRanks, kGroups, kFirstRank };

struct SignalRequest {
  int signal = 0;
  SignalTarget to = SignalTarget::kGroups;
  std::string reason;  // One sentence, shown to the user.
};

class StopPolicy {
 public:
  // REQUIRES: options.ranks >= 1.
  explicit StopPolicy(const StopPolicyOptions& options);

  // All ranks whose end was noticed at the same moment. Among them a killed rank counts as the
  // first to fail: an exit code is often only the consequence of a crash elsewhere.
  std::optional<SignalRequest> ranks_ended(
      const std::vector<RankExit>& ends, Instant now);
  std::optional<SignalRequest> signal_received(int signal, Instant now);
  // Does nothing before deadline().
  std::optional<SignalRequest> time_passed(Instant now);

  // When time_passed() has something to do.
  std::optional<Instant> deadline() const {
    return finished() ? std::nullopt : deadline_;
  }
  bool finished() const { return running_ == 0 || state_ == State::kGivenUp; }
  int running() const { return running_; }
  // The ranks that failed without having been told to end, in the order in which this was noticed.
  const std::vector<RankExit>& failures() const { return failures_; }
  // The first of them to fail; see first_to_fail().
  std::optional<RankExit> first_failure() const;
  // The signal that ended the job, or 0.
  int stop_signal() const { return stop_signal_; }
  // The launcher's exit status. REQUIRES: finished().
  int exit_status() const;

 private:
  enum class State { kRunning, kAwaiting, kEnding, kKilled, kGivenUp };

  // Whether the first failure blames a rank that still runs.
  bool cause_is_running() const;
  SignalRequest end_others(Instant now);
  SignalRequest kill(const std::string& why, Instant now);
  bool was_requested(const RankExit& end) const;

  const StopPolicyOptions options_;
  State state_ = State::kRunning;
  int running_;
  int stop_signal_ = 0;
  std::vector<int> sent_;  // The signals that told the ranks to end.
  std::vector<RankExit> failures_;
  std::set<int> ended_;
  std::optional<Instant> deadline_;
};

}  // namespace sherd::launch
