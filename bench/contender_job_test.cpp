// SPDX-License-Identifier: Apache-2.0
//
// Contenders whose ranks are shell scripts under the built `sherd run`.
#include "bench/contender_job.h"

#include <poll.h>
#include <unistd.h>
#include <memory>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/process.h"
#include "support/error_of.h"

namespace sherd::bench {
namespace {

using std::chrono::seconds;
using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr seconds kDeadline(30);
// Only rank 0 answers; $$ is its process.
constexpr const char* kReady =
    R"(echo "bench: {\"torch_version\":\"2.13\",\"processes\":[$$]}"; )";

std::unique_ptr<ContenderJob> started(
    const std::string& script, const SignalFd& signals) {
  const ContenderJob::Spec setup{
      .name = "script",
      .sherd = SHERD_COMMAND,
      .ranks = 1,
      .command = {"/bin/sh", "-c", script},
      .environment = {"PATH=/usr/bin:/bin", "COLOUR=blue"}};
  return std::make_unique<ContenderJob>(setup, signals);
}

TEST(ContenderJob, AnswersAndEndsInOrder) {
  const SignalFd signals{SIGTERM};
  const auto contender = started(
      std::string(kReady) +
          "echo chatter; read line; "
          R"(echo "bench: {\"step_ms\":[1.5,2.5],\"losses\":[5,$#],)"
          R"(\"faults\":7,\"cpu_ms\":0.5}"; )"
          "read line; test \"$line $COLOUR\" = '0 blue'",
      signals);
  const auto ready = contender->wait_until_ready(kDeadline);
  EXPECT_EQ(ready.torch_version, "2.13");
  EXPECT_THAT(ready.processes, SizeIs(1));
  int ticks = 0;
  const auto ran = contender->run(2, kDeadline, [&] { ++ticks; });
  EXPECT_THAT(ran.step_ms, ElementsAre(1.5, 2.5));
  EXPECT_THAT(ran.losses, ElementsAre(5, 0));
  EXPECT_EQ(ran.faults, 7);
  EXPECT_GT(ticks, 0);
  contender->end(kDeadline);
}

TEST(ContenderJob, OneThatDiesIsReportedWithItsLastLines) {
  const SignalFd signals{SIGTERM};
  const auto contender = started("echo 'no torch here' >&2; exit 3", signals);
  EXPECT_THAT(
      error_of([&] { contender->wait_until_ready(kDeadline); }),
      AllOf(
          HasSubstr("contender script ended with exit status 3"),
          HasSubstr("no torch here")));
}

TEST(ContenderJob, OneThatDiesWhileIdleIsReportedWhenItIsAsked) {
  const SignalFd signals{SIGTERM};
  const auto contender = started(std::string(kReady) + "exit 4", signals);
  contender->wait_until_ready(kDeadline);
  EXPECT_THAT(
      error_of([&] { contender->run(1, kDeadline); }),
      HasSubstr("ended with exit status 4"));
}

TEST(ContenderJob, AWrongAnswerIsShown) {
  const SignalFd signals{SIGTERM};
  const auto contender = started(
      std::string(kReady) + "read line; echo 'bench: [1]'; read line", signals);
  contender->wait_until_ready(kDeadline);
  EXPECT_THAT(
      error_of([&] { contender->run(1, kDeadline); }),
      AllOf(HasSubstr("taken 1 steps"), HasSubstr("'bench: [1]'")));
}

TEST(ContenderJob, FailingAtTheEndCounts) {
  const SignalFd signals{SIGTERM};
  const auto contender =
      started(std::string(kReady) + "read line; exit 5", signals);
  contender->wait_until_ready(kDeadline);
  EXPECT_THAT(
      error_of([&] { contender->end(kDeadline); }),
      HasSubstr("ended with exit status 5"));
}

TEST(ContenderJob, SilenceEndsAtTheDeadline) {
  const SignalFd signals{SIGTERM};
  const auto contender = started(std::string(kReady) + "read line", signals);
  contender->wait_until_ready(kDeadline);
  EXPECT_THAT(
      error_of([&] { contender->wait_until_ready(seconds(0)); }),
      HasSubstr("did not answer in time"));
}

// Whether the process behind the pidfd ends.
bool ends(const Descriptor& process) {
  pollfd event = {process.get(), POLLIN, 0};
  return ::poll(&event, 1, 30'000) == 1;
}

TEST(ContenderJob, ASignalInterruptsAndStoppingLeavesNothingRunning) {
  const SignalFd signals{SIGTERM};
  const auto contender =
      started(std::string(kReady) + "while read line; do :; done", signals);
  const auto ready = contender->wait_until_ready(kDeadline);
  const Descriptor process = open_pidfd(ready.processes.front());
  ::raise(SIGTERM);
  EXPECT_THROW(contender->run(1, kDeadline), Interrupted);
  contender->tell_to_stop();
  contender->stop(kDeadline);
  EXPECT_TRUE(ends(process));
}

TEST(ContenderJob, DestructionAloneLeavesNothingRunning) {
  const SignalFd signals{SIGTERM};
  auto contender = started(
      std::string("trap '' TERM; ") + kReady + "while :; do read line; done",
      signals);
  const auto ready = contender->wait_until_ready(kDeadline);
  const Descriptor process = open_pidfd(ready.processes.front());
  contender.reset();
  EXPECT_TRUE(ends(process));
}

}  // namespace
}  // namespace sherd::bench
