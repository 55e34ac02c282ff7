// SPDX-License-Identifier: Apache-2.0
//
// The built sherd-bench-checkpoint with little data. Nothing here looks at speed.
#include <filesystem>
#include <iterator>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/scratch_folder.h"
#include "support/shell_command.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

test::Outcome bench(const std::string& folder, const std::string& gigabytes) {
  return test::run_in_shell(
      "'" SHERD_COMMAND "' run -n 2 --no-prefix -- '" SHERD_BENCH_CHECKPOINT
      "' --gigabytes " +
      gigabytes + " --rounds 1 --folder '" + folder + "'");
}

TEST(CheckpointRun, WhatIsInTheFolderStaysAndNothingIsAdded) {
  const testing::ScratchFolder folder;
  folder.file("thesis.txt", "three years");
  folder.file("step-1/model.safetensors", "of the user");
  const auto outcome = bench(folder.path(), "0.01");
  EXPECT_EQ(outcome.exit_status, 0) << outcome.shown;
  EXPECT_THAT(outcome.shown, AllOf(HasSubstr("save: "), HasSubstr("load: ")));
  EXPECT_TRUE(fs::exists(folder.path() + "/thesis.txt"));
  EXPECT_TRUE(fs::exists(folder.path() + "/step-1/model.safetensors"));
  EXPECT_EQ(
      std::distance(
          fs::directory_iterator(folder.path()), fs::directory_iterator()),
      2);
}

// 2 ranks x 48 tensors x 1024 elements of 4 bytes are the least there is.
TEST(CheckpointRun, TheSpeedIsThatOfTheBytesThatWereWritten) {
  const testing::ScratchFolder folder;
  for (const char* gigabytes : {"0.000001", "0.0007"}) {
    const auto outcome = bench(folder.path(), gigabytes);
    EXPECT_EQ(outcome.exit_status, 0) << outcome.shown;
    EXPECT_THAT(
        outcome.shown,
        AllOf(HasSubstr("save: 0.000393 GB"), HasSubstr("load: 0.000393 GB")));
  }
}

}  // namespace
}  // namespace sherd
