// SPDX-License-Identifier: Apache-2.0
#include "launch/restart_policy.h"

#include <csignal>
#include <sstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::launch {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Instant kStart = hours(7);

RankExit exited(int group, int rank, int code) {
  return {.rank = rank, .group = group, .exit_code = code};
}
RankExit killed_in(int group, int rank, int signal = SIGKILL) {
  return {.rank = rank, .group = group, .signal = signal};
}

// For example "start 1 as 1; signal 0: 15 to groups; spare 3 is 1".
std::string words_of(const GroupActions& actions) {
  std::ostringstream out;
  for (const GroupAction& action : actions) {
    if (action.what == GroupAction::What::kSay) {
      continue;
    }
    out << (out.str().empty() ? "" : "; ");
    if (action.what == GroupAction::What::kStart) {
      out << "start " << action.group << " as "
          << (action.replica ? std::to_string(*action.replica) : "spare");
    } else if (action.what == GroupAction::What::kPromote) {
      out << "spare " << action.group << " is " << *action.replica;
    } else {
      out << "signal " << action.group << ": " << action.signal.signal;
      out
          << (action.signal.to == SignalTarget::kFirstRank   ? " to rank 0"
                  : action.signal.to == SignalTarget::kRanks ? " to ranks"
                                                             : "");
    }
  }
  return out.str();
}

std::string reasons_of(const GroupActions& actions) {
  std::string reasons;
  for (const GroupAction& action : actions) {
    reasons += action.reason + "\n";
  }
  return reasons;
}

RestartPolicy begun(RestartPolicyOptions options) {
  RestartPolicy policy(options);
  policy.begin(kStart);
  return policy;
}
RestartPolicy three_of_two() { return begun({.replicas = 3, .ranks = 2}); }

// Both ranks of the group are killed.
GroupActions lose(RestartPolicy& policy, int group, Instant now) {
  return policy.ranks_ended({killed_in(group, 0), killed_in(group, 1)}, now);
}
GroupActions finish(RestartPolicy& policy, int group, Instant now = kStart) {
  return policy.ranks_ended({exited(group, 0, 0), exited(group, 1, 0)}, now);
}

TEST(RestartPolicy, StartsAllAndIsOverWhenAllAreDone) {
  RestartPolicy policy({.replicas = 3, .ranks = 2});
  EXPECT_EQ(
      words_of(policy.begin(kStart)),
      "start 0 as 0; start 1 as 1; start 2 as 2");
  EXPECT_FALSE(policy.deadline());
  EXPECT_EQ(words_of(finish(policy, 0)), "");
  EXPECT_EQ(words_of(finish(policy, 1)), "");
  EXPECT_FALSE(policy.finished());
  EXPECT_EQ(words_of(policy.ranks_ended({exited(2, 1, 0)}, kStart)), "");
  EXPECT_FALSE(policy.finished());
  policy.ranks_ended({exited(2, 0, 0)}, kStart);
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 0);
}

TEST(RestartPolicy, ALostRankEndsItsReplicaAloneWhichStartsAgainAtOnce) {
  RestartPolicy policy = three_of_two();
  const auto ending = policy.ranks_ended({killed_in(1, 1)}, kStart);
  EXPECT_EQ(words_of(ending), "signal 1: 15");
  EXPECT_EQ(policy.deadline(), kStart + milliseconds(200));
  EXPECT_EQ(
      words_of(policy.time_passed(kStart + milliseconds(200))), "signal 1: 9");
  const auto again =
      policy.ranks_ended({killed_in(1, 0)}, kStart + milliseconds(210));
  EXPECT_EQ(words_of(again), "start 1 as 1");
  EXPECT_THAT(
      reasons_of(again),
      AllOf(
          HasSubstr("replica 1: rank 1 was killed by signal 9 (SIGKILL)"),
          HasSubstr("replica 1 is started again at once")));
}

