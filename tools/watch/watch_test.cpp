// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "support/error_of.h"
#include "support/scratch_folder.h"
#include "train/run_folder.h"
#include "watch/http_get.h"
#include "watch/metrics_csv.h"
#include "watch/run_files.h"
#include "watch/run_view.h"
#include "watch/status_view.h"

namespace sherd::tools {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A run of `steps` steps, in each of which rank r was busy for busy_s[r].
RunState run_of(std::int64_t steps, const std::vector<double>& busy_s) {
  RunState run{.name = "runs/a", .ranks = "", .steps = 200, .age_s = 1};
  for (std::int64_t step = 1; step <= steps; ++step) {
    StepMetrics record{
        .step = step,
        .loss = 2.5,
        .lr = 1e-3,
        .grad_norm = 0.5,
        .step_s = 0.5,
        .tokens_per_s = 5100,
        .tokens = step * 1000,
        .mfu = 0.25};
    for (const double busy : busy_s) {
      record.ranks.push_back(
          {.step_s = 0.5, .busy_s = busy, .rss_bytes = 412LL << 20});
    }
    run.records.push_back(record);
  }
  return run;
}

std::string view_of(const RunState& run) { return run_view({run}, 80, 1000); }

TEST(RunView, SaysWhereTrainingIs) {
  auto run = run_of(20, {0.4, 0.45});
  run.records[9].val_loss = 2.75;
  EXPECT_EQ(
      view_of(run),
      "runs/a\n"
      "step 20 of 200: running, the last step 1 s ago\n"
      "loss 2.5000   validation 2.7500 (step 10)   rate 0.001   gradient norm "
      "0.5\n"
      "5.1k tokens/s   0.500 s a step   MFU 25.0 %   1:30 left   20.0k tokens "
      "seen\n"
      "\n"
      "    RANK      STEP    STEP TIME        BUSY      MEMORY\n"
      "       0        20      0.500 s     0.400 s     412 MiB\n"
      "       1        20      0.500 s     0.450 s     412 MiB  slowest\n");
}

TEST(RunView, EachOfSeveralReplicasHasTwoLines) {
  auto other = run_of(19, {0.4});
  other.name = "runs/three/replica-1";
  other.ranks = "r1.";
  auto first = run_of(20, {0.4});
  first.ranks = "r0.";
  EXPECT_EQ(
      run_view({first, other}, 80, 1000),
      "a   step 20 of 200: running, the last step 1 s ago\n"
      "  loss 2.5000   5.1k tokens/s   0.500 s a step   MFU 25.0 %   1:30 "
      "left\n"
      "replica-1   step 19 of 200: running, the last step 1 s ago\n"
      "  loss 2.5000   5.1k tokens/s   0.500 s a step   MFU 25.0 %   1:31 "
      "left\n"
      "\n"
      "    RANK      STEP    STEP TIME        BUSY      MEMORY\n"
      "    r0.0        20      0.500 s     0.400 s     412 MiB\n"
      "    r1.0        19      0.500 s     0.400 s     412 MiB\n");
}

TEST(RunView, AStragglerIsBusyForAFifthLongerThanTheOthers) {
  EXPECT_THAT(view_of(run_of(20, {0.3, 0.3, 0.37})), HasSubstr("straggler"));
  EXPECT_THAT(
      view_of(run_of(20, {0.3, 0.3, 0.35})),
      AllOf(HasSubstr("slowest"), Not(HasSubstr("straggler"))));
  EXPECT_THAT(view_of(run_of(20, {0.3})), Not(HasSubstr("slowest")));
  // The median of two others is between them.
  EXPECT_THAT(view_of(run_of(20, {0.1, 0.24, 0.25})), HasSubstr("straggler"));
  // With two ranks there is one other to compare with.
  EXPECT_THAT(view_of(run_of(20, {0.3, 0.4})), HasSubstr("straggler"));
}

TEST(RunView, RanksAreMeansOfTheLastTenStepsOnAsMany) {
  auto run = run_of(20, {0.1, 0.1});
  for (std::size_t i = 10; i < 20; ++i) {
    run.records[i].ranks[1].busy_s = 0.3;
  }
  EXPECT_NEAR(rank_rows(run)[1].mean.busy_s, 0.3, 1e-9);
  // It was restarted on two ranks after this step.
  run.records[15].ranks.resize(1);
  EXPECT_EQ(rank_rows(run).size(), 2U);
  run.records[19].ranks.clear();  // Written by an older sherd.
  EXPECT_TRUE(rank_rows(run).empty());
}

TEST(RunView, SaysClearlyWhenNothingRuns) {
  auto run = run_of(20, {0.1});
  run.age_s = 29;
  EXPECT_THAT(stage_of(run), StartsWith("running"));
  run.age_s = 3600;
  EXPECT_EQ(stage_of(run), "nothing runs, the last step was 1:00:00 ago");
  run.steps = 20;
  EXPECT_EQ(stage_of(run), "finished 1:00:00 ago");
  run.records.clear();
  EXPECT_EQ(stage_of(run), "nothing has been written yet");
  EXPECT_THAT(view_of(run), Not(HasSubstr("RANK")));
  // With longer steps the wait is longer, too.
  run = run_of(20, {0.1});
  run.age_s = 3600;
  for (auto& record : run.records) {
    record.step_s = 600;
  }
  EXPECT_THAT(stage_of(run), StartsWith("running"));
}

TEST(RunView, FitsTheTerminalAndKeepsTheSlowestRank) {
  std::vector<double> busy_s(100, 0.3);
  busy_s[77] = 0.6;
  auto run = run_of(20, busy_s);
  run.name = std::string(200, 'x');
  run.ranks = "r1.";
  const auto text = run_view({run}, 40, 24);
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_LE(line.size(), 40U);
  }
  EXPECT_LE(count, 24);
  EXPECT_THAT(text, AllOf(HasSubstr("r1.77"), HasSubstr("and 99 ranks")));
}

