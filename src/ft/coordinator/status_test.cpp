// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/status.h"

#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "ft/coordinator/status_server.h"

namespace sherd::ft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kEvil = "<script>alert(\"1\")</script>";

RunStatus example() {
  RunStatus status;
  status.run = 0xfedcba9876543210;
  status.epoch = {2, 7};
  status.stage = "running";
  status.canonical = {12, {1, 2}};
  status.samples = 144;
  status.steps_per_s = 4.25;
  status.effective = 0.875;
  status.replicas = {
      {.replica = 0,
       .state = "member",
       .held = StateId{12, {1, 2}},
       .activity = "reducing",
       .address = "127.0.0.1:4711",
       .ranks =
           {{.progress = {}, .standing = std::chrono::seconds(5)},
            {.progress =
                 {.activity = Activity::kReducing,
                  .waits_for = 1,
                  .place =
                      RingPosition{
                          .epoch = {},
                          .bucket = 3,
                          .unit = "layers.4",
                          .slices_done = 41,
                          .slices = 96},
                  .rank = 1},
             .standing = std::chrono::milliseconds(6200)}}},
      {.replica = 1,
       .state = "behind",
       .slow = true,
       .lag = 3,
       .address = kEvil}};
  status.failures = {{1.5, "replica 1", kEvil}};
  status.counters = {{"commits", 12}};
  return status;
}

TEST(StatusPage, ShowsReplicasAndFailures) {
  const std::string page = html_of(example());
  EXPECT_THAT(page, HasSubstr("<b>12</b><span>committed step"));
  EXPECT_THAT(page, HasSubstr("87.5 %"));
  EXPECT_THAT(page, HasSubstr("127.0.0.1:4711"));
  EXPECT_THAT(page, HasSubstr("1.5 s ago"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, HasSubstr("http-equiv=\"refresh\""));
}

TEST(StatusPage, ShowsRanksThatWaitForLong) {
  RunStatus status = example();
  EXPECT_THAT(
      html_of(status),
      HasSubstr("Replica 0 rank 1 waits for the bytes of replica 1 in bucket "
                "3 (layers.4), 41 of 96 slices done, since 6.2 s</li>"));
  EXPECT_THAT(html_of(status), Not(HasSubstr("rank 0")));
  status.replicas[0].ranks[1].standing = std::chrono::milliseconds(500);
  EXPECT_THAT(html_of(status), HasSubstr("Nobody."));
}

TEST(StatusPage, WhatOthersSayIsEscaped) {
  RunStatus status = example();
  status.complaint = kEvil;
  status.stage = kEvil;
  status.replicas[0].state = status.replicas[0].activity = kEvil;
  status.failures[0].culprit = kEvil;
  status.replicas[0].ranks[1].progress.place->unit = kEvil;
  const std::string page = html_of(status);
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;alert(&quot;1&quot;)"));
}

TEST(StatusPage, ShowsAComplaint) {
  RunStatus status = example();
  EXPECT_THAT(html_of(status), Not(HasSubstr("class=\"complaint")));
  status.complaint = "the disk is full";
  EXPECT_THAT(html_of(status), HasSubstr("the disk is full"));
}

// The page does not authenticate its readers.
TEST(StatusPage, AndItsOtherFormsShowNothingThatAPeerMustKnow) {
  RunStatus status = example();
  status.canonical.lineage = {0x123456789abcdef0, 0x1122334455667788};
  for (const auto& shown :
       {html_of(status), json_of(status), prometheus_of(status)}) {
    EXPECT_THAT(shown, Not(HasSubstr("fedcba98")));
    EXPECT_THAT(shown, Not(HasSubstr("123456789")));
    EXPECT_THAT(shown, Not(HasSubstr("11223344")));
  }
}

TEST(StatusJson, IsReadByAParser) {
  RunStatus status = example();
  status.failures[0].cause = "\xff not UTF-8";
  const auto json = nlohmann::json::parse(json_of(status));
  EXPECT_EQ(json["run"], run_name(status.run));
  EXPECT_NE(run_name(status.run), run_name(status.run + 1));
  EXPECT_EQ(json["canonical"]["step"], 12);
  EXPECT_EQ(json["effective_training_time"], 0.875);
  EXPECT_EQ(json["replicas"][1]["address"], kEvil);
  EXPECT_TRUE(json["replicas"][1]["held"].is_null());
  EXPECT_EQ(json["counters"]["commits"], 12);
  const auto& rank = json["replicas"][0]["ranks"][1];
  EXPECT_EQ(rank["waits_for"], 1);
  EXPECT_EQ(rank["unit"], "layers.4");
  EXPECT_EQ(rank["slices_done"], 41);
  EXPECT_TRUE(json["replicas"][0]["ranks"][0]["waits_for"].is_null());
  EXPECT_TRUE(json["replicas"][1]["ranks"].empty());
}

TEST(StatusMetrics, AreOneSampleALine) {
  const std::string text = prometheus_of(example());
  EXPECT_THAT(text, HasSubstr("\nsherd_committed_step 12\n"));
  EXPECT_THAT(text, HasSubstr("\nsherd_commits_total 12\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE sherd_commits_total counter\n"));
  EXPECT_THAT(
      text,
      HasSubstr("\nsherd_replica_lag_steps{replica=\"1\",state=\"behind\"} 3"));
  EXPECT_THAT(text, HasSubstr("\nsherd_effective_training_time_ratio 0.875\n"));
}

TEST(StatusMetrics, LabelsAreEscaped) {
  RunStatus status = example();
  status.replicas[0].state = "a\"b\\c\nd";
  EXPECT_THAT(prometheus_of(status), HasSubstr("state=\"a\\\"b\\\\c d\""));
}

TEST(StatusAnswers, DependOnThePath) {
  const RunStatus status = example();
  const auto answer = [&](const char* head) { return answer_to(head, status); };
  EXPECT_THAT(
      answer("GET / HTTP/1.1"),
      StartsWith(
          "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r"));
  EXPECT_THAT(
      answer("GET /metrics HTTP/1.1\r\nHost: x"),
      HasSubstr("\r\nContent-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(
      answer("GET /status.json?x=1 HTTP/1.0"),
      HasSubstr("\r\nContent-Type: application/json\r\n"));
  EXPECT_THAT(
      answer("GET /secret HTTP/1.1"), StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(
      answer("POST / HTTP/1.1"),
      StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"));
  EXPECT_THAT(answer("GET"), StartsWith("HTTP/1.1 400 Bad Request\r\n"));
  EXPECT_THAT(
      answer("\x16\x03\x01 rubbish"),
      StartsWith("HTTP/1.1 400 Bad Request\r\n"));
}

}  // namespace
}  // namespace sherd::ft