TEST(RestartPolicy, AReplicaThatFlapsWaitsTwiceAsLongEachTimeUpToAMinute) {
  RestartPolicy policy = three_of_two();
  Instant now = kStart;
  EXPECT_EQ(words_of(lose(policy, 2, now)), "start 2 as 2");
  for (const int wait : {1, 2, 4, 8, 16, 32, 60, 60, 60}) {
    now += seconds(1);
    EXPECT_EQ(words_of(lose(policy, 2, now)), "");
    EXPECT_EQ(policy.deadline(), now + seconds(wait));
    now += seconds(wait);
    EXPECT_EQ(words_of(policy.time_passed(now - milliseconds(1))), "");
    EXPECT_EQ(words_of(policy.time_passed(now)), "start 2 as 2");
  }
  // Each group has its own back-off.
  EXPECT_EQ(words_of(lose(policy, 1, now)), "start 1 as 1");
  // After five minutes without a failure the back-off is reset.
  now += minutes(5);
  EXPECT_EQ(words_of(lose(policy, 2, now)), "start 2 as 2");
  EXPECT_EQ(words_of(lose(policy, 2, now)), "");
  EXPECT_EQ(policy.deadline(), now + seconds(1));
}

TEST(RestartPolicy, EndsWithTheLastFailureWhenNoneCanBeStartedAgain) {
  RestartPolicy policy = begun({.replicas = 2, .ranks = 1, .restarts_max = 1});
  policy.ranks_ended({exited(0, 0, 3)}, kStart);
  const auto given_up = policy.ranks_ended({exited(0, 0, 4)}, kStart);
  EXPECT_THAT(
      reasons_of(given_up), HasSubstr("it was 1 times already within 3600 s"));
  EXPECT_FALSE(policy.finished());
  policy.ranks_ended({exited(1, 0, 5)}, kStart);
  policy.ranks_ended({exited(1, 0, 6)}, kStart);
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 6);
  EXPECT_EQ(policy.last_failure()->group, 1);
  EXPECT_EQ(policy.last_failure()->rank, 0);
}

TEST(RestartPolicy, RestartsCountWithinAWindowAndNotForLife) {
  RestartPolicy policy = begun(
      {.replicas = 1,
       .ranks = 1,
       .restarts_max = 2,
       .restart_window = minutes(10)});
  // A failure every six minutes is never three within ten.
  Instant now = kStart;
  for (int day = 0; day < 10 * 24; ++day) {
    now += minutes(6);
    ASSERT_EQ(
        words_of(policy.ranks_ended({killed_in(0, 0)}, now)), "start 0 as 0");
  }
  EXPECT_THAT(
      reasons_of(policy.ranks_ended({killed_in(0, 0)}, now + seconds(10))),
      HasSubstr("it was 2 times already within 600 s (--max-restarts, "
                "--restart-window)"));
  EXPECT_TRUE(policy.finished());
}

TEST(RestartPolicy, AWindowOfZeroIsTheWholeLife) {
  RestartPolicy policy = begun(
      {.replicas = 1,
       .ranks = 1,
       .restarts_max = 1,
       .restart_window = Duration(0)});
  policy.ranks_ended({killed_in(0, 0)}, kStart);
  EXPECT_THAT(
      reasons_of(policy.ranks_ended({killed_in(0, 0)}, kStart + hours(5000))),
      HasSubstr("it was 1 times already ("));
}

TEST(RestartPolicy, OneThatIsDoneTooEarlyEndsNothing) {
  RestartPolicy policy = three_of_two();
  finish(policy, 0);
  EXPECT_EQ(words_of(lose(policy, 1, kStart)), "start 1 as 1");
  EXPECT_EQ(words_of(policy.admit(0, kStart).value()), "start 0 as 0");
  finish(policy, 0);
  finish(policy, 1);
  finish(policy, 2);
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 0);
}

TEST(RestartPolicy, WhenTheLastThatRanIsDoneNobodyIsWaitedFor) {
  RestartPolicy policy = three_of_two();
  lose(policy, 2, kStart);
  lose(policy, 2, kStart);
  finish(policy, 0);
  EXPECT_TRUE(policy.deadline());  // Group 2 waits, and group 1 runs.
  finish(policy, 1);
  EXPECT_FALSE(policy.deadline());
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 0);
}

