// SPDX-License-Identifier: Apache-2.0
#include "train/run_folder.h"

#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "support/error_of.h"
#include "support/scratch_folder.h"

namespace sherd::tools {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string file_text(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string folder_refusal(const std::string& path) {
  try {
    const RunFolder folder(path, "{}");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RunFolder, MakesTheFoldersAndWritesTheConfig) {
  const ScratchFolder scratch;
  const RunFolder folder(scratch.path() + "/a/b", "{\"x\": 1}\n");
  EXPECT_EQ(file_text(folder.path() + "/config.json"), "{\"x\": 1}\n");
}

TEST(RunFolder, ARunThatGoesOnKeepsItsStepsUpToThere) {
  const ScratchFolder scratch;
  const auto path = scratch.path() + "/run";
  {
    RunFolder folder(path, "{}");
    for (std::int64_t step = 1; step <= 4; ++step) {
      folder.add({.step = step, .loss = 1.0 / static_cast<double>(step)});
    }
    std::ofstream(path + "/metrics.jsonl", std::ios::app) << "{\"step\": 5, ";
  }
  std::filesystem::create_hard_link(
      path + "/metrics.jsonl", path + "/the same file");
  RunFolder folder(path, "{\"again\": 1}", 2);
  EXPECT_EQ(
      file_text(path + "/metrics.jsonl"), file_text(path + "/the same file"))
      << "a long one is cut and not written again";
  ASSERT_EQ(folder.records().size(), 2U);
  EXPECT_EQ(folder.records()[1].loss, 0.5);
  folder.add({.step = 3, .loss = 7});
  EXPECT_EQ(RunFolder(path, "{}", 9).records().size(), 3U);
}

TEST(RunFolder, ARunGoesOnBehindDamagedLinesAndNamesTheirFile) {
  const ScratchFolder scratch;
  const auto path = scratch.path() + "/run";
  RunFolder(path, "{}").add({.step = 1});
  std::ofstream(path + "/metrics.jsonl", std::ios::app)
      << std::string(3, '\0') << "\n"
      << metrics_line({.step = 2}) << "\n";
  ::testing::internal::CaptureStderr();
  RunFolder(path, "{}", 9).add({.step = 3});
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr(
          "metrics.jsonl: expected lines of metrics, found 1 others, which"));
  EXPECT_EQ(
      file_text(path + "/metrics.jsonl"),
      metrics_line({.step = 1}) + "\n" + metrics_line({.step = 2}) + "\n" +
          metrics_line({.step = 3}) + "\n");
}

// As a replica does whose last steps were lost.
TEST(RunFolder, KeepsTheLaterLinesOfStepsThatWereMadeTwice) {
  const ScratchFolder scratch;
  const auto path = scratch.path() + "/run";
  {
    RunFolder folder(path, "{}");
    for (const std::int64_t step : {1, 2, 3, 2, 3}) {
      folder.add({.step = step});
    }
  }
  (void)RunFolder(path, "{}", 2);
  std::vector<std::int64_t> steps;
  for (const auto& record : read_metrics(path + "/metrics.jsonl")) {
    steps.push_back(record.step);
  }
  EXPECT_THAT(steps, ElementsAre(1, 2, 2));
}

TEST(RunFolder, KeepsStepsInMemoryWithoutTheirRanks) {
  const ScratchFolder scratch;
  const auto path = scratch.path() + "/run";
  {
    RunFolder folder(path, "{}");
    folder.add({.step = 1, .loss = 2, .ranks = {{.step_s = 1}}});
    EXPECT_TRUE(folder.records()[0].ranks.empty());
  }
  EXPECT_EQ(read_metrics(path + "/metrics.jsonl")[0].ranks.size(), 1U);
  const RunFolder again(path, "{}", 1);
  EXPECT_EQ(again.records()[0].loss, 2);
  EXPECT_TRUE(again.records()[0].ranks.empty());
}

TEST(RunFolder, IsMadeAgainIfItWasMoved) {
  const ScratchFolder scratch;
  const auto path = scratch.path() + "/run";
  RunFolder folder(path, "{\"x\": 1}");
  folder.add({.step = 1, .loss = 0.5});
  folder.add({.step = 2});
  std::filesystem::rename(path, scratch.path() + "/moved");
  folder.add({.step = 3});
  folder.add({.step = 4});
  EXPECT_EQ(file_text(path + "/config.json"), "{\"x\": 1}");
  EXPECT_TRUE(std::filesystem::exists(path + "/tensorboard"));
  const auto steps_in = [](const std::string& file) {
    std::vector<std::int64_t> steps;
    for (const auto& record : read_metrics(file)) {
      steps.push_back(record.step);
    }
    return steps;
  };
  EXPECT_THAT(steps_in(path + "/metrics.jsonl"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(
      steps_in(scratch.path() + "/moved/metrics.jsonl"), ElementsAre(1, 2));
  // A file that was replaced, as editors do, is left as it is.
  std::filesystem::rename(path + "/metrics.jsonl", path + "/old");
  std::ofstream(path + "/metrics.jsonl") << metrics_line({.step = 4}) << "\n";
  folder.add({.step = 5});
  EXPECT_THAT(steps_in(path + "/metrics.jsonl"), ElementsAre(4, 5));
}

TEST(RunFolder, EachStepIsALineOfJsonThatIsThereAtOnce) {
  const ScratchFolder scratch;
  RunFolder folder(scratch.path() + "/run", "{}");
  folder.add({.step = 1, .loss = 5.5, .lr = 0.1, .rss_bytes = 7});
  folder.add({.step = 2, .loss = 1.0 / 3, .val_loss = 4.25});

  std::istringstream lines(file_text(folder.path() + "/metrics.jsonl"));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first["step"], 1);
  EXPECT_EQ(first["loss"], 5.5);
  EXPECT_EQ(first["rss_bytes"], 7);
  EXPECT_FALSE(first.contains("val_loss"));
  ASSERT_TRUE(std::getline(lines, line));
  auto second = nlohmann::json::parse(line);
  EXPECT_EQ(second["loss"].get<double>(), 1.0 / 3);  // With every digit.
  EXPECT_EQ(second["val_loss"], 4.25);
  EXPECT_FALSE(std::getline(lines, line));
  EXPECT_EQ(folder.records().size(), 2U);
}

TEST(RunFolder, WhatIsWrittenOfAStepIsReadBack) {
  const StepMetrics record{
      .step = 3,
      .loss = 1.0 / 3,
      .val_loss = 0.25,
      .lr = 1e-4,
      .grad_norm = 0.7,
      .loss_scale = 65536,
      .skipped = true,
      .step_s = 0.125,
      .tokens_per_s = 1024,
      .rss_bytes = 1 << 20,
      .time = 1'700'000'000.125,
      .tokens = 384,
      .mfu = 0.25,
      .ranks = {{.step_s = 0.125, .busy_s = 0.1, .rss_bytes = 1 << 20}, {}}};
  const auto line = metrics_line(record);
  EXPECT_EQ(metrics_line(parse_metrics_line(line, "path")), line);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["time"], 1'700'000'000.125);
  EXPECT_EQ(json["tokens"], 384);
  EXPECT_EQ(json["mfu"], 0.25);
  EXPECT_EQ(json["loss_scale"], 65536);
  EXPECT_EQ(json["skipped"], true);
  EXPECT_EQ(json["ranks"][0]["busy_s"], 0.1);
  EXPECT_EQ(json["ranks"][1]["rss_bytes"], 0);
  EXPECT_TRUE(nlohmann::json::parse(metrics_line({}))["mfu"].is_null());
}

TEST(RunFolder, ALossThatIsNoNumberAndAnOldLineAreRead) {
  auto line = metrics_line({.step = 3, .loss = std::nan("")});
  EXPECT_TRUE(std::isnan(parse_metrics_line(line, "path").loss));
  line = R"({"step":1,"loss":2.5,"lr":0.1,"grad_norm":1,"step_s":1,)"
         R"("tokens_per_s":8,"rss_bytes":9})";
  const auto record = parse_metrics_line(line, "path");
  EXPECT_EQ(record.loss, 2.5);
  EXPECT_EQ(record.tokens, 0);
  EXPECT_FALSE(record.mfu.has_value());
}

TEST(RunFolder, MetricsAreReadFromTheirEndWithoutHalfALine) {
  const ScratchFolder scratch;
  std::string text;
  for (std::int64_t step = 1; step <= 100; ++step) {
    text += metrics_line({.step = step}) + "\n";
  }
  const auto path = scratch.file("metrics.jsonl", text + "{\"step\": 101, \"");
  EXPECT_EQ(read_metrics(path).size(), 100U);
  const auto bytes = static_cast<std::int64_t>(text.size()) / 10;
  const auto some = read_metrics(path, bytes);
  EXPECT_GE(some.size(), 8U);
  EXPECT_LE(some.size(), 10U);
  EXPECT_EQ(some.back().step, 100);
  EXPECT_TRUE(read_metrics(scratch.file("empty", "")).empty());
}

TEST(RunFolder, MetricsThatAreNoneAreNamed) {
  const ScratchFolder scratch;
  const auto broken = scratch.file(
      "metrics.jsonl", "{\"step\": 1, \"lo\n" + metrics_line({}) + "\n");
  for (const auto& path : {broken, scratch.path() + "/missing"}) {
    try {
      read_metrics(path);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(path), HasSubstr("expected")));
    }
  }
}

TEST(RunFolder, WritingReplacesTheWholeFile) {
  const ScratchFolder scratch;
  RunFolder folder(scratch.path() + "/run", "{}");
  folder.write("curve.html", "a long first version");
  folder.write("curve.html", "short");
  EXPECT_EQ(file_text(folder.path() + "/curve.html"), "short");
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    files += entry.exists() ? 1 : 0;
  }
  EXPECT_EQ(files, 4);  // No temporary file is left.
}

