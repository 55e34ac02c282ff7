// SPDX-License-Identifier: Apache-2.0
#include "launch/stop_policy.h"

#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr Instant kLaunch = std::chrono::hours(7);

RankExit exited(int rank, int code) {
  return {.rank = rank, .exit_code = code};
}
RankExit killed(int rank, int signal) {
  return {.rank = rank, .signal = signal};
}

// A rank that ended because it had lost another.
RankExit lost(int rank, int other) {
  return {.rank = rank, .exit_code = 1, .blames = other};
}

StopPolicy policy_of(int ranks) {
  StopPolicyOptions options;
  options.ranks = ranks;
  return StopPolicy(options);
}

TEST(StopPolicy, SuccessOfAllIsSuccessAndNeedsNoOrder) {
  StopPolicy policy = policy_of(2);
  EXPECT_FALSE(policy.ranks_ended({exited(0, 0)}, kLaunch));
  EXPECT_FALSE(policy.finished());
  EXPECT_FALSE(policy.deadline());
  EXPECT_FALSE(policy.ranks_ended({exited(1, 0)}, kLaunch));
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 0);
}

TEST(StopPolicy, FirstFailureEndsTheOthersThenKillsThem) {
  StopPolicy policy = policy_of(3);
  const auto action = policy.ranks_ended({exited(2, 7)}, kLaunch);
  ASSERT_TRUE(action);
  EXPECT_EQ(action->signal, SIGTERM);
  EXPECT_EQ(action->to, SignalTarget::kGroups);
  EXPECT_THAT(action->reason, HasSubstr("rank 2 exited with code 7"));

  ASSERT_EQ(policy.deadline(), kLaunch + milliseconds(1000));
  EXPECT_FALSE(policy.time_passed(kLaunch + milliseconds(999)));
  const auto kill = policy.time_passed(kLaunch + milliseconds(1000));
  ASSERT_TRUE(kill);
  EXPECT_EQ(kill->signal, SIGKILL);
  EXPECT_THAT(kill->reason, HasSubstr("ranks still running: 2"));

  EXPECT_FALSE(
      policy.ranks_ended({killed(0, SIGKILL), killed(1, SIGKILL)}, kLaunch));
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.exit_status(), 7);
  EXPECT_EQ(policy.first_failure()->rank, 2);
}

TEST(StopPolicy, AKilledRankGoesBeforeAnExitCodeNoticedAtTheSameMoment) {
  StopPolicy policy = policy_of(3);
  policy.ranks_ended({exited(0, 1), killed(2, SIGKILL)}, kLaunch);
  EXPECT_EQ(policy.first_failure()->rank, 2);
  policy.ranks_ended({exited(1, 0)}, kLaunch);
  EXPECT_EQ(policy.exit_status(), 128 + SIGKILL);
}

TEST(StopPolicy, ARankThatLostAnotherIsNotTheFirstToFail) {
  StopPolicy policy = policy_of(3);
  // It ends sooner than the rank that it has lost, which gets time to say why.
  EXPECT_FALSE(policy.ranks_ended({lost(1, 0)}, kLaunch));
  EXPECT_EQ(policy.deadline(), kLaunch + milliseconds(500));
  EXPECT_FALSE(policy.time_passed(kLaunch + milliseconds(499)));
  const auto action = policy.ranks_ended({exited(0, 3)}, kLaunch);
  ASSERT_TRUE(action);
  EXPECT_EQ(action->signal, SIGTERM);
  EXPECT_THAT(action->reason, HasSubstr("rank 0 exited with code 3"));
  EXPECT_FALSE(policy.ranks_ended({lost(2, 0)}, kLaunch));
  EXPECT_EQ(policy.first_failure()->rank, 0);
  EXPECT_EQ(policy.failures().size(), 3U);
  EXPECT_EQ(policy.exit_status(), 3);
}

