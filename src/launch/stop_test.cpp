// SPDX-License-Identifier: Apache-2.0
//
// Real ranks that fail, are signalled, or lose their launcher.
#include <fcntl.h>
#include <sys/stat.h>
#include <csignal>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/clock.h"
#include "launch/launcher_under_test.h"
#include "support/scratch_folder.h"

namespace sherd::launch {
namespace {

using ::sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

// A named pipe through which ranks wait for each other.
class StopTest : public ::testing::Test {
 protected:
  StopTest() { EXPECT_EQ(::mkfifo(fifo().c_str(), 0600), 0); }
  std::string fifo() const { return folder_.path() + "/fifo"; }

 private:
  ScratchFolder folder_;
};

TEST_F(StopTest, FirstFailureEndsTheOthersSoonAndIsReported) {
  // Rank 0 trains forever; rank 1 fails once rank 0 runs.
  LauncherProcess launcher(ranks_of(
      2,
      "if [ $RANK = 0 ]; then echo ready > " + fifo() +
          "; exec sleep 1000; fi; read x < " + fifo() +
          "; echo loss is nan; echo bad weights >&2; exit 42"));
  ASSERT_TRUE(launcher.wait_for_out("loss is nan"));
  const Instant failed = SteadyClock().now();
  const LauncherResult outcome = launcher.finish();
  EXPECT_LT(seconds(SteadyClock().now() - failed), kSoon_s);
  EXPECT_EQ(outcome.exit_status, 42);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("rank 1 exited with code 42 and was the first to fail"),
          HasSubstr("    loss is nan\n"), HasSubstr("    bad weights\n"),
          Not(HasSubstr("rank 0 was killed"))));
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(StopTest, ARankThatIgnoresSigtermIsKilledSoonAfterItsGrace) {
  const Instant begun = SteadyClock().now();
  LauncherProcess launcher(ranks_of(
      2,
      "if [ $RANK = 0 ]; then trap '' TERM; echo ready > " + fifo() +
          "; sleep 1000; exit 0; fi; read x < " + fifo() +
          "; echo failing; exit 3"));
  ASSERT_TRUE(launcher.wait_for_out("failing"));
  const Instant failed = SteadyClock().now();
  const LauncherResult outcome = launcher.finish();
  const Instant ended = SteadyClock().now();
  EXPECT_GE(seconds(ended - begun), 1.0);  // The grace was granted.
  EXPECT_LT(seconds(ended - failed), kSoon_s);
  EXPECT_EQ(outcome.exit_status, 3);
  EXPECT_THAT(outcome.err, HasSubstr("ranks still running: 1; killing them"));
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(StopTest, AKilledRankIsNamedWithItsSignal) {
  LauncherProcess launcher(ranks_of(3, "echo pid $$; exec sleep 1000"));
  for (const char* rank : {"0", "1", "2"}) {
    ASSERT_TRUE(launcher.wait_for_out("[rank " + std::string(rank) + "] pid "));
  }
  ASSERT_TRUE(launcher.wait_for_out("\n"));
  ::kill(process_after("[rank 2] pid ", launcher.out()), SIGKILL);
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 128 + SIGKILL);
  EXPECT_THAT(
      outcome.err, HasSubstr("rank 2 was killed by signal 9 (SIGKILL)"));
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(StopTest, ARankThatIsLostBeforeItHasEndedIsTheFirstToFail) {
  // Rank 0 says what is wrong only after the launcher has seen that rank 1 is gone.
  LaunchOptions options = ranks_of(
      2,
      "if [ $RANK = 1 ]; then echo $$ > " + fifo() +
          "; echo '[world] rank 0 was lost: it gave up' >&2; exit 7; fi; "
          "trap '' TERM; read peer < " +
          fifo() +
          "; while kill -0 $peer 2> /dev/null; do :; done; "
          "echo disk full >&2; exit 3");
  options.cause_grace = std::chrono::seconds(30);
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.exit_status, 3);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("rank 0 exited with code 3 and was the first to fail"),
          HasSubstr("    disk full\n")));
}

TEST_F(StopTest, ARankThatWritesRecordsNoticesALossByItself) {
  LaunchOptions options = ranks_of(
      2,
      "if [ $RANK = 1 ]; then echo $$ > " + fifo() +
          "; kill -9 $$; fi; read peer < " + fifo() +
          "; while kill -0 $peer 2> /dev/null; do :; done; "
          "echo noticed; exit 3");
  options.environment.emplace_back("SHERD_FLIGHT_DIR=flight");
  options.record_grace = std::chrono::minutes(10);
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.exit_status, 128 + SIGKILL);
  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] noticed\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("ending the other ranks")));
}

