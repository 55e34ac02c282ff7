// SPDX-License-Identifier: Apache-2.0
//
// The built `sherd bench`, as a user calls it wrongly or for help.
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/shell_command.h"

namespace sherd {
namespace {

using test::Outcome;
using ::testing::AllOf;
using ::testing::HasSubstr;

Outcome sherd(const std::string& arguments) {
  return test::run_in_shell("'" SHERD_COMMAND "' " + arguments);
}

TEST(Command, WrongUsageOfBenchExitsWithTwoAndSaysWhy) {
  const auto refused = [](const std::string& arguments) {
    const Outcome outcome = sherd(arguments);
    EXPECT_EQ(outcome.exit_status, 2) << arguments << "\n" << outcome.shown;
    return outcome.shown;
  };
  EXPECT_THAT(refused("bench"), HasSubstr("subcommand"));
  EXPECT_THAT(refused("bench step --typo"), HasSubstr("--typo"));
  EXPECT_THAT(refused("bench step --ranks two"), HasSubstr("two"));
  EXPECT_THAT(refused("bench step --dtype fp16"), HasSubstr("fp16"));
  EXPECT_THAT(refused("bench step --work huge"), HasSubstr("found huge"));
  EXPECT_THAT(
      sherd("bench step --help").shown,
      AllOf(HasSubstr("--interval-width"), HasSubstr("sherd_ratio")));
}

}  // namespace
}  // namespace sherd