TEST(RestartPolicy, TheStatusIsThatOfTheReplicaThatEndedLast) {
  RestartPolicy policy = begun({.replicas = 2, .ranks = 1, .restarts_max = 0});
  policy.ranks_ended({exited(0, 0, 0)}, kStart);
  policy.ranks_ended({exited(1, 0, 6)}, kStart);
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 6);  // No replica has reached the end.

  RestartPolicy other = begun({.replicas = 2, .ranks = 1, .restarts_max = 0});
  other.ranks_ended({exited(1, 0, 6)}, kStart);
  other.ranks_ended({exited(0, 0, 0)}, kStart);
  EXPECT_TRUE(other.finished());
  EXPECT_EQ(other.exit_status(), 0);
}

TEST(RestartPolicy, WhoFailsWhenOthersAreDoneHasThreeChances) {
  RestartPolicy policy = begun({.replicas = 2, .ranks = 1});
  policy.ranks_ended({exited(0, 0, 0)}, kStart);
  Instant now = kStart;
  for (const int wait : {0, 1, 2}) {
    const auto lost = policy.ranks_ended({exited(1, 0, 6)}, now);
    now += seconds(wait);
    const auto later = policy.time_passed(now);
    EXPECT_EQ(words_of(wait == 0 ? lost : later), "start 1 as 1");
  }
  const auto given_up = policy.ranks_ended({exited(1, 0, 6)}, now);
  EXPECT_THAT(reasons_of(given_up), HasSubstr("since others are done"));
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 6);
}

TEST(RestartPolicy, AFirstStartThatFailsIsNotTriedAgainALaterOneIs) {
  RestartPolicy policy = begun({.replicas = 2, .ranks = 1});
  policy.start_failed(0, 126, "not executable", kStart);
  EXPECT_FALSE(policy.deadline());
  EXPECT_EQ(
      words_of(policy.ranks_ended({killed_in(1, 0)}, kStart)), "start 1 as 1");
  const auto later = policy.start_failed(1, 1, "no memory", kStart);
  EXPECT_EQ(policy.deadline(), kStart + seconds(1));
  EXPECT_THAT(
      reasons_of(later),
      HasSubstr("replica 1 could not be started: no memory"));
  RestartPolicy none = begun({.replicas = 1, .ranks = 1});
  none.start_failed(0, 126, "not executable", kStart);
  EXPECT_TRUE(none.finished());
  EXPECT_EQ(none.exit_status(), 126);
}

TEST(RestartPolicy, AStartThatFailsIsNotRepeatedForOneThatWasAskedToLeave) {
  RestartPolicy policy = begun({.replicas = 2, .ranks = 1});
  policy.ranks_ended({killed_in(1, 0)}, kStart);  // It is started again.
  policy.drain(1, kStart).value();
  EXPECT_EQ(words_of(policy.start_failed(1, 1, "no memory", kStart)), "");
  EXPECT_FALSE(policy.deadline());
  EXPECT_THAT(
      policy.drain(1, kStart).status().message(), HasSubstr("left already"));
}

TEST(RestartPolicy, AWrongCommandLineIsNotTriedAgain) {
  RestartPolicy policy = begun({.replicas = 2, .ranks = 1});
  const auto wrong = policy.ranks_ended({exited(0, 0, 2)}, kStart);
  EXPECT_EQ(words_of(wrong), "");
  EXPECT_THAT(reasons_of(wrong), HasSubstr("which is wrong usage"));
  // The command line of a replica that ran before was right.
  policy.ranks_ended({killed_in(1, 0)}, kStart);
  policy.ranks_ended({exited(1, 0, 2)}, kStart);
  EXPECT_TRUE(policy.deadline());
  policy.time_passed(*policy.deadline());
  EXPECT_FALSE(policy.finished());
  RestartPolicy all = begun({.replicas = 2, .ranks = 1});
  all.ranks_ended({exited(0, 0, 2), exited(1, 0, 2)}, kStart);
  EXPECT_TRUE(all.finished());
  EXPECT_EQ(all.exit_status(), 2);
}

