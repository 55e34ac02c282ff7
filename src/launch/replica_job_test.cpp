// SPDX-License-Identifier: Apache-2.0
//
// Replicas and a coordinator as real processes that are killed, drained and
// admitted. Ranks and the coordinator are shell scripts.
#include <fcntl.h>
#include <unistd.h>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "base/check.h"
#include "base/descriptor.h"
#include "base/process.h"
#include "launch/control.h"
#include "launch/launcher_under_test.h"
#include "support/error_of.h"
#include "support/scratch_folder.h"

namespace sherd::launch {
namespace {

using ::sherd::test::error_of;
using ::sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Prints its arguments, and reports that it listens where it is told to.
constexpr const char* kCoordinator =
    R"(all="$*"
while [ $# -gt 1 ]; do
  case $1 in
    --bind) bind=$2;; --status) status=$2;; --ready-file) ready=$2;;
  esac
  shift
done
echo "pid $$ told $all"
printf "$bind\n$status\n" > "$ready.new" && mv "$ready.new" "$ready"
exec sleep 1000)";

bool runs(pid_t pid) { return ::kill(pid, 0) == 0; }

// Waits for the end of a process that is no child of this one.
bool wait_for_end(pid_t pid) {
  const Descriptor event = open_pidfd(pid);
  return !event.open() ||
      wait_readable(event.get(), SteadyClock().now() + kTestTimeout);
}

// Whether a launcher could reserve the port, as reserve_port() does.
bool can_reserve(int port) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return ::bind(
             socket.get(), reinterpret_cast<const sockaddr*>(&address),
             sizeof address) == 0;
}

std::string label_of(const std::string& name) {
  return str("[", name, "] pid ");
}

class ReplicaJobKillTest : public ::testing::Test {
 protected:
  // Each rank of each replica runs `script`.
  LaunchOptions replicas_of(
      int replicas, int ranks, const std::string& script) const {
    LaunchOptions options = ranks_of(ranks, script);
    options.replicas.emplace();
    options.replicas->replicas = replicas;
    options.replicas->coordinator_command = {
        "/bin/sh", "-c", kCoordinator, "coordinator"};
    options.replicas->run_folder = folder_.path() + "/run";
    options.replicas->control = folder_.path() + "/run/control";
    return options;
  }
  LaunchOptions sleepers(int replicas, int ranks) const {
    return replicas_of(replicas, ranks, "echo pid $$; exec sleep 1000");
  }
  std::string path(const std::string& name) const {
    return folder_.path() + "/" + name;
  }
  // The processes that first ran each rank.
  static std::map<std::string, pid_t> pids(
      LauncherProcess& launcher, int replicas, int ranks) {
    std::map<std::string, pid_t> found;
    for (int replica = 0; replica < replicas; ++replica) {
      for (int rank = 0; rank < ranks; ++rank) {
        const std::string name = str("r", replica, ".", rank);
        launcher.wait_for_out(label_of(name));
        found[name] = process_after(label_of(name), launcher.out());
      }
    }
    return found;
  }

  ScratchFolder folder_;
};

TEST_F(ReplicaJobKillTest, EveryReplicaIsAWorldOfItsOwn) {
  const LauncherResult outcome = launch_and_wait(replicas_of(
      3, 2,
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE replica "
      "$SHERD_REPLICA/$SHERD_REPLICAS at $SHERD_COORDINATOR port "
      "$MASTER_PORT"));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  const int coordinator = process_after("--bind 127.0.0.1:", outcome.out);
  std::set<int> ports;
  for (const int replica : {0, 1, 2}) {
    for (const int rank : {0, 1}) {
      const std::string line =
          str("[r", replica, ".", rank, "] ", rank, "/2 ", rank, "/2 replica ",
              replica, "/3 at 127.0.0.1:", coordinator, " port ");
      EXPECT_THAT(outcome.out, HasSubstr(line));
      ports.insert(process_after(line, outcome.out));
    }
  }
  EXPECT_EQ(ports.size(), 3U);
  EXPECT_THAT(outcome.err, IsEmpty());
}