TEST(StopPolicy, ALostRankThatGoesOnIsEnded) {
  StopPolicy policy = policy_of(2);
  EXPECT_FALSE(policy.ranks_ended({lost(1, 0)}, kLaunch));
  const auto end = policy.time_passed(kLaunch + milliseconds(500));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->signal, SIGTERM);
  EXPECT_EQ(policy.deadline(), kLaunch + milliseconds(1500));
  policy.ranks_ended({killed(0, SIGTERM)}, kLaunch);
  EXPECT_EQ(policy.first_failure()->rank, 1);
  EXPECT_EQ(policy.first_failure()->blames, 0);
}

TEST(StopPolicy, RanksThatWriteRecordsHaveTimeForThemAfterEveryFailure) {
  StopPolicyOptions options;
  options.ranks = 4;
  options.record_grace = milliseconds(5000);
  StopPolicy policy(options);
  EXPECT_FALSE(policy.ranks_ended({killed(1, SIGKILL)}, kLaunch));
  EXPECT_EQ(policy.deadline(), kLaunch + milliseconds(5000));
  // They end by themselves, once each has noticed.
  EXPECT_FALSE(policy.ranks_ended({lost(0, 1)}, kLaunch + milliseconds(700)));
  EXPECT_EQ(policy.deadline(), kLaunch + milliseconds(5000));
  EXPECT_FALSE(policy.time_passed(kLaunch + milliseconds(4999)));
  // One does not.
  EXPECT_FALSE(policy.ranks_ended({lost(2, 1)}, kLaunch + milliseconds(4999)));
  const auto end = policy.time_passed(kLaunch + milliseconds(5000));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->signal, SIGTERM);
  EXPECT_THAT(end->reason, HasSubstr("rank 1 was killed"));
  policy.ranks_ended({killed(3, SIGTERM)}, kLaunch + milliseconds(5001));
  EXPECT_EQ(policy.first_failure()->rank, 1);
  EXPECT_EQ(policy.exit_status(), 128 + SIGKILL);
}

TEST(StopPolicy, RanksThatBlameEachOtherAreTakenAsNoticed) {
  StopPolicy policy = policy_of(2);
  EXPECT_FALSE(policy.ranks_ended({lost(1, 0)}, kLaunch));
  EXPECT_FALSE(policy.ranks_ended({lost(0, 1)}, kLaunch));
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.first_failure()->rank, 1);
}

TEST(StopPolicy, AStopSignalWhileACauseIsAwaitedIsPassedOn) {
  StopPolicy policy = policy_of(2);
  policy.ranks_ended({lost(1, 0)}, kLaunch);
  EXPECT_EQ(policy.signal_received(SIGINT, kLaunch)->signal, SIGINT);
  EXPECT_EQ(policy.deadline(), kLaunch + milliseconds(30000));
}

TEST(StopPolicy, FailureOfTheLastRankNeedsNoOrder) {
  StopPolicy policy = policy_of(2);
  policy.ranks_ended({exited(0, 0)}, kLaunch);
  EXPECT_FALSE(policy.ranks_ended({exited(1, 3)}, kLaunch));
  EXPECT_TRUE(policy.finished());
  EXPECT_FALSE(policy.deadline());
  EXPECT_FALSE(policy.time_passed(kLaunch + std::chrono::hours(1)));
  EXPECT_EQ(policy.exit_status(), 3);
}

TEST(StopPolicy, UserSignalsArePassedOnToRanksAndChangeNothing) {
  StopPolicy policy = policy_of(1);
  for (const int signal : {SIGUSR1, SIGUSR2}) {
    const auto action = policy.signal_received(signal, kLaunch);
    ASSERT_TRUE(action);
    EXPECT_EQ(action->signal, signal);
    EXPECT_EQ(action->to, SignalTarget::kRanks);
  }
  EXPECT_FALSE(policy.deadline());
  policy.ranks_ended({exited(0, 0)}, kLaunch);
  EXPECT_EQ(policy.exit_status(), 0);
}