TEST(RestartPolicy, ALateEndWithTwoIsNoWrongCommandLine) {
  for (const auto ran : {minutes(4), minutes(5)}) {
    RestartPolicy policy = begun({.replicas = 1, .ranks = 1});
    const auto end = policy.ranks_ended({exited(0, 0, 2)}, kStart + ran);
    EXPECT_EQ(words_of(end), ran < minutes(5) ? "" : "start 0 as 0");
  }
}

TEST(RestartPolicy, WhatTheCoordinatorHasRefusedIsNotTriedAgain) {
  for (const auto ran : {minutes(0), minutes(6)}) {
    RestartPolicy policy = begun({.replicas = 2, .spares = 1, .ranks = 1});
    policy.ranks_ended({killed_in(1, 0)}, kStart);  // The spare takes over.
    RankExit end = exited(2, 0, 2);
    end.refused = true;
    const auto refused = policy.ranks_ended({end}, kStart + ran);
    EXPECT_EQ(words_of(refused), "");
    EXPECT_THAT(
        reasons_of(refused),
        HasSubstr("replica 1: rank 0 exited with code 2, since the coordinator "
                  "has refused it for good; it is not started again"));
    EXPECT_FALSE(policy.finished());  // The other one goes on.
    EXPECT_EQ(words_of(policy.admit(1, kStart + ran).value()), "start 2 as 1");
  }
}

// Its program has caught the refusal, or only quotes it.
TEST(RestartPolicy, WhatEndsOtherwiseThanWithTwoWasNotRefused) {
  RestartPolicy policy = begun({.replicas = 1, .ranks = 1});
  RankExit end = exited(0, 0, 1);
  end.refused = true;
  EXPECT_EQ(words_of(policy.ranks_ended({end}, kStart)), "start 0 as 0");
}

TEST(RestartPolicy, AStopSignalEndsAllStartsNothingAndSetsTheStatus) {
  RestartPolicy policy = three_of_two();
  lose(policy, 2, kStart);
  lose(policy, 2, kStart);
  const auto actions = policy.signal_received(SIGTERM, kStart);
  EXPECT_EQ(words_of(actions), "signal 0: 15; signal 1: 15");
  EXPECT_EQ(policy.deadline(), kStart + seconds(30));
  EXPECT_EQ(words_of(finish(policy, 0)), "");
  EXPECT_EQ(
      words_of(policy.ranks_ended({killed_in(1, 0, SIGTERM)}, kStart)), "");
  EXPECT_EQ(words_of(policy.time_passed(kStart + seconds(30))), "signal 1: 9");
  policy.ranks_ended({killed_in(1, 1)}, kStart + seconds(30));
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 128 + SIGTERM);
}

TEST(RestartPolicy, ASecondInterruptKills) {
  RestartPolicy policy = begun({.replicas = 2, .ranks = 1});
  policy.signal_received(SIGINT, kStart);
  EXPECT_EQ(
      words_of(policy.signal_received(SIGINT, kStart)),
      "signal 0: 9; signal 1: 9");
}

TEST(RestartPolicy, AStopSignalBeforeTheBeginningStartsNothing) {
  RestartPolicy policy({.replicas = 2, .ranks = 1});
  policy.signal_received(SIGINT, kStart);
  EXPECT_EQ(words_of(policy.begin(kStart)), "");
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 128 + SIGINT);
}

TEST(RestartPolicy, RequestsBeforeTheBeginningAreRefused) {
  RestartPolicy policy({.replicas = 2, .ranks = 1});
  for (const auto& refused :
       {policy.admit(0, kStart).status(), policy.drain(1, kStart).status()}) {
    EXPECT_THAT(refused.message(), HasSubstr("the job is starting"));
  }
  EXPECT_EQ(words_of(policy.begin(kStart)), "start 0 as 0; start 1 as 1");
}