TEST_F(ReplicaJobKillTest, OneLostRankRestartsItsReplicaAndNoOther) {
  LauncherProcess launcher(sleepers(3, 2));
  const auto before = pids(launcher, 3, 2);
  const Instant struck = SteadyClock().now();
  ::kill(before.at("r1.1"), SIGKILL);
  ASSERT_TRUE(launcher.wait_for_out("[r1.0] pid ", 2));
  ASSERT_TRUE(launcher.wait_for_out("[r1.1] pid ", 2));
  EXPECT_LT(seconds(SteadyClock().now() - struck), kSoon_s);
  for (const auto& [name, pid] : before) {
    EXPECT_EQ(runs(pid), !name.starts_with("r1.")) << name;
  }
  launcher.signal(SIGTERM);
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 128 + SIGTERM);
  EXPECT_THAT(
      outcome.err,
      HasSubstr(
          "replica 1: rank 1 was killed by signal 9 (SIGKILL); the kernel "
          "sends it too, when memory runs out; replica 1 is started again at "
          "once"));
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(ReplicaJobKillTest, ASiblingThatIgnoresSigtermDoesNotHoldUpTheRestart) {
  LauncherProcess launcher(replicas_of(
      2, 2, "[ $RANK = 1 ] && trap '' TERM; echo pid $$; sleep 1000"));
  const auto before = pids(launcher, 2, 2);
  const Instant struck = SteadyClock().now();
  ::kill(before.at("r0.0"), SIGKILL);
  ASSERT_TRUE(launcher.wait_for_out("[r0.1] pid ", 2));
  EXPECT_LT(seconds(SteadyClock().now() - struck), kSoon_s);
  EXPECT_FALSE(runs(before.at("r0.1")));
  launcher.signal(SIGINT);
  ASSERT_TRUE(launcher.wait_for_err("passed signal 2 (SIGINT) on"));
  launcher.signal(SIGINT);
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGINT);
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(ReplicaJobKillTest, AKilledCoordinatorComesBackOnTheSamePortAndLog) {
  LauncherProcess launcher(sleepers(2, 1));
  const auto ranks = pids(launcher, 2, 1);
  const std::string label = "[coordinator] pid ";
  ASSERT_TRUE(launcher.wait_for_out("--samples-multiple"));
  const int port = process_after("--bind 127.0.0.1:", launcher.out());
  const int status = process_after("--status 127.0.0.1:", launcher.out());
  // Reserved ports, which no outgoing connection takes while it is down, nor another launcher.
  for (const int reserved : {port, status}) {
    EXPECT_GE(reserved, 20000);
    EXPECT_LE(reserved, 29999);
    EXPECT_FALSE(can_reserve(reserved));
  }
  EXPECT_NE(port, status);
  const Instant struck = SteadyClock().now();
  for (int life = 2; life <= 3; ++life) {
    ::kill(process_after(label, launcher.out()), SIGKILL);
    ASSERT_TRUE(
        launcher.wait_for_out(str("--bind 127.0.0.1:", port, " "), life));
    ASSERT_TRUE(
        launcher.wait_for_out(str("--status 127.0.0.1:", status, " "), life));
    ASSERT_TRUE(launcher.wait_for_out(label, life));
  }
  const double both_s = seconds(SteadyClock().now() - struck);
  for (const auto& [name, pid] : ranks) {
    EXPECT_TRUE(runs(pid)) << name;
  }
  EXPECT_TRUE(launcher.wait_for_out("--log " + path("run/coordinator.db "), 3));
  launcher.signal(SIGTERM);
  const LauncherResult outcome = launcher.finish();
  EXPECT_THAT(
      outcome.err,
      HasSubstr("the coordinator was killed by signal 9 (SIGKILL); it is "
                "started again at once"));
  if (both_s < 2.0) {  // After a longer life it would again be at once.
    EXPECT_THAT(outcome.err, HasSubstr("it is started again in 0.1 s"));
  }
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

// Its log does not say so.
TEST_F(ReplicaJobKillTest, ACoordinatorThatComesBackLearnsThatTheRunHasEnded) {
  LauncherProcess launcher(replicas_of(
      2, 1, "echo pid $$; [ $SHERD_REPLICA = 0 ] || exec sleep 1000"));
  const auto ranks = pids(launcher, 2, 1);
  ASSERT_TRUE(wait_for_end(ranks.at("r0.0")));
  ::kill(process_after("[coordinator] pid ", launcher.out()), SIGKILL);
  EXPECT_TRUE(launcher.wait_for_out(" --run-has-ended\n"));
  launcher.signal(SIGTERM);
  launcher.finish();
}

TEST_F(ReplicaJobKillTest, ACoordinatorThatCameBackLearnsWhenTheRunEnds) {
  LauncherProcess launcher(replicas_of(
      2, 1,
      str("echo pid $$; [ $SHERD_REPLICA = 1 ] || until [ -e ", path("end"),
          " ]; do sleep 0.02; done; [ $SHERD_REPLICA = 0 ] || exec sleep "
          "1000")));
  pids(launcher, 2, 1);
  ::kill(process_after("[coordinator] pid ", launcher.out()), SIGKILL);
  ASSERT_TRUE(launcher.wait_for_out("[coordinator] pid ", 2));
  EXPECT_THAT(launcher.out(), Not(HasSubstr("--run-has-ended")));
  std::ofstream(path("end")) << "now";
  EXPECT_TRUE(launcher.wait_for_out(" --run-has-ended\n"));
  launcher.signal(SIGTERM);
  launcher.finish();
}

TEST_F(ReplicaJobKillTest, TheCoordinatorLearnsWhatTheRunIs) {
  LaunchOptions options =
      replicas_of(3, 1, "echo $SHERD_SECRET_FILE $SHERD_SAMPLES");
  options.replicas->replicas_min = 2;
  options.replicas->samples_per_replica = 12;
  options.replicas->secret_file = "/my/secret";
  options.replicas->coordinator_arguments = {"--dead-after", "3"};
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr(" --replicas-min 2 --replicas-start 3 "
                    "--samples-per-replica 12 --global-batch 0 "
                    "--samples-multiple 1 --secret-file /my/secret "
                    "--dead-after 3\n"),
          HasSubstr("[r2.0] /my/secret 36\n")));
}

