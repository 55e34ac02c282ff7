// SPDX-License-Identifier: Apache-2.0
#include "bench/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace sherd::bench {
namespace {

using ::testing::HasSubstr;

CollectiveTimes times_of(const std::string& contender, double ms) {
  return {
      .operation = "all_reduce",
      .dtype = "fp32",
      .bytes = 65536,
      .contender = contender,
      .round_ms = std::vector<double>(7, ms)};
}

// In bf16 every whole number up to 256 is exact.
TEST(Collectives, CheckedSumsOf64RanksAreExactInBf16) {
  int sum = 0;
  for (int rank = 0; rank < 64; ++rank) {
    EXPECT_GE(checked_value(rank), 1);  // A rank that is missing is noticed.
    sum += checked_value(rank);
  }
  EXPECT_LE(sum, 256);
}

TEST(Collectives, ALineSaysAllThereIs) {
  const auto times = times_of("shm", 0.25);

  const auto found = parse_reply<CollectiveTimes>(line_of(times));

  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->operation, "all_reduce");
  EXPECT_EQ(found->dtype, "fp32");
  EXPECT_EQ(found->bytes, 65536);
  EXPECT_EQ(found->contender, "shm");
  EXPECT_EQ(found->round_ms, times.round_ms);
}

TEST(Collectives, OtherLinesAreNone) {
  for (const char* line :
       {"", "bench: ready", "bench: {}",
        R"(bench: {"operation":"a","dtype":"b","bytes":1,"contender":"shm"})",
        R"(bench: {"operation":"a","dtype":"b","bytes":0,"contender":"shm",)"
        R"("round_ms":[1]})",
        R"(bench: {"operation":"a","dtype":"b","bytes":1,"contender":"shm",)"
        R"("round_ms":["1"]})",
        R"(bench: {"operation":"a","dtype":"b","bytes":1,"contender":"shm",)"
        R"("round_ms":[-1]})"}) {
    EXPECT_FALSE(parse_reply<CollectiveTimes>(line).has_value()) << line;
  }
}

TEST(Collectives, ReportsComparePartsOfTheOthersTime) {
  const std::vector<CollectiveTimes> all = {
      times_of("shm", 0.5), times_of("gloo", 2.0), times_of("memcpy", 0.25)};

  const std::string table = table_of(2, all, {});
  const auto json = nlohmann::json::parse(json_of(2, all, {}));

  EXPECT_THAT(table, HasSubstr("64 KiB"));
  EXPECT_THAT(table, HasSubstr("4.00 (4.00-4.00)"));
  const auto& found = json["cases"].at(0);
  EXPECT_EQ(found["of_gloo"], 0.25);
  EXPECT_EQ(found["of_gloo_low"], 0.25);
  EXPECT_EQ(found["of_memcpy"], 2.0);
  EXPECT_EQ(found["shm_ms"], 0.5);
}

}  // namespace
}  // namespace sherd::bench