TEST(RestartPolicy, ASignalToLeaveBeforeTheBeginningStartsNothing) {
  RestartPolicy policy({.replicas = 2, .spares = 1, .ranks = 1});
  const auto actions = policy.signal_received(SIGUSR1, kStart);
  EXPECT_THAT(reasons_of(actions), HasSubstr("replica 1 stays away"));
  EXPECT_TRUE(policy.all_left());
  EXPECT_EQ(words_of(policy.begin(kStart)), "");
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 75);
}

TEST(RestartPolicy, ADrainedReplicaStaysAwayUntilItIsAdmitted) {
  RestartPolicy policy = three_of_two();
  EXPECT_EQ(
      words_of(policy.drain(2, kStart).value()), "signal 2: 10 to rank 0");
  EXPECT_THAT(
      policy.admit(2, kStart).status().message(),
      HasSubstr("replica 2 is still leaving"));
  EXPECT_EQ(words_of(finish(policy, 2)), "");
  // It is not done, so it is restarted when it fails.
  EXPECT_EQ(words_of(lose(policy, 1, kStart)), "start 1 as 1");
  EXPECT_THAT(
      policy.drain(2, kStart).status().message(), HasSubstr("left already"));
  EXPECT_EQ(words_of(policy.admit(2, kStart).value()), "start 2 as 2");
  EXPECT_THAT(
      policy.admit(2, kStart).status().message(), HasSubstr("is running"));
}

TEST(RestartPolicy, ADrainedReplicaThatIsKilledStaysAwayToo) {
  RestartPolicy policy = three_of_two();
  policy.drain(0, kStart).value();
  const auto left = lose(policy, 0, kStart);
  EXPECT_EQ(words_of(left), "");
  EXPECT_THAT(reasons_of(left), HasSubstr("it had been asked to leave"));
  EXPECT_FALSE(policy.finished());
}

TEST(RestartPolicy, AdmittingForgetsEarlierFailures) {
  RestartPolicy policy = begun({.replicas = 2, .ranks = 1, .restarts_max = 1});
  policy.ranks_ended({killed_in(0, 0)}, kStart);
  policy.ranks_ended({killed_in(0, 0)}, kStart);
  EXPECT_FALSE(policy.deadline());
  EXPECT_EQ(words_of(policy.admit(0, kStart).value()), "start 0 as 0");
  EXPECT_EQ(
      words_of(policy.ranks_ended({killed_in(0, 0)}, kStart)), "start 0 as 0");
}

TEST(RestartPolicy, ReplicasThatThereAreNotAreRefusedByNumber) {
  RestartPolicy policy = three_of_two();
  for (const int replica : {-1, 3}) {
    EXPECT_THAT(
        policy.drain(replica, kStart).status().message(),
        HasSubstr("from 0 to 2, found " + std::to_string(replica)));
    EXPECT_FALSE(policy.admit(replica, kStart).ok());
  }
}

TEST(RestartPolicy, DrainingAllEndsTheJobAndIsNoSuccess) {
  RestartPolicy policy = three_of_two();
  lose(policy, 1, kStart);
  EXPECT_EQ(
      words_of(policy.signal_received(SIGUSR1, kStart)),
      "signal 0: 10 to rank 0; signal 1: 10 to rank 0; signal 2: 10 to rank 0");
  for (const int group : {0, 1, 2}) {
    EXPECT_FALSE(policy.finished());
    finish(policy, group);
  }
  EXPECT_TRUE(policy.finished());
  EXPECT_TRUE(policy.all_left());
  EXPECT_EQ(policy.exit_status(), 75);
}

TEST(RestartPolicy, WhoEndsTheRunWhenOthersHaveLeftMakesASuccess) {
  RestartPolicy policy = three_of_two();
  policy.drain(0, kStart).value();
  policy.drain(1, kStart).value();
  finish(policy, 0);
  finish(policy, 1);
  finish(policy, 2);
  EXPECT_TRUE(policy.finished());
  EXPECT_FALSE(policy.all_left());
  EXPECT_EQ(policy.exit_status(), 0);
}

