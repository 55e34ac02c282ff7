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

TEST(Shortened, CutsNoCharacterIntoTwo) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc");
  const std::string text = "a\u00e9\u20acz";  // Of 1, 2, 3 and 1 bytes.
  EXPECT_EQ(shortened(text, 7), text);
  EXPECT_EQ(shortened(text, 6), "a\u00e9\u20ac");
  for (const std::size_t bytes_max : {5, 4, 3}) {
    EXPECT_EQ(shortened(text, bytes_max), "a\u00e9");
  }
  EXPECT_EQ(shortened(text, 2), "a");
  EXPECT_EQ(shortened(text, 0), "");
}

TEST(HtmlEscaped, KeepsTextWithinItsElementAndItsQuotes) {
  EXPECT_EQ(
      html_escaped("a<b> & \"c\" 'd'"),
      "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
}

TEST(JsonString, QuotesWhatWouldEndIt) {
  EXPECT_EQ(json_string(""), "\"\"");
  EXPECT_EQ(json_string("h.\"0\"\\\n"), R"("h.\"0\"\\?")");
}

}  // namespace
}  // namespace sherd