TEST_F(ReplicaJobKillTest, EachRankHasASampleWhereNothingElseIsSaid) {
  const LauncherResult outcome =
      launch_and_wait(replicas_of(3, 2, "echo $SHERD_SAMPLES"));
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("--samples-per-replica 2 --global-batch 0 "),
          HasSubstr("[r2.1] 6\n")));
}

TEST_F(ReplicaJobKillTest, ACoordinatorThatCannotStartEndsTheJobWithItsStatus) {
  LaunchOptions options = sleepers(2, 1);
  options.replicas->coordinator_command = {
      "/bin/sh", "-c", "echo wrong log >&2; exit 5"};
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.exit_status, 5);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("[coordinator] wrong log\n"),
          HasSubstr("error: the coordinator exited with code 5 before it "
                    "listened")));
  EXPECT_THAT(outcome.out, Not(HasSubstr("pid")));
  options.replicas->coordinator_command = {"/no/such/program"};
  EXPECT_EQ(launch_and_wait(options).exit_status, 127);
}

// The job's folder is gone, and the secret with it. Replicas can still save what they have.
TEST_F(ReplicaJobKillTest, ACoordinatorThatNeverStartsAgainEndsTheJob) {
  LaunchOptions options = replicas_of(
      2, 1, "trap 'echo saved; exit 3' TERM; echo pid $$; sleep 1000 & wait");
  options.replicas->coordinator_command[2] =
      str("[ ! -e ", path("once"), " ] || { echo no secret >&2; exit 2; }; ",
          ": > ", path("once"), "; ", kCoordinator);
  LauncherProcess launcher(options);
  pids(launcher, 2, 1);
  ::kill(process_after("[coordinator] pid ", launcher.out()), SIGKILL);
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("[r0.0] saved\n"), HasSubstr("[r1.0] saved\n")));
  EXPECT_THAT(
      outcome.err,
      HasSubstr("error: the coordinator exited with code 2 each time that it "
                "was started again"));
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(ReplicaJobKillTest, ASignalWhileTheCoordinatorStartsEndsTheJob) {
  LaunchOptions options = sleepers(2, 1);
  options.replicas->coordinator_command = {
      "/bin/sh", "-c", "echo slow; exec sleep 1000"};
  LauncherProcess launcher(options);
  ASSERT_TRUE(launcher.wait_for_out("slow"));
  launcher.signal(SIGINT);
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGINT);
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(ReplicaJobKillTest, RequestsWhileTheCoordinatorStartsStartNothing) {
  LaunchOptions options = sleepers(2, 1);
  options.replicas->coordinator_command = {
      "/bin/sh", "-c", "echo slow; exec sleep 1000"};
  LauncherProcess launcher(options);
  ASSERT_TRUE(launcher.wait_for_out("slow"));
  const std::string control = options.replicas->control;
  EXPECT_THAT(
      send_control_request(control, "admit 0").status().message(),
      HasSubstr("the job is starting"));
  launcher.signal(SIGUSR1);
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 75) << outcome.err;
  EXPECT_THAT(outcome.out, Not(HasSubstr("pid")));
}