TEST(RestartPolicy, AGroupThatIsNotStartedAnyMoreEndsWithTheJob) {
  RestartPolicy policy({.replicas = 2, .ranks = 1});
  policy.begin(kStart);
  policy.signal_received(SIGTERM, kStart);
  EXPECT_THAT(policy.start_failed(1, 1, "ending", kStart), IsEmpty());
  policy.ranks_ended({killed_in(0, 0, SIGTERM)}, kStart);
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 128 + SIGTERM);
}

TEST(RestartPolicy, ASpareTakesThePlaceAndTheLostGroupBecomesASpare) {
  RestartPolicy policy({.replicas = 2, .spares = 1, .ranks = 2});
  EXPECT_EQ(
      words_of(policy.begin(kStart)),
      "start 0 as 0; start 1 as 1; start 2 as spare");
  const auto actions = lose(policy, 1, kStart);
  EXPECT_EQ(words_of(actions), "spare 2 is 1; start 1 as spare");
  EXPECT_THAT(reasons_of(actions), HasSubstr("spare 2 takes its place"));
  // A replica is drained by its number, wherever it runs.
  EXPECT_EQ(
      words_of(policy.drain(1, kStart).value()), "signal 2: 10 to rank 0");
}

TEST(RestartPolicy, WithoutARunningSpareAReplicaIsStartedAgain) {
  RestartPolicy policy = begun({.replicas = 2, .spares = 1, .ranks = 2});
  lose(policy, 2, kStart);
  lose(policy, 2, kStart);  // The spare waits for its start.
  EXPECT_EQ(words_of(lose(policy, 0, kStart)), "start 0 as 0");
}

TEST(RestartPolicy, ASpareThatTookAPlaceHasARightCommandLine) {
  RestartPolicy policy = begun({.replicas = 1, .spares = 1, .ranks = 1});
  policy.ranks_ended({killed_in(0, 0)}, kStart);
  EXPECT_EQ(
      words_of(policy.ranks_ended({exited(1, 0, 2)}, kStart)),
      "spare 0 is 0; start 1 as spare");
}

TEST(RestartPolicy, SparesEndWhenTheReplicasHave) {
  RestartPolicy policy = begun({.replicas = 1, .spares = 1, .ranks = 2});
  EXPECT_EQ(words_of(finish(policy, 0)), "signal 1: 15");
  EXPECT_FALSE(policy.finished());
  policy.ranks_ended(
      {killed_in(1, 0, SIGTERM), killed_in(1, 1, SIGTERM)}, kStart);
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 0);
}

TEST(RestartPolicy, ASpareThatReturnsIsNoSuccess) {
  RestartPolicy policy = begun({.replicas = 1, .spares = 1, .ranks = 2});
  EXPECT_EQ(words_of(finish(policy, 1)), "start 1 as spare");
  EXPECT_EQ(
      words_of(lose(policy, 0, kStart)), "spare 1 is 0; start 0 as spare");
}

TEST(RestartPolicy, OneThatOutlivesSigkillIsNotStartedASecondTime) {
  RestartPolicy policy = begun({.replicas = 2, .ranks = 2});
  policy.ranks_ended({exited(0, 0, 9)}, kStart);
  policy.time_passed(kStart + milliseconds(200));
  const auto given_up = policy.time_passed(kStart + seconds(11));
  EXPECT_EQ(words_of(given_up), "");
  EXPECT_THAT(reasons_of(given_up), HasSubstr("outlives SIGKILL"));
  EXPECT_THAT(policy.admit(0, kStart).status().message(), HasSubstr("hangs"));
  EXPECT_FALSE(policy.finished());
  // It ends after all, and is not started by itself.
  const Instant late = kStart + seconds(12);
  EXPECT_EQ(words_of(policy.ranks_ended({killed_in(0, 1)}, late)), "");
  EXPECT_FALSE(policy.deadline());
  EXPECT_EQ(words_of(policy.admit(0, late).value()), "start 0 as 0");
}

}  // namespace
}  // namespace sherd::launch