TEST(RunFolder, AnotherRunIsNotOverwritten) {
  const ScratchFolder scratch;
  const auto path = scratch.path() + "/run";
  {
    const RunFolder first(path, "{}");
  }
  EXPECT_THAT(
      folder_refusal(path),
      AllOf(HasSubstr(path), HasSubstr("found metrics.jsonl of another run")));
}

TEST(RunFolder, TheSameRunMayBeginAgainAndItsMetricsAreSetAside) {
  const ScratchFolder scratch;
  const auto path = scratch.path() + "/run";
  EXPECT_EQ(set_aside_metrics(path, "{}"), "");
  for (const std::string end : {".1", ".2"}) {
    RunFolder(path, "{}").add({.step = 1});
    EXPECT_EQ(set_aside_metrics(path, "{\"seed\": 1}"), "");
    const auto whole = file_text(path + "/metrics.jsonl");
    const auto aside = path + "/metrics.jsonl" + end;
    EXPECT_EQ(set_aside_metrics(path, "{}"), aside);
    EXPECT_EQ(file_text(aside), whole);
  }
  EXPECT_EQ(folder_refusal(path), "accepted");
  EXPECT_EQ(set_aside_metrics(path, "{}"), "") << "there are none";
  EXPECT_EQ(folder_refusal(path), "accepted");
}