TEST_F(ReplicaJobKillTest, ACoordinatorElsewhereIsOnlyNamed) {
  LaunchOptions options = replicas_of(2, 1, "echo at $SHERD_COORDINATOR");
  options.replicas->coordinator_command.clear();
  options.replicas->control.clear();  // No folder is created for it.
  options.replicas->coordinator = "somewhere:77";
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("[r0.0] at somewhere:77\n"),
          HasSubstr("[r1.0] at somewhere:77\n"),
          Not(HasSubstr("coordinator]"))));
}

TEST_F(ReplicaJobKillTest, EndsWithTheLastFailureAndItsLastLines) {
  LaunchOptions options = replicas_of(
      2, 1, "echo life of $SHERD_REPLICA >&2; exit $((3 + SHERD_REPLICA))");
  options.replicas->restarts_max = 1;
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_THAT(outcome.exit_status, ::testing::AnyOf(3, 4));
  const std::string last = std::to_string(outcome.exit_status - 3);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("it was 1 times already within 3600 s"),
          HasSubstr(str("error: replica ", last, ": rank 0 exited with code")),
          HasSubstr(str("    life of ", last, "\n"))));
}

TEST_F(ReplicaJobKillTest, OneThatIsRefusedAfterARestartIsNotStartedAgain) {
  const LauncherResult outcome = launch_and_wait(replicas_of(
      1, 1,
      str("mkdir ", path("once"), " && exit 1; echo '[ft] no; starting this ",
          "replica again does not help'; exit 2")));
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("refused it for good; it is not started"));
}

TEST_F(ReplicaJobKillTest, OneThatReturnsDoesNotEndTheJobOfTheOthers) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo(path("end").c_str(), 0600), 0);
  LauncherProcess launcher(replicas_of(
      2, 1,
      "echo pid $$; [ $SHERD_REPLICA = 1 ] && { read x < " + path("end") +
          "; exit $x; }; read x < " + path("fifo")));
  const auto before = pids(launcher, 2, 1);
  std::ofstream(path("fifo")) << "go\n";
  ASSERT_TRUE(wait_for_end(before.at("r0.0")));
  ::kill(before.at("r1.0"), SIGKILL);
  ASSERT_TRUE(launcher.wait_for_out("[r1.0] pid ", 2));
  std::ofstream(path("end")) << "0\n";
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_THAT(outcome.err, HasSubstr("replica 1 is started again at once"));
}

TEST_F(ReplicaJobKillTest, OneThatReturnsIsNoSuccessOfTheJob) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo(path("end").c_str(), 0600), 0);
  LaunchOptions options = replicas_of(
      2, 1,
      "echo pid $$; [ $SHERD_REPLICA = 1 ] && { read x < " + path("end") +
          "; exit $x; }; read x < " + path("fifo"));
  options.replicas->restarts_max = 0;
  LauncherProcess launcher(options);
  const auto before = pids(launcher, 2, 1);
  std::ofstream(path("fifo")) << "go\n";
  ASSERT_TRUE(wait_for_end(before.at("r0.0")));
  std::ofstream(path("end")) << "7\n";
  EXPECT_EQ(launcher.finish().exit_status, 7);
}

TEST_F(ReplicaJobKillTest, AProgramThatIsNotThereIsNotTriedAgain) {
  LaunchOptions options = sleepers(2, 2);
  options.command = {"no-such-program"};
  EXPECT_EQ(launch_and_wait(options).exit_status, 127);
  options.command = {path("script")};
  std::ofstream(path("script")) << "#!/no/such/interpreter\n";
  ::chmod(path("script").c_str(), 0755);
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.exit_status, 127);
  EXPECT_THAT(outcome.err, HasSubstr("replica 0 could not be started"));
}