TEST_F(StopTest, TheCauseIsShownOfALostRankThatDoesNotFail) {
  LauncherProcess launcher(ranks_of(
      2,
      "if [ $RANK = 0 ]; then echo stuck; echo ready > " + fifo() +
          "; exec sleep 1000; fi; read x < " + fifo() +
          "; echo 'rank 0 was lost: no answer' >&2; exit 7"));
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 7);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("rank 1 exited with code 7 because of rank 0"),
          HasSubstr("    stuck\n"), HasSubstr("    rank 0 was lost")));
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(StopTest, WhatARankLeavesBehindEndsWithTheJob) {
  // A child that has left the launcher's groups by the time its parent returns.
  LauncherProcess launcher(ranks_of(
      1,
      "setsid sh -c 'echo ready > " + fifo() + "; sleep 1000; :' & read x < " +
          fifo() + "; exit 0"));
  EXPECT_EQ(launcher.finish().exit_status, 0) << launcher.err();
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(StopTest, TheReportKeepsOnlyTheLastLines) {
  const LauncherResult outcome =
      launch_and_wait(ranks_of(1, "seq 1 1000; exit 1"));
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("    981\n"), HasSubstr("    1000\n"),
          Not(HasSubstr("    980\n"))));
}

TEST_F(StopTest, ARankWithoutOutputIsSaidToHaveWrittenNothing) {
  const LauncherResult outcome = launch_and_wait(ranks_of(1, "exit 5"));
  EXPECT_EQ(outcome.exit_status, 5);
  EXPECT_THAT(outcome.err, HasSubstr("rank 0 wrote nothing"));
}

TEST_F(StopTest, GrandchildrenDoNotSurviveARank) {
  // Whether ranks succeed or fail, the processes that they started in the background end, too.
  for (const char* end : {"exit 0", "exit 3", "kill -9 $$"}) {
    LauncherProcess launcher(
        ranks_of(2, std::string("sleep 1000 & sleep 1000 & ") + end));
    launcher.finish();
    EXPECT_TRUE(launcher.wait_for_death_of_all()) << end;
  }
}

TEST_F(StopTest, GrandchildrenEndWithTheirRankWhenAnotherFails) {
  LauncherProcess launcher(ranks_of(
      2,
      "if [ $RANK = 0 ]; then sh -c 'trap \"\" TERM; echo ready > " + fifo() +
          "; sleep 1000' & wait; fi; read x < " + fifo() + "; exit 3"));
  EXPECT_EQ(launcher.finish().exit_status, 3);
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(StopTest, SigtermIsPassedOnAndRanksMaySaveTheirState) {
  LauncherProcess launcher(ranks_of(
      2, "trap 'echo saved; exit 0' TERM; sleep 1000 & echo ready; wait"));
  ASSERT_TRUE(launcher.wait_for_out("[rank 0] ready\n"));
  ASSERT_TRUE(launcher.wait_for_out("[rank 1] ready\n"));
  launcher.signal(SIGTERM);
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 128 + SIGTERM);
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("[rank 0] saved\n"), HasSubstr("[rank 1] saved\n")));
  EXPECT_THAT(outcome.err, HasSubstr("signal 15 (SIGTERM)"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("error")));
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(StopTest, EveryStopSignalEndsTheJobWithItsStatus) {
  for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGHUP}) {
    LauncherProcess launcher(ranks_of(1, "echo ready; exec sleep 1000"));
    ASSERT_TRUE(launcher.wait_for_out("ready\n"));
    launcher.signal(number);
    EXPECT_EQ(launcher.finish().exit_status, 128 + number);
    EXPECT_TRUE(launcher.wait_for_death_of_all());
  }
}

TEST_F(StopTest, UserSignalsReachTheRankAndNotItsHelpers) {
  for (const char* name : {"USR1", "USR2"}) {
    LauncherProcess launcher(ranks_of(
        2,
        std::string("sleep 1000 & helper=$!; trap 'echo got; kill -0 "
                    "$helper && exit 0; exit 1' ") +
            name + "; echo ready; wait"));
    ASSERT_TRUE(launcher.wait_for_out("[rank 0] ready\n"));
    ASSERT_TRUE(launcher.wait_for_out("[rank 1] ready\n"));
    launcher.signal(std::string(name) == "USR1" ? SIGUSR1 : SIGUSR2);
    const LauncherResult outcome = launcher.finish();
    EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
    EXPECT_THAT(
        outcome.out,
        AllOf(HasSubstr("[rank 0] got\n"), HasSubstr("[rank 1] got\n")));
  }
}

