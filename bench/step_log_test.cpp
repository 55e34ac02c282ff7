// SPDX-License-Identifier: Apache-2.0
#include "bench/step_log.h"

#include <fstream>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "support/scratch_folder.h"

namespace sherd::bench {
namespace {

using sherd::testing::ScratchFolder;

constexpr const char* kFile = "replica-0.rank-0.life-1.steps.jsonl";
constexpr const char* kWhose = R"({"replica":0,"rank":0,"process":1})";

TEST(StepLogReader, LinesAreReadAsTheyAreWritten) {
  const ScratchFolder folder;
  StepLogReader files(folder.path());
  files.read();
  EXPECT_TRUE(files.logs().empty());

  StepLogWriter file(folder.path(), {.replica = 1, .rank = 2, .process = 3});
  files.read();
  ASSERT_EQ(files.logs().size(), 1U);
  EXPECT_EQ(files.logs()[0].replica, 1);
  EXPECT_EQ(files.logs()[0].rank, 2);
  EXPECT_EQ(files.logs()[0].process, 3);
  EXPECT_EQ(files.logs()[0].lines.size(), 1U);

  file.add(
      {.kind = StepEvent::Kind::kComputed,
       .step = 1,
       .hash = 0x89abcdef01234567});
  file.add({.kind = StepEvent::Kind::kComputed, .step = 2});
  files.read();
  files.read();
  const auto& lines = files.logs()[0].lines;
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[1].hash, 0x89abcdef01234567);
  EXPECT_EQ(lines[2].step, 2);
  EXPECT_FALSE(lines[2].hash.has_value());
  EXPECT_GT(lines[0].time_s, 0.0);
  EXPECT_LE(lines[1].time_s, lines[2].time_s);
}

TEST(StepLogReader, EveryKindIsReadBack) {
  const ScratchFolder folder;
  StepLogWriter file(folder.path(), {.process = 1});
  for (const auto kind :
       {StepEvent::Kind::kComputed, StepEvent::Kind::kFollowed,
        StepEvent::Kind::kReplayed, StepEvent::Kind::kDropped}) {
    file.add({.kind = kind, .step = 1});
    StepLogReader files(folder.path());
    files.read();
    EXPECT_EQ(files.logs().at(0).lines.front().kind, StepEvent::Kind::kBegun);
    EXPECT_EQ(files.logs().at(0).lines.back().kind, kind);
  }
}

TEST(StepLogReader, ALineThatIsBeingWrittenWaits) {
  const ScratchFolder folder;
  std::ofstream out(folder.path() + "/" + kFile);
  StepLogReader files(folder.path());

  out << kWhose << "\n"
      << R"({"kind":"computed","step":1,"time_s":2.0})" << "\n"
      << R"({"kind":"computed","step":2,)" << std::flush;
  files.read();
  EXPECT_EQ(files.logs()[0].lines.size(), 1U);

  out << R"("time_s":3.0})" << "\n" << std::flush;
  files.read();
  ASSERT_EQ(files.logs()[0].lines.size(), 2U);
  EXPECT_DOUBLE_EQ(files.logs()[0].lines[1].time_s, 3.0);
}

TEST(StepLogReader, OtherFilesAreLeftAloneAndOtherLinesRefused) {
  const ScratchFolder folder;
  folder.file("log", "anything\n");
  StepLogReader files(folder.path());
  files.read();
  EXPECT_TRUE(files.logs().empty());

  const std::string whose = std::string(kWhose) + "\n";
  for (const std::string& text :
       {std::string("anything"), whose + "anything", whose + "{}",
        whose + R"({"kind":"made","step":1,"time_s":2})",
        whose + R"({"kind":"computed","step":1})",
        whose + R"({"kind":"computed","step":"1","time_s":2})",
        whose + R"({"kind":"computed","step":1,"time_s":null})",
        whose + R"({"kind":"computed","step":1,"time_s":2,"hash":"a"})"}) {
    folder.file(kFile, text + "\n");
    EXPECT_THROW(StepLogReader(folder.path()).read(), Error) << text;
  }
}

TEST(StepLogReader, AFolderThatIsNotThereCannotBeWrittenTo) {
  const ScratchFolder folder;
  EXPECT_THROW(StepLogWriter(folder.path() + "/none", {.process = 1}), Error);
}

}  // namespace
}  // namespace sherd::bench