TEST_F(ReplicaJobKillTest, AllDieWithAKilledLauncher) {
  LauncherProcess launcher(sleepers(3, 2));
  pids(launcher, 3, 2);
  launcher.signal(SIGKILL);
  EXPECT_TRUE(launcher.wait_for_death_of_all());
  EXPECT_EQ(launcher.finish().signal, SIGKILL);
}

TEST_F(ReplicaJobKillTest, ReplicasAreDrainedAndAdmitted) {
  LauncherProcess launcher(replicas_of(
      2, 2,
      "trap 'echo leaving; exit 0' USR1 TERM; echo pid $$; "
      "sleep 1000 & wait"));
  const auto before = pids(launcher, 2, 2);
  const std::string control = path("run/control");
  EXPECT_EQ(drain_replica(control, 1), "replica 1 was asked to leave");
  ASSERT_TRUE(launcher.wait_for_out("[r1.0] leaving\n"));
  // It no longer trains alone, and its sibling learns that as ranks do.
  ::kill(before.at("r1.1"), SIGTERM);
  ASSERT_TRUE(launcher.wait_for_err("replica 1 has left"));
  EXPECT_EQ(admit_replica(control, 1), "replica 1 is admitted");
  ASSERT_TRUE(launcher.wait_for_out("[r1.1] pid ", 2));
  EXPECT_TRUE(runs(before.at("r0.0")));
  EXPECT_THROW(admit_replica(control, 1), Error);
  EXPECT_THROW(drain_replica(control, 2), Error);
  EXPECT_THAT(
      send_control_request(control, "drain").status().message(),
      HasSubstr("expected 'drain N'"));
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(control));
  EXPECT_THROW(drain_replica(control, 1), Error);
}

TEST_F(ReplicaJobKillTest, AnAdmittedReplicaThatCannotStartIsNoSuccess) {
  const std::string program = path("program");
  std::ofstream(program) << "#!/bin/sh\ntrap 'exit 0' USR1\necho pid $$\n"
                         << "sleep 1000 &\nwait\n";
  ::chmod(program.c_str(), 0755);
  LaunchOptions options = sleepers(2, 1);
  options.command = {program};
  LauncherProcess launcher(options);
  pids(launcher, 2, 1);
  const std::string control = path("run/control");
  drain_replica(control, 1);
  ASSERT_TRUE(launcher.wait_for_err("replica 1 has left"));
  std::filesystem::remove(program);
  const std::string why = error_of([&] { admit_replica(control, 1); });
  EXPECT_THAT(
      why,
      AllOf(
          HasSubstr("replica 1 is admitted, but could not be started: "),
          HasSubstr(program)));
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGTERM);
}

TEST_F(ReplicaJobKillTest, WhenAllHaveLeftTheJobSaysThatTheRunIsNotOver) {
  LauncherProcess launcher(
      replicas_of(2, 1, "trap 'exit 0' USR1; echo pid $$; sleep 1000 & wait"));
  pids(launcher, 2, 1);
  launcher.signal(SIGUSR1);
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 75);
  EXPECT_THAT(
      outcome.err,
      HasSubstr("all replicas have left before one said that the run has "
                "ended; the exit status is 75, and the same command continues "
                "the run"));
}

// The child processes hold its connections and would keep peers waiting.
TEST_F(ReplicaJobKillTest, WhatAKilledRankHasStartedEndsWithItWhereverItIs) {
  LauncherProcess launcher(replicas_of(
      2, 1,
      "setsid sh -c 'echo loader $$; exec sleep 1000' & echo pid $$; wait"));
  const auto before = pids(launcher, 2, 1);
  for (const char* name : {"r0.0", "r1.0"}) {
    ASSERT_TRUE(launcher.wait_for_out(str("[", name, "] loader ")));
  }
  ASSERT_TRUE(launcher.wait_for_out("\n", 4));
  const pid_t lost = process_after("[r0.0] loader ", launcher.out());
  const pid_t kept = process_after("[r1.0] loader ", launcher.out());
  ::kill(before.at("r0.0"), SIGKILL);
  EXPECT_TRUE(wait_for_end(lost));
  ASSERT_TRUE(launcher.wait_for_out("[r0.0] loader ", 2));
  EXPECT_TRUE(runs(kept));
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGTERM);
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(ReplicaJobKillTest, ProcessesShareASecretThatTheJobHasMade) {
  const LauncherResult outcome = launch_and_wait(replicas_of(
      2, 1, "stat -c %a $SHERD_SECRET_FILE; cat $SHERD_SECRET_FILE"));
  const std::string file =
      std::filesystem::absolute(path("run/coordinator.secret")).string();
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("--secret-file " + file + "\n"),
          HasSubstr("[r0.0] 600\n")));
  std::ifstream in(file);
  std::string secret;
  in >> secret;
  EXPECT_THAT(
      outcome.out,
      AllOf(
          HasSubstr("[r0.0] " + secret + "\n"),
          HasSubstr("[r1.0] " + secret + "\n")));
}

