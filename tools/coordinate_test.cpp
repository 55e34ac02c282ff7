// SPDX-License-Identifier: Apache-2.0
//
// `sherd coordinate`, as a user calls it.
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/scratch_folder.h"
#include "support/shell_command.h"

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

test::Outcome coordinate(const std::string& arguments) {
  return test::run_in_shell("'" SHERD_COMMAND "' coordinate " + arguments);
}

TEST(CoordinateCommand, HelpNamesWhatIsNeeded) {
  const auto help = coordinate("--help");
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_THAT(
      help.shown,
      AllOf(
          HasSubstr("--log FILE"), HasSubstr("--status"), HasSubstr("Timers:"),
          HasSubstr("one new epoch (0.03)"),
          HasSubstr("Example, three replicas")));
}

TEST(CoordinateCommand, WrongUsageExitsWithTwoAndSaysWhy) {
  const testing::ScratchFolder folder;
  const std::string log = "--log '" + folder.path() + "/log.db' ";
  const auto refused = [](const std::string& arguments) {
    const auto outcome = coordinate(arguments);
    EXPECT_EQ(outcome.exit_status, 2) << arguments << "\n" << outcome.shown;
    return outcome.shown;
  };
  EXPECT_THAT(refused(""), HasSubstr("--log is required"));
  EXPECT_THAT(refused(log + "--bind 4300"), HasSubstr("4300"));
  EXPECT_THAT(
      refused(log + "--bind 0.0.0.0:0"), HasSubstr("a shared secret or"));
  EXPECT_THAT(refused(log + "--replicas-min 0"), HasSubstr("a minimum of 0"));
  EXPECT_THAT(refused(log + "--dead-after 0.1"), HasSubstr("found 100 ms"));
  EXPECT_THAT(refused(log + "--dead-after nan"), HasSubstr("found nan"));
  EXPECT_THAT(
      refused(log + "--vote-timeout soon"),
      HasSubstr("--vote-timeout: expected seconds from 0 to 1000000, found "
                "soon"));
  EXPECT_THAT(
      refused(log + "--left-out-min 3 --left-out-max 2"),
      HasSubstr("at most 3000 ms or more, found 2000 ms"));
  EXPECT_THAT(refused(log + "--secret-file /nowhere"), HasSubstr("/nowhere"));
}

TEST(CoordinateCommand, ALogThatCannotBeHadExitsWithOne) {
  const auto outcome = coordinate("--log /proc/nowhere/log.db");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.shown, HasSubstr("/proc/nowhere/log.db"));
}

TEST(CoordinateCommand, TooFewDescriptorsAreNamedAndNotWaitedFor) {
  const testing::ScratchFolder folder;
  const auto outcome = test::run_in_shell(
      "ulimit -n 16; '" SHERD_COMMAND
      "' coordinate --replicas-start 3 --log '" +
      folder.path() + "/log.db'");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(
      outcome.shown,
      HasSubstr("at least 35 open files for 3 replicas, found 16"));
}

// This holds even if nobody reads its output any more.
TEST(CoordinateCommand, EndsInOrderWhenItIsTold) {
  const testing::ScratchFolder folder;
  const auto outcome = test::run_in_shell(
      "cd '" + folder.path() +
      "' && mkfifo out && { '" SHERD_COMMAND
      "' coordinate --log run/log.db --ready-file ready 2>out & } && "
      "read line <out && kill $! && wait $! && cat ready");
  EXPECT_EQ(outcome.exit_status, 0) << outcome.shown;
}

}  // namespace
}  // namespace sherd
