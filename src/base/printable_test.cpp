// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <gtest/gtest.h>

namespace sherd {
namespace {

TEST(Printable, LeavesWhatATerminalShows) {
  std::string all;
  for (char c = ' '; c <= '~'; ++c) {
    all += c;
  }
  EXPECT_EQ(printable(all, 100), all);
}

TEST(Printable, HasNeitherLinesNorWhatATerminalObeys) {
  EXPECT_EQ(printable("a\nb\r\x1b[2J\x7f", 100), "a?b??[2J?");
  EXPECT_EQ(printable(std::string("\0\x9b\xff", 3), 100), "???");
}

TEST(Printable, IsCut) {
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("abc\n", 3), "abc");
  EXPECT_EQ(printable("abc", 0), "");
}

TEST(JsonString, QuotesWhatWouldEndIt) {
  EXPECT_EQ(json_string(""), "\"\"");
  EXPECT_EQ(json_string("h.\"0\"\\\n"), R"("h.\"0\"\\?")");
}

}  // namespace
}  // namespace sherd