TEST_F(ReplicaJobKillTest, AnEmptyTmpdirIsNone) {
  LaunchOptions options = replicas_of(1, 1, "exit 0");
  options.replicas->run_folder.clear();
  options.replicas->control.clear();
  options.environment.emplace_back("TMPDIR=");
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("--log /tmp/"));
}

TEST_F(ReplicaJobKillTest, ThereIsNoSecretWhereNoneIsWanted) {
  LaunchOptions options =
      replicas_of(1, 1, "echo file ${SHERD_SECRET_FILE-none}");
  options.replicas->makes_secret = false;
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_THAT(
      outcome.out,
      AllOf(HasSubstr("file none\n"), Not(HasSubstr("--secret-file"))));
}

TEST_F(ReplicaJobKillTest, TheSameCommandIsRefusedWhileItsRunIsUnderWay) {
  LauncherProcess launcher(sleepers(2, 1));
  const auto before = pids(launcher, 2, 1);
  const LauncherResult second = launch_and_wait(sleepers(2, 1));
  EXPECT_EQ(second.exit_status, 1);
  EXPECT_THAT(second.out, IsEmpty());
  EXPECT_THAT(
      second.err,
      AllOf(
          HasSubstr(
              "expected a folder in which no run is under way, found '" +
              path("run")),
          HasSubstr("where process "), HasSubstr(" UTC runs one")));
  EXPECT_TRUE(std::filesystem::exists(path("run/coordinator.address")));
  EXPECT_TRUE(std::filesystem::exists(path("run/control")));
  for (const auto& [name, pid] : before) {
    EXPECT_TRUE(runs(pid)) << name;
  }
  // A killed launcher holds no lock.
  launcher.signal(SIGKILL);
  EXPECT_TRUE(launcher.wait_for_death_of_all());
  EXPECT_EQ(launch_and_wait(replicas_of(1, 1, "exit 0")).exit_status, 0);
}

