// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sherd/ddp/replicate.h>

namespace sherd::ddp {
namespace {

using ::testing::HasSubstr;

ReplicateReport report_of_two_buckets() {
  ReplicateReport report;
  report.module = "Net \"small\"";
  report.world_size = 2;
  report.parameters = 3;
  report.dtypes = {"Float"};
  report.buckets = {{"head.bias", "head.weight"}, {"first.weight"}};
  report.bucket_bytes = {96, 1024};
  report.bucket_reduce_s = {0.25, 0.5};
  report.backwards = 7;
  report.unused = {"head.bias"};
  report.same_graph = false;
  report.last.overlap_ms = 1.5;
  report.hook = "compress";
  report.hook_bytes = 560;
  return report;
}

TEST(ReplicateReportText, HasALineForEachBucketAndOneForAll) {
  const auto text = to_text(report_of_two_buckets());
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4) << text;
  EXPECT_THAT(
      text, HasSubstr("0                   96           2      0.250\n"));
  EXPECT_THAT(
      text, HasSubstr("all               1120           3      0.750\n"));
}

TEST(ReplicateReportText, WithOneRankNothingIsReduced) {
  auto report = report_of_two_buckets();
  report.bucket_reduce_s.clear();
  EXPECT_THAT(
      to_text(report),
      HasSubstr("all               1120           3      0.000\n"));
}

TEST(ReplicateReportJson, NamesEveryFigure) {
  const auto text = to_json(report_of_two_buckets());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(text);
  for (const auto* name :
       {"rank", "exchange", "threads", "parameter_bytes", "bucket_version",
        "unused_bytes", "ready_order", "joining", "error", "gradient_bytes",
        "reduces", "reduces_under_way_peak", "gradient_slot_bytes_peak"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_EQ(json["module"], "Net \"small\"");
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["parameters"], 3);
  EXPECT_EQ(json["dtypes"].at(0), "Float");
  EXPECT_EQ(json["buckets"].at(0).at(1), "head.weight");
  EXPECT_EQ(json["bucket_bytes"].at(1), 1024);
  EXPECT_DOUBLE_EQ(json["bucket_reduce_s"].at(1), 0.5);
  EXPECT_EQ(json["backwards"], 7);
  EXPECT_EQ(json["unused"].at(0), "head.bias");
  EXPECT_EQ(json["same_graph"], false);
  EXPECT_DOUBLE_EQ(json["last"]["overlap_ms"], 1.5);
  EXPECT_DOUBLE_EQ(json["mean"]["forward_ms"], 0.0);
  EXPECT_EQ(json["hook"], "compress");
  EXPECT_EQ(json["hook_bytes"], 560);
}

}  // namespace
}  // namespace sherd::ddp