TEST(RunFolder, MetricsThatAreStillWrittenAreNotSetAside) {
  const ScratchFolder scratch;
  const auto path = scratch.path() + "/run";
  {
    RunFolder folder(path, "{}");
    folder.add({.step = 1});
    EXPECT_THAT(
        test::error_of([&] { set_aside_metrics(path, "{}"); }),
        StartsWith(
            path +
            "/metrics.jsonl: expected metrics of a run that has ended, "
            "found "));
    folder.add({.step = 2});
    EXPECT_EQ(read_metrics(path + "/metrics.jsonl").size(), 2U);
  }
  EXPECT_NE(set_aside_metrics(path, "{}"), "");
}

TEST(RunFolder, ARunIsTheSameWithOtherRanksAndPaths) {
  const auto described = [](auto... changes) {
    nlohmann::json config = {
        {"seed", 0}, {"data", "text"}, {"quiet", false}, {"rope-theta", 100.0}};
    config["about"] = {
        {"corpus_hash", "7"},
        {"corpus_path", "text"},
        {"init_from", ""},
        {"world_size", "1"}};
    (config.merge_patch(changes), ...);
    return config.dump();
  };
  using Json = nlohmann::json;
  const ScratchFolder scratch;
  const auto path = scratch.path() + "/run";
  for (const auto& other :
       {Json{{"seed", 1}}, Json{{"rope-theta", 10000.0}},
        Json{{"about", {{"corpus_hash", "8"}}}},
        Json{{"about", {{"init_from", "base"}}}}}) {
    RunFolder(path, described()).add({.step = 1});
    EXPECT_EQ(set_aside_metrics(path, described(other)), "") << other;
    EXPECT_NE(
        set_aside_metrics(
            path,
            described(
                Json{{"data", "/text"}, {"quiet", true}},
                Json{{"init-from", "/base"}},
                Json{
                    {"about",
                     {{"corpus_path", "/text"}, {"world_size", "2"}}}})),
        "");
  }
}

