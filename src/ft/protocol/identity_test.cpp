// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/identity.h"

#include <limits>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include "support/error_of.h"

namespace sherd::ft {
namespace {

using ::testing::HasSubstr;

TEST(StateName, SaysAllOfTheIdentity) {
  EXPECT_EQ(
      name_of({12, {0x0123456789abcdefU, 7}}),
      "step 12 of 0123456789abcdef0000000000000007");
  constexpr auto kMax = std::numeric_limits<std::uint64_t>::max();
  for (const StateId state :
       {StateId{}, StateId{1, {kMax, 0}},
        StateId{std::numeric_limits<std::int64_t>::max(), {1, kMax}}}) {
    EXPECT_EQ(state_named(name_of(state)), state);
  }
}

TEST(StateName, OtherTextsAreRefused) {
  const std::string lineage = "0123456789abcdef0000000000000007";
  for (const std::string& bad : std::vector<std::string>{
           "", "step", "step 12 of " + lineage + "0",
           "step 12 of " + lineage.substr(1),
           "step 12 of X" + lineage.substr(1), "step -1 of " + lineage,
           "step 012 of " + lineage, "step  of " + lineage,
           "step 99999999999999999999 of " + lineage,
           "step 12 of 0123456789ABCDEF0000000000000007",
           "Step 12 of " + lineage, " of " + lineage}) {
    EXPECT_THAT(
        test::error_of([&] { (void)state_named(bad); }),
        HasSubstr("expected the name of a state"))
        << bad;
  }
}

}  // namespace
}  // namespace sherd::ft
