// SPDX-License-Identifier: Apache-2.0
#include "base/flight_recorder.h"

#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/flight_signal.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

// Each reading is a millisecond later.
class TickingClock final : public Clock {
 public:
  Instant now() const override { return now_ += 1ms; }

 private:
  mutable Instant now_{0};
};

class FlightRecorderTest : public ::testing::Test {
 protected:
  FlightRecorderTest() {
    char pattern[] = "/tmp/sherd-flight-XXXXXX";
    folder_ = ::mkdtemp(pattern);
  }
  ~FlightRecorderTest() override { fs::remove_all(folder_); }

  std::string written() const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/rank-1.json").rdbuf();
    return text.str();
  }
  std::shared_ptr<FlightRecorder> make(std::size_t records_max = 1000) const {
    return std::make_shared<FlightRecorder>(
        FlightOptions{
            .rank = 1,
            .world_size = 2,
            .host = "a",
            .records_max = records_max},
        clock_);
  }

  const TickingClock clock_;
  std::string folder_;
};

TEST_F(FlightRecorderTest, AddsUpWhatItHeardOfAUnit) {
  FlightLog log(make(), "fsdp/0", {0, 1});
  log.name_units({"h.0", "h.1"});
  log.record({.unit = 1, .event = FlightEvent::kAsked});    // At 1 ms.
  log.record({.unit = 1, .event = FlightEvent::kStarted});  // 2
  log.record(
      {.unit = 1,
       .event = FlightEvent::kWaiting,
       .step = FlightStep::kUnshardInForward});              // 3
  log.record({.unit = 1, .event = FlightEvent::kGathered});  // 4
  log.record(
      {.unit = 1,
       .event = FlightEvent::kResumed,
       .step = FlightStep::kUnshardInForward});             // 5
  log.record({.unit = 1, .event = FlightEvent::kPosted});   // 6
  log.record({.event = FlightEvent::kBackwardEnded});       // 7
  log.record({.unit = 1, .event = FlightEvent::kReduced});  // 8
  const auto times = log.unit_times();
  ASSERT_EQ(times.size(), 2U);
  EXPECT_EQ(times[0].gathers, 0);
  EXPECT_EQ(times[1].gathers, 1);
  EXPECT_EQ(times[1].gathering, 2ms);
  EXPECT_EQ(times[1].waited, 2ms);
  EXPECT_EQ(times[1].reduces, 1);
  EXPECT_EQ(times[1].reducing, 2ms);
}

TEST_F(FlightRecorderTest, GathersOfAPartCountForTheWhole) {
  FlightLog whole(make(), "fsdp/0", {0, 1, 2, 3});
  const auto part = whole.part("fsdp/0/replica0", {0, 1});
  whole.name_units({"h.0"});
  part.name_units({"h.0"});
  part.record({.unit = 0, .event = FlightEvent::kStarted});
  part.record({.unit = 0, .event = FlightEvent::kGathered});
  EXPECT_EQ(whole.unit_times().at(0).gathering, 1ms);
  EXPECT_EQ(part.unit_times().at(0).gathering, 1ms);
}

TEST_F(FlightRecorderTest, KeepsTheLastRecordsAndCountsTheOthers) {
  const auto recorder = make(3);
  const FlightLog log(recorder, "fsdp/0", {0, 1});
  for (std::uint64_t sequence = 0; sequence < 5; ++sequence) {
    log.record({.sequence = sequence, .event = FlightEvent::kRequested});
  }
  const auto json = recorder->to_json();
  EXPECT_THAT(json, HasSubstr("\"forgotten\":2"));
  EXPECT_THAT(json, Not(HasSubstr(",-1,1,0]")));
  EXPECT_THAT(json, HasSubstr(",-1,2,0]"));
  EXPECT_THAT(json, HasSubstr(",-1,4,0]"));
}

TEST_F(FlightRecorderTest, AProfileHasRoomForMoreAndBeginsAnew) {
  const auto recorder = make(3);
  const FlightLog log(recorder, "fsdp/0", {0, 1});
  log.record({.sequence = 77});
  EXPECT_FALSE(log.profiling());
  recorder->begin_profile(10);
  EXPECT_TRUE(log.profiling());
  for (std::uint64_t sequence = 0; sequence < 5; ++sequence) {
    log.record({.sequence = sequence});
  }
  const auto json = recorder->to_json();
  EXPECT_THAT(json, Not(HasSubstr(",77,0]")));
  EXPECT_THAT(json, HasSubstr(",-1,0,0]"));
  EXPECT_THAT(json, HasSubstr(",-1,4,0]"));
  recorder->end_profile();
  EXPECT_FALSE(log.profiling());
  EXPECT_THAT(recorder->to_json(), Not(HasSubstr(",-1,1,0]")));
}

TEST_F(FlightRecorderTest, AFailureWritesTheFirstReason) {
  const auto recorder = make();
  recorder->set_folder(folder_ + "/made/when/needed");
  const FlightLog log(recorder, "fsdp/0", {0, 1});
  EXPECT_FALSE(fs::exists(folder_ + "/made"));
  recorder->set_folder(folder_);
  log.fail("rank 0 \"died\"");
  log.fail("another");
  EXPECT_THAT(written(), HasSubstr(R"("reason":"rank 0 \"died\"")"));
  EXPECT_THAT(written(), HasSubstr("\"failed\""));
}

TEST_F(FlightRecorderTest, WithoutAFolderAFailureWritesNothing) {
  const auto recorder = make();
  FlightLog(recorder, "fsdp/0", {0, 1}).fail("rank 0 died");
  EXPECT_TRUE(recorder->write().ok());
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(FlightRecorderTest, WhatAnEarlierRunHasLeftGetsAnotherNameWithTheNext) {
  std::ofstream(folder_ + "/rank-1.json") << "old";
  std::ofstream(folder_ + "/rank-0.json") << "another rank's";
  const auto recorder = make();
  recorder->set_folder(folder_);
  // This run may end in order, and then the old file is the one that somebody wants.
  EXPECT_EQ(written(), "old");
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(recorder->write().ok());
    EXPECT_THAT(written(), HasSubstr("sherd flight record"));
    std::string previous;
    std::ifstream(folder_ + "/rank-1.json.previous") >> previous;
    EXPECT_EQ(previous, "old");
  }
  EXPECT_TRUE(fs::exists(folder_ + "/rank-0.json"));
}

TEST_F(FlightRecorderTest, AFolderThatCannotBeMadeIsNamed) {
  std::ofstream(folder_ + "/file") << "no folder";
  const auto status = make()->write_to(folder_ + "/file");
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(folder_ + "/file/rank-1.json"));
}

TEST_F(FlightRecorderTest, ALogWithoutRecorderRecordsNothing) {
  const FlightLog log;
  log.name_units({"h.0"});
  log.record({.unit = 5});
  log.fail("nobody hears");
  EXPECT_TRUE(log.unit_times().empty());
}

TEST_F(FlightRecorderTest, Sigusr2WritesTheFileAndEndsNothing) {
  const auto recorder = make();
  recorder->set_folder(folder_);
  {
    const FlightSignal signal(recorder);
    ::raise(SIGUSR2);
    const SteadyClock clock;
    const auto deadline = clock.now() + 10s;
    while (written().empty() && clock.now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_THAT(written(), HasSubstr("\"reason\":\"\""));
  }
  ::raise(SIGUSR2);  // This comes late, but does not end the process either.
}

}  // namespace
}  // namespace sherd