TEST(RunView, ATerminalObeysNothingOfAName) {
  auto run = run_of(1, {0.1});
  run.name = "a\x1b[2Jb";
  EXPECT_THAT(view_of(run), StartsWith("a?[2Jb\n"));
}

TEST(RunFiles, LongLinesOfManyRanksAreRead) {
  const ScratchFolder scratch;
  std::string metrics;
  for (std::int64_t step = 1; step <= 12; ++step) {
    metrics +=
        metrics_line({.step = step, .ranks = std::vector<RankMetrics>(4096)}) +
        "\n";
  }
  scratch.file("config.json", R"({"steps": 20})");
  scratch.file("metrics.jsonl", metrics);
  const auto runs = read_runs(scratch.path());
  ASSERT_EQ(runs.size(), 1U);
  ASSERT_GE(runs[0].records.size(), 10U);
  EXPECT_EQ(runs[0].records.back().step, 12);
}

TEST(RunFiles, StepsThatAreNoNumberAreUnknown) {
  const ScratchFolder scratch;
  for (const char* config : {R"({"steps": "x"})", R"({"stop-at": null})"}) {
    scratch.file("config.json", config);
    EXPECT_EQ(read_runs(scratch.path()).at(0).steps, 0) << config;
  }
}

TEST(RunFiles, WhatCannotBeReadIsNamed) {
  const ScratchFolder scratch;
  const auto file = scratch.file("file", "");
  EXPECT_EQ(
      test::error_of([&] { replicas_in(file); }),
      file + ": expected a run that can be read, found Not a directory");
  const auto config = scratch.path() + "/config.json";
  std::filesystem::create_symlink("config.json", config);
  EXPECT_THAT(
      test::error_of([&] { read_runs(scratch.path()); }),
      StartsWith(config + ": expected a run that can be read"));
}

TEST(MetricsCsv, HasAnEmptyCellForWhatIsMissingAndAllDigits) {
  EXPECT_THAT(csv_header(), StartsWith("step,time,tokens,loss,"));
  EXPECT_EQ(
      csv_line(
          {.step = 1,
           .loss = std::nan(""),
           .lr = 0.1,
           .grad_norm = 2,
           .step_s = 1.0 / 3,
           .tokens_per_s = 8,
           .rss_bytes = 9,
           .time = 1.5,
           .tokens = 7}),
      "1,1.5,7,,,0.1,2,,,0.3333333333333333,8,,9\n");
}