TEST(StopPolicy, StopSignalsArePassedOnAndSetTheStatus) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    StopPolicy policy = policy_of(3);
    const auto action = policy.signal_received(signal, kLaunch);
    ASSERT_TRUE(action);
    EXPECT_EQ(action->signal, signal);
    EXPECT_EQ(action->to, SignalTarget::kGroups);
    EXPECT_EQ(policy.deadline(), kLaunch + milliseconds(30000));
    // One saves and exits with 0, one dies, one reports the signal in its exit code.
    EXPECT_FALSE(policy.ranks_ended({exited(0, 0)}, kLaunch));
    EXPECT_FALSE(policy.ranks_ended({killed(1, signal)}, kLaunch));
    EXPECT_FALSE(policy.ranks_ended({exited(2, 128 + signal)}, kLaunch));
    EXPECT_TRUE(policy.finished());
    EXPECT_FALSE(policy.first_failure());
    EXPECT_EQ(policy.exit_status(), 128 + signal);
  }
}

TEST(StopPolicy, FailureWhileStoppingIsKeptForTheReportOnly) {
  StopPolicy policy = policy_of(2);
  policy.signal_received(SIGTERM, kLaunch);
  EXPECT_FALSE(policy.ranks_ended({killed(1, SIGSEGV)}, kLaunch));
  EXPECT_EQ(policy.deadline(), kLaunch + milliseconds(30000));
  policy.ranks_ended({exited(0, 0)}, kLaunch);
  EXPECT_EQ(policy.first_failure()->rank, 1);
  EXPECT_EQ(policy.exit_status(), 128 + SIGTERM);
}

TEST(StopPolicy, SecondInterruptKills) {
  StopPolicy policy = policy_of(1);
  policy.signal_received(SIGINT, kLaunch);
  const auto kill = policy.signal_received(SIGINT, kLaunch);
  ASSERT_TRUE(kill);
  EXPECT_EQ(kill->signal, SIGKILL);
  EXPECT_EQ(kill->to, SignalTarget::kGroups);
  EXPECT_FALSE(policy.signal_received(SIGINT, kLaunch));
  policy.ranks_ended({killed(0, SIGKILL)}, kLaunch);
  EXPECT_FALSE(policy.first_failure());
  EXPECT_EQ(policy.exit_status(), 128 + SIGINT);
}

TEST(StopPolicy, SigquitKillsAtOnceAlsoWhileRanksAreEnding) {
  for (const int before : {0, SIGTERM}) {
    StopPolicy policy = policy_of(1);
    if (before != 0) {
      policy.signal_received(before, kLaunch);
    }
    const auto kill = policy.signal_received(SIGQUIT, kLaunch);
    ASSERT_TRUE(kill);
    EXPECT_EQ(kill->signal, SIGKILL);
    EXPECT_EQ(kill->to, SignalTarget::kGroups);
    policy.ranks_ended({killed(0, SIGKILL)}, kLaunch);
    EXPECT_FALSE(policy.first_failure());
    EXPECT_EQ(policy.exit_status(), 128 + (before != 0 ? before : SIGQUIT));
  }
}

TEST(StopPolicy, AnotherStopSignalIsPassedOnWithoutMoreTime) {
  StopPolicy policy = policy_of(1);
  policy.signal_received(SIGINT, kLaunch);
  const auto action =
      policy.signal_received(SIGTERM, kLaunch + milliseconds(5));
  ASSERT_TRUE(action);
  EXPECT_EQ(action->signal, SIGTERM);
  EXPECT_EQ(policy.deadline(), kLaunch + milliseconds(30000));
  policy.ranks_ended({killed(0, SIGTERM)}, kLaunch);
  EXPECT_EQ(policy.exit_status(), 128 + SIGINT);
}

TEST(StopPolicy, GivesUpOnARankThatOutlivesSigkill) {
  StopPolicy policy = policy_of(2);
  policy.ranks_ended({exited(0, 1)}, kLaunch);
  policy.time_passed(kLaunch + milliseconds(1000));
  const Instant last = kLaunch + milliseconds(11000);
  EXPECT_EQ(policy.deadline(), last);
  EXPECT_FALSE(policy.time_passed(last));
  EXPECT_TRUE(policy.finished());
  EXPECT_EQ(policy.running(), 1);
  EXPECT_EQ(policy.exit_status(), 1);
}