TEST_F(StopTest, SecondInterruptKillsRanksThatIgnoreTheFirst) {
  LauncherProcess launcher(ranks_of(2, "trap '' INT; echo ready; sleep 1000"));
  ASSERT_TRUE(launcher.wait_for_out("[rank 0] ready\n"));
  ASSERT_TRUE(launcher.wait_for_out("[rank 1] ready\n"));
  launcher.signal(SIGINT);
  ASSERT_TRUE(launcher.wait_for_err("passed signal 2 (SIGINT) on"));
  launcher.signal(SIGINT);
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGINT);
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(StopTest, RanksThatDoNotEndInTheirGraceAreKilled) {
  LaunchOptions options = ranks_of(1, "trap '' TERM; echo ready; sleep 1000");
  options.stop_grace = std::chrono::milliseconds(100);
  LauncherProcess launcher(options);
  ASSERT_TRUE(launcher.wait_for_out("ready\n"));
  launcher.signal(SIGTERM);
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 128 + SIGTERM);
  EXPECT_THAT(outcome.err, HasSubstr("ranks still running: 1; killing them"));
}

TEST_F(StopTest, ACrashWhileStoppingIsReported) {
  LauncherProcess launcher(ranks_of(
      1, "trap 'echo disk full; exit 9' TERM; sleep 1000 & echo ready; wait"));
  ASSERT_TRUE(launcher.wait_for_out("ready\n"));
  launcher.signal(SIGTERM);
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 128 + SIGTERM);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("rank 0 exited with code 9 after it was told to end"),
          HasSubstr("    disk full\n")));
}

TEST_F(StopTest, ASignalThatWasIgnoredStaysIgnored) {
  LauncherProcess launcher(
      ranks_of(
          1, "trap 'echo got; exit 0' USR1; sleep 1000 & echo ready; wait"),
      {.ignored = SIGHUP});
  ASSERT_TRUE(launcher.wait_for_out("ready\n"));
  launcher.signal(SIGHUP);
  launcher.signal(SIGUSR1);
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_THAT(outcome.err, Not(HasSubstr("SIGHUP")));
}

// Without exit statuses a launcher could not tell how a rank has ended.
TEST_F(StopTest, EndsAreNoticedByALauncherThatWasToIgnoreThem) {
  LauncherProcess launcher(ranks_of(1, "exit 3"), {.ignored = SIGCHLD});
  EXPECT_EQ(launcher.finish().exit_status, 3);
  // Ranks ignore what their launcher was to ignore: bit 16 of the mask is SIGCHLD's. Other bits
  // depend on who runs the tests.
  LaunchOptions options = ranks_of(1, "");
  options.command = {"grep", "SigIgn", "/proc/self/status"};
  LauncherProcess other(options, {.ignored = SIGCHLD});
  EXPECT_THAT(
      other.finish().out,
      MatchesRegex("\\[rank 0\\] SigIgn:\t.*[13579bdf]....\n"));
}

TEST_F(StopTest, AStalledReaderDoesNotKeepTheLauncherFromItsSignals) {
  LauncherProcess launcher(ranks_of(2, "exec yes"));
  ASSERT_TRUE(launcher.wait_for_out("y\n"));
  launcher.signal(SIGTERM);  // From here on nobody reads stdout.
  ASSERT_TRUE(launcher.wait_for_err("SIGTERM"));
  launcher.signal(SIGTERM);  // This gives up the output as well.
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGTERM);
}

TEST_F(StopTest, ATerminalThatNobodyReadsDoesNotKeepTheLauncherFromItsSignals) {
  Descriptor terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_EQ(::grantpt(terminal.get()), 0);
  ASSERT_EQ(::unlockpt(terminal.get()), 0);
  Descriptor screen(
      ::open(::ptsname(terminal.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(screen.open());
  LauncherProcess launcher(
      ranks_of(2, "exec yes"), {.stdout_fd = screen.get()});
  screen.close();
  // Something was written; the terminal takes a few thousand bytes.
  ASSERT_TRUE(
      wait_readable(terminal.get(), SteadyClock().now() + kTestTimeout));
  launcher.signal(SIGTERM);
  ASSERT_TRUE(launcher.wait_for_err("SIGTERM"));
  terminal.close();  // The output fails now, instead of waiting for a reader.
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGTERM);
}

TEST_F(StopTest, RanksDieWithAKilledLauncher) {
  LauncherProcess launcher(ranks_of(3, "echo ready; exec sleep 1000"));
  for (const char* rank : {"0", "1", "2"}) {
    ASSERT_TRUE(
        launcher.wait_for_out("[rank " + std::string(rank) + "] ready\n"));
  }
  launcher.signal(SIGKILL);
  EXPECT_TRUE(launcher.wait_for_death_of_all());
  EXPECT_EQ(launcher.finish().signal, SIGKILL);
}

}  // namespace
}  // namespace sherd::launch
