// SPDX-License-Identifier: Apache-2.0
#include "launch/output_forwarder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Strings = std::vector<std::string>;

TEST(LineSplitter, GivesTheSameLinesHoweverTheBytesArrive) {
  const std::string text = "one\n\ntwo\r\n10%\r20%\r\nend";
  const Strings expected = {"one", "", "two", "10%", "20%", "end"};
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    LineSplitter splitter;
    Strings lines;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      for (const auto& line : splitter.add(text.substr(at, piece))) {
        lines.push_back(line);
      }
    }
    for (const auto& line : splitter.finish()) {
      lines.push_back(line);
    }
    EXPECT_EQ(lines, expected) << "in pieces of " << piece;
  }
}

TEST(LineSplitter, KeepsALineUntilItEnds) {
  LineSplitter splitter;
  EXPECT_THAT(splitter.add("ab"), IsEmpty());
  EXPECT_THAT(splitter.add("c\nd"), ElementsAre("abc"));
  EXPECT_THAT(splitter.finish(), ElementsAre("d"));
  EXPECT_THAT(splitter.finish(), IsEmpty());
}

TEST(LineSplitter, CutsLinesThatNeverEnd) {
  LineSplitter splitter;
  const std::size_t most = LineSplitter::kLineBytesMax;
  const Strings lines = splitter.add(std::string(2 * most + 5, 'x'));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0].size(), most);
  EXPECT_EQ(lines[1].size(), most);
  EXPECT_THAT(splitter.finish(), ElementsAre("xxxxx"));
}

TEST(OutputTail, KeepsTheLastTwentyAndCutsLongOnes) {
  OutputTail last;
  for (int i = 0; i < 50; ++i) {
    last.add(std::to_string(i));
  }
  ASSERT_EQ(last.lines().size(), OutputTail::kCount);
  EXPECT_EQ(last.lines().front(), "30");
  EXPECT_EQ(last.lines().back(), "49");
  last.add(std::string(5000, 'x'));
  EXPECT_LT(last.lines().back().size(), 1010U);
}

}  // namespace
}  // namespace sherd::launch