TEST(RunFolder, AFolderThatCannotBeWrittenIsNamed) {
  const ScratchFolder scratch;
  const auto file = scratch.file("file", "");
  EXPECT_THAT(
      folder_refusal(file + "/run"),
      AllOf(HasSubstr(file), HasSubstr("expected a folder")));
  EXPECT_THAT(
      folder_refusal("/proc/run"),
      AllOf(HasSubstr("/proc/run"), HasSubstr("can be written")));
}

TEST(RunFolder, NewNamesAreTimesAndNeverTaken) {
  const ScratchFolder scratch;
  const auto runs = scratch.path() + "/runs";
  const auto first = make_run_folder(runs, 1'700'000'000);
  EXPECT_THAT(first, StartsWith(runs + "/2023111"));
  // Nothing has been written to it yet.
  EXPECT_EQ(make_run_folder(runs, 1'700'000'000), first + "-2");
  EXPECT_TRUE(std::filesystem::is_directory(first + "-2"));
  const auto file = scratch.file("file", "");
  EXPECT_THAT(
      folder_refusal(make_run_folder(file, 1'700'000'000)),
      HasSubstr("expected a folder that can be written"));
}

// Files of this process cannot grow any more, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_ = {};
};

TEST(RunFolder, AFullDiskEndsNothingAndLosesNoLine) {
  const ScratchFolder scratch;
  const auto path = scratch.path() + "/run";
  RunFolder folder(path, "{}");
  for (std::int64_t step = 1; step <= 10; ++step) {  // The warning fits, too.
    folder.add({.step = step});
  }
  const auto whole = file_text(path + "/metrics.jsonl");
  ::testing::internal::CaptureStderr();
  {
    const FullDisk full(whole.size() + 10);  // Room for a part of a line.
    folder.add({.step = 11});
    folder.add({.step = 12});
    folder.write("curve.html", std::string(100'000, 'x'));
    EXPECT_EQ(file_text(path + "/metrics.jsonl"), whole);
  }
  const auto warning = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      warning,
      AllOf(
          HasSubstr("metrics.jsonl: expected room for one more line, found"),
          HasSubstr("training goes on")));
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
  folder.add({.step = 13});
  folder.write("curve.html", "x");
  EXPECT_EQ(file_text(path + "/curve.html"), "x");
  const RunFolder again(path, "{}", 20);
  ASSERT_EQ(again.records().size(), 13U);
  EXPECT_EQ(again.records()[10].step, 11);
}

}  // namespace
}  // namespace sherd::tools
