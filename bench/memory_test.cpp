// SPDX-License-Identifier: Apache-2.0
#include "bench/memory.h"

#include <unistd.h>
#include <gtest/gtest.h>

namespace sherd::bench {
namespace {

TEST(Memory, PssIsTheLineOfThatNameInBytes) {
  EXPECT_EQ(
      parse_pss("558c-7ffd ---p 0 0:0 0 [rollup]\nRss:   900 kB\n"
                "Pss:   123 kB\nPss_Dirty:    5 kB\n"),
      123 * 1024);
  EXPECT_EQ(parse_pss("Rss: 900 kB\nPss_Dirty: 5 kB\n"), std::nullopt);
  EXPECT_EQ(parse_pss("Pss: many kB\n"), std::nullopt);
  EXPECT_EQ(parse_pss(""), std::nullopt);
}

TEST(Memory, UseIsReadWhateverTheProcessIsCalled) {
  const auto use =
      parse_usage("7 (a) b) 1 2) S 1 7 7 0 -1 4194304 5678 9 0 0 30 4 1 1 20");
  ASSERT_TRUE(use.has_value());
  EXPECT_EQ(use->faults, 5678);
  EXPECT_EQ(use->ticks, 34);
  EXPECT_FALSE(parse_usage("7 (a) S 1 7 7").has_value());
  EXPECT_FALSE(parse_usage("7 (a) S 1 7 x 0 -1 1 1 1 1 1 1 1").has_value());
  EXPECT_FALSE(parse_usage("").has_value());
}

TEST(Memory, ThisProcessHasSomeAndOneThatIsGoneHasNone) {
  const int self = ::getpid();
  const auto alone = pss_bytes({self});
  EXPECT_GT(alone, 100 * 1024);
  EXPECT_GT(usage_of({self}).faults, 10);
  constexpr int kNobody = 1 << 30;  // Larger than any process id.
  EXPECT_EQ(pss_bytes({kNobody}), 0);
  EXPECT_EQ(usage_of({kNobody}).faults, 0);
}

}  // namespace
}  // namespace sherd::bench
