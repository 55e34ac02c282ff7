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

TEST(Memory, ThisProcessHasSomeAndOneThatIsGoneHasNone) {
  const int self = ::getpid();
  const auto alone = pss_bytes({self});
  EXPECT_GT(alone, 100 * 1024);
  constexpr int kNobody = 1 << 30;  // Larger than any process id.
  EXPECT_EQ(pss_bytes({kNobody}), 0);
}

}  // namespace
}  // namespace sherd::bench
