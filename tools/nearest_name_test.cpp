// SPDX-License-Identifier: Apache-2.0
#include "nearest_name.h"

#include <string>
#include <vector>
#include <gtest/gtest.h>

namespace sherd::tools {
namespace {

TEST(NearestName, TheDistanceCountsCharactersThatDiffer) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("steps", "setps"), 2U);
  EXPECT_EQ(edit_distance("--layer", "--layers"), 1U);
}

TEST(NearestName, SuggestsOnlyWhatCanBeMeant) {
  const std::vector<std::string> names = {"--lr", "--layers", "--steps"};
  EXPECT_EQ(suggestion("--layer", names), " (did you mean --layers?)");
  EXPECT_EQ(suggestion("--setps", names), " (did you mean --steps?)");
  EXPECT_EQ(suggestion("--learning-rate", names), "");
  EXPECT_EQ(suggestion("--x", {}), "");
}

}  // namespace
}  // namespace sherd::tools