TEST(MetricsCsv, HasTheScaleOfTheLossAndWhetherTheStepWasSkipped) {
  EXPECT_THAT(csv_header(), HasSubstr(",grad_norm,loss_scale,skipped,step_s,"));
  EXPECT_EQ(
      csv_line(
          {.step = 1'000'000,
           .loss_scale = 65536,
           .skipped = true,
           .tokens = 12'000'000'000}),
      "1000000,0,12000000000,0,,0,0,65536,1,0,0,,0\n");
}

// What a coordinator reports about two replicas, one of which waits.
nlohmann::json status() {
  const nlohmann::json waiting = {
      {"activity", "reduces"},
      {"since_s", 3.2},
      {"quiet_s", 0.0},
      {"waits_for", 0},
      {"does", "waits for replica 0"}};
  const auto replica = [&](int number, bool slow) {
    return nlohmann::json{{"replica", number}, {"state", "member"},
                          {"slow", slow},      {"held", {{"step", 340}}},
                          {"lag", 0},          {"activity", "reduces"},
                          {"since_s", 75.0},   {"ranks", {waiting}}};
  };
  return {
      {"complaint", ""},
      {"epoch", {{"term", 1}, {"number", 3}}},
      {"stage", "running"},
      {"canonical", {{"step", 340}}},
      {"samples", 40800},
      {"since_commit_s", 0.4},
      {"steps_per_s", 2.1},
      {"effective_training_time", 0.982},
      {"replicas", {replica(0, true), replica(1, false)}},
      {"failures",
       {{{"ago_s", 12.0}, {"culprit", "replica 1"}, {"cause", "killed"}}}}};
}

TEST(StatusView, ShowsReplicasWhoWaitsAndFailures) {
  EXPECT_EQ(
      status_view(status().dump(), "127.0.0.1:80", 80),
      "coordinator 127.0.0.1:80\n"
      "step 340 committed: running, epoch 1.3\n"
      "2.10 steps/s   last commit 0:00 ago   40.8k samples   98.2 % effective\n"
      "\n"
      " REPLICA  STATE            SINCE      STEP   LAG  DOES\n"
      "       0  member, slow      1:15       340     0  reduces\n"
      "       1  member            1:15       340     0  reduces\n"
      "replica 0 rank 0 waits for replica 0, since 0:03\n"
      "replica 1 rank 0 waits for replica 0, since 0:03\n"
      "failure 0:12 ago: replica 1: killed\n");
}

TEST(StatusView, AReplicaThatHasEndedDoesNothing) {
  for (const std::string state : {"left", "done", "lost"}) {
    auto json = status();
    json["replicas"][1]["state"] = state;
    const auto text = status_view(json.dump(), "127.0.0.1:80", 80);
    EXPECT_THAT(text, HasSubstr("340     0  reduces\n"));
    EXPECT_THAT(text, HasSubstr("340     0  -\n"));
  }
}

TEST(StatusView, SaysClearlyWhenNothingRuns) {
  auto json = status();
  json["replicas"] = nlohmann::json::array();
  json["complaint"] = "the log's disk is full";
  EXPECT_THAT(
      status_view(json.dump(), "a:1", 80),
      AllOf(
          HasSubstr("it decides nothing: the log's disk is full\n"),
          HasSubstr("nothing runs: no replica has connected\n")));
}

TEST(StatusView, AnotherTextIsRefused) {
  for (const std::string text : {"", "{}", "[1]", "<html>\x1b[2J"}) {
    try {
      status_view(text, "a:1", 80);
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& error) {
      EXPECT_THAT(
          error.what(),
          AllOf(
              StartsWith("a:1: expected the status of a coordinator, found '"),
              Not(HasSubstr("\x1b"))));
    }
  }
}

TEST(HttpGet, TheBodyIsWhatFollowsTheHead) {
  EXPECT_EQ(
      http_body("HTTP/1.1 200 OK\r\nA: b\r\n\r\n{\r\n\r\n}", "a:1"),
      "{\r\n\r\n}");
}

TEST(HttpGet, OtherAnswersAreRefused) {
  for (const std::string answer :
       {"", "HTTP/1.1 404 Not Found\r\n\r\nnone", "HTTP/1.1 200 OK\r\n",
        "SSH-2.0-OpenSSH\r\n", "HTTP/1.1 2000 x\r\n\r\n"}) {
    try {
      http_body(answer, "a:1");
      ADD_FAILURE() << "accepted " << answer;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith("a:1: expected the status page"));
    }
  }
}

TEST(HttpGet, AnAddressThatNobodyAnswersIsNamed) {
  // Port 1 of this host: below 1024 only configured services listen.
  for (const std::string address : {"127.0.0.1:1", "[::1]:1", "127.0.0.1:x"}) {
    try {
      http_get(address, "/");
      ADD_FAILURE() << "answered " << address;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), StartsWith(address + ": expected the status"));
    }
  }
  EXPECT_THROW(http_get("nowhere", "/"), Error);
}

}  // namespace
}  // namespace sherd::tools
