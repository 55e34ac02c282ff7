// SPDX-License-Identifier: Apache-2.0
#include "exchange/sum_thread.h"

#include <gmock/gmock.h>
#include "base/cores.h"
#include "support/error_of.h"

namespace sherd::exchange {
namespace {

EnvironmentLookup saying(const std::string& text) {
  return [text](const char* name) -> std::optional<std::string> {
    return std::string(name) == "SHERD_SUM_THREAD" && !text.empty()
        ? std::optional(text)
        : std::nullopt;
  };
}

TEST(SumThread, NeedsACoreBesideThoseOfOperators) {
  EXPECT_FALSE(
      sums_have_a_thread({.cores = 2, .ranks = 2, .threads = 1}, saying("")));
  EXPECT_FALSE(
      sums_have_a_thread({.cores = 3, .ranks = 2, .threads = 1}, saying("")));
  EXPECT_TRUE(
      sums_have_a_thread({.cores = 4, .ranks = 2, .threads = 1}, saying("")));
  EXPECT_FALSE(sums_have_a_thread(
      {.cores = 16, .ranks = 2, .threads = 8}, saying("auto")));
}

TEST(SumThread, IsThereOrNotAsTheVariableSays) {
  EXPECT_TRUE(
      sums_have_a_thread({.cores = 1, .ranks = 8, .threads = 4}, saying("on")));
  EXPECT_FALSE(sums_have_a_thread(
      {.cores = 64, .ranks = 2, .threads = 1}, saying("off")));
  EXPECT_THAT(
      test::error_of([] { (void)sums_have_a_thread({}, saying("yes")); }),
      testing::HasSubstr(
          "SHERD_SUM_THREAD is \"yes\"; expected auto, on or off"));
}

TEST(SumThread, ThisProcessHasACore) { EXPECT_GE(allowed_cores().size(), 1U); }

}  // namespace
}  // namespace sherd::exchange