TEST_F(ReplicaJobKillTest, ASignalWhileReplicasStartStartsNoMoreOfThem) {
  LaunchOptions options = replicas_of(
      3, 1,
      "[ $SHERD_REPLICA = 0 ] && echo began > " + path("began") +
          "; exec sleep 1000");
  options.output = RankOutput::kFiles;
  options.log_dir = path("logs");
  std::filesystem::create_directories(path("logs"));
  // The launcher blocks where it opens a pipe that nobody reads.
  ASSERT_EQ(::mkfifo(path("logs/r1.0.log").c_str(), 0600), 0);
  ASSERT_EQ(::mkfifo(path("began").c_str(), 0600), 0);
  LauncherProcess launcher(options);
  std::string word;
  std::ifstream(path("began")) >> word;
  launcher.signal(SIGTERM);
  // Does not wait, in case the launcher never opens the pipe.
  const Descriptor reader(
      ::open(path("logs/r1.0.log").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ASSERT_GE(reader.get(), 0);
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(path("logs/r2.0.log")));
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(ReplicaJobKillTest, ASpareLearnsWhoseShoesItFills) {
  LaunchOptions options = replicas_of(
      2, 2,
      "if [ -n \"$SHERD_SPARE\" ]; then echo waiting; "
      "read r < /proc/self/fd/$SHERD_SPARE || exit 1; echo pid $$ is $r; "
      "else echo pid $$; fi; exec sleep 1000");
  options.replicas->spares = 1;
  LauncherProcess launcher(options);
  const auto before = pids(launcher, 2, 2);
  ASSERT_TRUE(launcher.wait_for_out("[s2.0] waiting\n"));
  ASSERT_TRUE(launcher.wait_for_out("[s2.1] waiting\n"));
  ::kill(before.at("r0.1"), SIGKILL);
  for (const char* name : {"r0.0", "r0.1"}) {
    ASSERT_TRUE(launcher.wait_for_out(label_of(name), 2));
  }
  ASSERT_TRUE(launcher.wait_for_out(" is 0\n", 2));
  // The former replica 0 is waiting now.
  ASSERT_TRUE(launcher.wait_for_out("[s0.1] waiting\n"));
  EXPECT_THAT(launcher.out(), Not(HasSubstr("[s2.0] pid")));
  launcher.signal(SIGTERM);
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGTERM);
  EXPECT_TRUE(launcher.wait_for_death_of_all());
}

TEST_F(ReplicaJobKillTest, SparesEndWithTheJob) {
  LaunchOptions options = replicas_of(
      2, 1, "[ -z \"$SHERD_SPARE\" ] || exec sleep 1000; echo done");
  options.replicas->spares = 2;
  EXPECT_EQ(launch_and_wait(options).exit_status, 0);
}

TEST_F(ReplicaJobKillTest, LogsOfAllLivesOfARankAreOneFile) {
  LaunchOptions options =
      replicas_of(2, 1, "echo life of $SHERD_REPLICA; exit 1");
  options.output = RankOutput::kFiles;
  options.log_dir = path("logs");
  options.replicas->restarts_max = 1;
  std::filesystem::create_directories(path("logs"));
  std::ofstream(path("logs/r1.0.log")) << "of an earlier run\n";
  EXPECT_EQ(launch_and_wait(options).exit_status, 1);
  std::ifstream in(path("logs/r1.0.log"));
  const std::string text(std::istreambuf_iterator<char>(in), {});
  EXPECT_EQ(text, "life of 1\nlife of 1\n");
  EXPECT_TRUE(std::filesystem::exists(path("logs/coordinator.log")));
}

TEST_F(ReplicaJobKillTest, LostOutputEndsNoReplicaAndIsAFailure) {
  const Descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  LauncherProcess launcher(
      replicas_of(2, 1, "echo out"), {.stdout_fd = full.get()});
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_EQ(
      outcome.err,
      "sherd: error: cannot write to standard output: No space left on device; "
      "output of the ranks was lost\n");
}

TEST_F(ReplicaJobKillTest, OptionsThatMakeNoSenseAreRefused) {
  const auto refusal = [this](auto&& change) -> std::string {
    LaunchOptions options = sleepers(2, 1);
    change(options);
    try {
      run(options);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  using Options = LaunchOptions&;
  EXPECT_THAT(
      refusal([](Options o) { o.replicas->replicas = 0; }),
      HasSubstr("1 to 4096 replicas, found 0"));
  EXPECT_THAT(
      refusal([](Options o) { o.replicas->replicas = 99999; }),
      HasSubstr("1 to 4096 replicas, found 99999"));
  EXPECT_THAT(
      refusal([](Options o) { o.replicas->spares = -1; }),
      HasSubstr("spares, found -1"));
  EXPECT_THAT(
      refusal([](Options o) { o.replicas->replicas_min = 3; }),
      HasSubstr("from 1 to 2, found 3"));
  EXPECT_THAT(
      refusal([](Options o) { o.replicas->restarts_max = -1; }),
      HasSubstr("restarts, found -1"));
  EXPECT_THAT(
      refusal([](Options o) {
        o.ranks = 2;
        o.replicas->samples_per_replica = 3;
      }),
      HasSubstr("samples per replica that its 2 ranks divide, found 3"));
  EXPECT_THAT(
      refusal([](Options o) { o.replicas->global_batch = -3; }),
      HasSubstr("ranks of a replica divide, found -3"));
  EXPECT_THAT(
      refusal([](Options o) { o.replicas->coordinator = "a:1"; }),
      HasSubstr("found both"));
  EXPECT_THAT(
      refusal([](Options o) { o.port = 1000; }), HasSubstr("expected no port"));
}

}  // namespace
}  // namespace sherd::launch