TEST(StopPolicy, SignalsAfterTheEndAreIgnored) {
  StopPolicy policy = policy_of(1);
  policy.ranks_ended({exited(0, 0)}, kLaunch);
  EXPECT_FALSE(policy.signal_received(SIGTERM, kLaunch));
  EXPECT_EQ(policy.exit_status(), 0);
}

TEST(RankExit, KnowsWhomARankBlames) {
  EXPECT_EQ(blamed_rank({}), std::nullopt);
  EXPECT_EQ(blamed_rank({"loss 3", "rank 1 trains"}), std::nullopt);
  EXPECT_EQ(
      blamed_rank(
          {"  what():  [world] rank 12 was lost: it died; rank 0 was waiting",
           "", "more lines"}),
      12);
  EXPECT_EQ(blamed_rank({"[shm] rank 4 has left; awaited values"}), 4);
  EXPECT_EQ(blamed_rank({"[exchange] rank 2 gave this backward up: no"}), 2);
  EXPECT_EQ(blamed_rank({"[world] the store was lost before all met"}), 0);
  EXPECT_EQ(blamed_rank({"[world] rank 1 did not join group 'world'"}), 1);
  EXPECT_EQ(blamed_rank({"[ckpt] saving step 2: rank 3 failed: full"}), 3);
  EXPECT_EQ(blamed_rank({"rank 99999999999 was lost: it died"}), std::nullopt);
  EXPECT_EQ(
      blamed_rank(
          {"[world] rank 0 was lost: it gave up: [shm] rank 1 has left; "
           "awaited the gradients"}),
      1);
  EXPECT_EQ(
      blamed_rank({"[world] rank 2 was lost: it gave up: out of memory"}), 2);
}

TEST(RankExit, KnowsThatARankWasRefusedForGood) {
  EXPECT_FALSE(is_refused({}));
  EXPECT_FALSE(is_refused({"[ft] expected a coordinator", "usage: sherd"}));
  // Programs add to the error, and others write after it.
  EXPECT_TRUE(is_refused(
      {"program: [ft] expected the log of the run; starting this replica again "
       "does not help; step-5 has another",
       "bye"}));
}

TEST(StopPolicy, ARankThatQuotesAnotherBlamingItIsTheCause) {
  StopPolicy policy = policy_of(2);
  const std::string error = "[shm] rank 1 has left; awaited the gradients";
  auto waited = exited(0, 1);
  waited.blames = blamed_rank({error});
  auto closed = exited(1, 1);
  closed.blames =
      blamed_rank({"[world] rank 0 was lost: it gave up: " + error});
  policy.ranks_ended({waited, closed}, kLaunch);
  EXPECT_EQ(policy.first_failure()->rank, 1);
}

TEST(RankExit, NamesWhoFailedWithTheSameError) {
  const RankExit first = {.rank = 1, .exit_code = 1, .last_line = "disk full"};
  const auto other = [](int rank, const char* line) {
    return RankExit{.rank = rank, .exit_code = 1, .last_line = line};
  };
  EXPECT_EQ(same_error_of(first, {first, other(0, "another")}), "");
  EXPECT_EQ(
      same_error_of(
          first, {other(0, "disk full"), first, other(2, "disk full")}),
      "; the same error ended rank 0, 2");
}

TEST(RankExit, SpeaksOfSignalsByNumberAndName) {
  EXPECT_EQ(
      describe(killed(2, SIGKILL)), "rank 2 was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(describe(exited(0, 3)), "rank 0 exited with code 3");
  EXPECT_EQ(describe_signal(999), "signal 999");
}

TEST(RankExit, HintsAtCausesThatASignalHides) {
  EXPECT_THAT(hint_of(killed(0, SIGKILL)), HasSubstr("memory runs out"));
  EXPECT_THAT(
      hint_of(killed(0, SIGBUS)),
      HasSubstr("a file that it reads, such as its training data, has become "
                "shorter"));
  EXPECT_EQ(hint_of(killed(0, SIGSEGV)), "");
  EXPECT_EQ(hint_of(exited(0, 1)), "");
}

}  // namespace
}  // namespace sherd::launch
