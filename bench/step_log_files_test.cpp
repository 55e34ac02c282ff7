// SPDX-License-Identifier: Apache-2.0
#include "bench/step_log_files.h"

#include <fstream>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "support/scratch_folder.h"

namespace sherd::bench {
namespace {

using sherd::testing::ScratchFolder;

TEST(StepLogReader, LinesAreReadAsTheyAreWritten) {
  const ScratchFolder folder;
  StepLogReader files(folder.path());
  files.read();
  EXPECT_TRUE(files.logs().empty());

  StepLogWriter file(folder.path(), {.replica = 1, .rank = 2, .process = 3});
  files.read();
  ASSERT_EQ(files.logs().size(), 1U);
  EXPECT_EQ(files.logs()[0].name.rank, 2);
  EXPECT_EQ(files.logs()[0].lines.size(), 1U);

  file.add({.kind = StepEventKind::kComputed, .step = 1, .hash = 5});
  file.add({.kind = StepEventKind::kComputed, .step = 2});
  files.read();
  files.read();
  const auto& lines = files.logs()[0].lines;
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1].hash, 5U);
  EXPECT_EQ(lines[2].step, 2);
  EXPECT_GT(lines[0].time_s, 0.0);
  EXPECT_LE(lines[1].time_s, lines[2].time_s);
}

TEST(StepLogReader, ALineThatIsBeingWrittenWaits) {
  const ScratchFolder folder;
  std::ofstream out(folder.path() + "/replica-0.rank-0.life-1");
  StepLogReader files(folder.path());

  out << "computed 1 2.0 -\ncomputed 2 " << std::flush;
  files.read();
  EXPECT_EQ(files.logs()[0].lines.size(), 1U);

  out << "3.0 -\n" << std::flush;
  files.read();
  ASSERT_EQ(files.logs()[0].lines.size(), 2U);
  EXPECT_DOUBLE_EQ(files.logs()[0].lines[1].time_s, 3.0);
}

TEST(StepLogReader, OtherFilesAreLeftAloneAndOtherLinesRefused) {
  const ScratchFolder folder;
  StepLogReader files(folder.path());
  folder.file("log", "anything\n");
  files.read();
  EXPECT_TRUE(files.logs().empty());

  folder.file("replica-0.rank-0.life-1", "anything\n");
  EXPECT_THROW(files.read(), Error);
}

TEST(StepLogReader, AFolderThatIsNotThereCannotBeWrittenTo) {
  const ScratchFolder folder;
  EXPECT_THROW(StepLogWriter(folder.path() + "/none", {.process = 1}), Error);
}

}  // namespace
}  // namespace sherd::bench
