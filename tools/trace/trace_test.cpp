// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <set>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "support/scratch_folder.h"
#include "trace/chrome_trace.h"
#include "trace/compare_ranks.h"
#include "trace/flight_file.h"

namespace sherd::tools {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::int32_t kLayer0 = 0;
constexpr std::int32_t kLayer1 = 1;

// One rank of three that share one exchange of two units. Each event is 1 us after the one before.
class RankEvents {
 public:
  explicit RankEvents(int rank, std::string host = "here") {
    file_.rank = rank;
    file_.world_size = 3;
    file_.host = std::move(host);
    file_.groups = {
        {.name = "fsdp/0", .ranks = {0, 1, 2}, .units = {"h.0", "h.1"}}};
  }
  RankEvents& add(FlightRecord event) {
    event.time_ns = now_ns_ += 1000;
    file_.events.push_back(event);
    file_.monotonic_ns = now_ns_;
    return *this;
  }
  RankEvents& wants(
      std::uint64_t sequence, FlightStep step, std::int32_t unit = -1) {
    return add(
        {.sequence = sequence,
         .unit = unit,
         .event = FlightEvent::kRequested,
         .step = step});
  }
  RankEvents& agreed(std::uint64_t sequence) {
    return add({.sequence = sequence, .event = FlightEvent::kAgreed});
  }
  RankEvents& of(FlightEvent event, std::int32_t unit = -1) {
    return add({.unit = unit, .event = event});
  }
  RankEvents& failed(const std::string& reason) {
    file_.reason = reason;
    return of(FlightEvent::kFailed);
  }
  RankEvents& later_by(std::int64_t ns) {
    now_ns_ += ns;
    return *this;
  }
  // The rank writes its file that long after its last event.
  RankEvents& writes(std::int64_t later_ns) {
    file_.monotonic_ns = now_ns_ + later_ns;
    return *this;
  }
  operator FlightFile() const { return file_; }  // NOLINT: reads as the file.

 private:
  FlightFile file_;
  std::int64_t now_ns_ = 0;
};

std::vector<std::string> differences_of(const std::vector<FlightFile>& files) {
  std::vector<std::string> texts;
  for (const auto& difference : compare_ranks(files)) {
    texts.push_back(difference.text);
  }
  return texts;
}

RankEvents begun(int rank) {
  return RankEvents(rank)
      .wants(0, FlightStep::kBeginStep)
      .wants(1, FlightStep::kUnshardInForward, kLayer0);
}

// ---- comparing ranks ----

TEST(CompareRanks, FindsNothingWhereAllWantTheSame) {
  EXPECT_THAT(differences_of({begun(0), begun(1), begun(2)}), IsEmpty());
}

TEST(CompareRanks, NamesTheFirstUnitThatOneRankWantsAlone) {
  EXPECT_THAT(
      differences_of(
          {begun(0).wants(2, FlightStep::kUnshardInForward, kLayer0),
           begun(1).wants(2, FlightStep::kUnshardInForward, kLayer0),
           begun(2).wants(2, FlightStep::kUnshardInForward, kLayer1)}),
      ElementsAre(
          "at request 2 rank 2 wants to unshard h.1 in forward, ranks 0 and 1 "
          "want to unshard h.0 in forward"));
}

TEST(CompareRanks, NamesTheRankThatHasNotComeToAStep) {
  EXPECT_THAT(
      differences_of(
          {begun(0).wants(2, FlightStep::kEndBackward), begun(1).writes(5000),
           begun(2).wants(2, FlightStep::kEndBackward)}),
      ElementsAre(
          "rank 1 has not come to request 2, where ranks 0 and 2 want to end "
          "the backward"));
}

// SIGUSR2 to a healthy job: rank 1 wrote its file while the others went on.
TEST(CompareRanks, ARankThatWroteItsFileBeforeTheOthersIsNotBehind) {
  const auto ahead = [](int rank) {
    return begun(rank)
        .wants(2, FlightStep::kEndBackward)
        .wants(1, FlightStep::kPublish);
  };
  const std::vector<FlightFile> healthy = {ahead(0), begun(1), ahead(2)};
  EXPECT_THAT(differences_of(healthy), IsEmpty());
  EXPECT_THAT(comparison_text(healthy), HasSubstr("agree in every request"));
  // One that has failed does not come any more.
  EXPECT_THAT(
      differences_of({ahead(0), begun(1).failed("out of memory"), ahead(2)}),
      SizeIs(2));
}

// SIGUSR2 to a job that hangs: the others wrote theirs again when their deadline had passed.
TEST(CompareRanks, ARankThatHangsIsBehindThoseThatFailLater) {
  const auto fails = [](int rank) {
    return begun(rank)
        .wants(2, FlightStep::kEndBackward)
        .later_by(60'000'000'000)
        .failed("rank 1 did not answer");
  };
  EXPECT_THAT(
      differences_of({fails(0), begun(1).writes(5000), fails(2)}),
      ElementsAre(
          "rank 1 has not come to request 2, where ranks 0 and 2 want to end "
          "the backward"));
}

TEST(CompareRanks, RanksMayDifferInsideABackward) {
  EXPECT_THAT(
      differences_of(
          {begun(0).wants(2, FlightStep::kUnshardInBackward, kLayer0),
           begun(1).wants(2, FlightStep::kUnshardInBackward, kLayer1),
           begun(2).wants(2, FlightStep::kEndBackward)}),
      IsEmpty());
}

TEST(CompareRanks, ARankInForwardDiffersFromOnesInBackward) {
  EXPECT_THAT(
      differences_of(
          {begun(0).wants(2, FlightStep::kUnshardInBackward, kLayer0),
           begun(1).wants(2, FlightStep::kUnshardInForward, kLayer0),
           begun(2).wants(2, FlightStep::kUnshardInBackward, kLayer0)}),
      SizeIs(1));
}

TEST(CompareRanks, WhatARankHasForgottenIsNoDifference) {
  EXPECT_THAT(
      differences_of(
          {begun(0),
           RankEvents(1).wants(1, FlightStep::kUnshardInForward, kLayer0),
           begun(2)}),
      IsEmpty());
}

TEST(CompareRanks, ARankThatHasForgottenItsPublishMayBeAhead) {
  FlightFile ahead = begun(1);
  ahead.forgotten = 500;
  EXPECT_THAT(
      differences_of(
          {begun(0).wants(1, FlightStep::kPublish), ahead,
           begun(2).wants(1, FlightStep::kPublish)}),
      IsEmpty());
}

TEST(CompareRanks, PublishesCountByThemselves) {
  EXPECT_THAT(
      differences_of(
          {begun(0).wants(1, FlightStep::kPublish), begun(1).writes(5000),
           begun(2).wants(1, FlightStep::kPublish)}),
      ElementsAre("rank 1 has not come to request 1, where ranks 0 and 2 want "
                  "to publish"));
}

TEST(CompareRanks, TheTextNamesRanksWithoutFileAndWhatOthersWaitFor) {
  const std::vector<FlightFile> files = {
      begun(0)
          .add(
              {.unit = kLayer1,
               .event = FlightEvent::kWaiting,
               .step = FlightStep::kUnshardInForward})
          .later_by(2'000'000'000)
          .failed("rank 1 died"),
      begun(2).of(FlightEvent::kPosted, kLayer0)};
  EXPECT_THAT(
      comparison_text(files),
      AllOf(
          HasSubstr("rank 1 has left no file"),
          HasSubstr("rank 0: waits to unshard h.1 in forward, for 2.000 s\n"
                    "    failed: rank 1 died"),
          HasSubstr("rank 2: posted h.0, 0.000 s before it wrote this")));
}

// ---- clocks ----

TEST(CompareRanks, VeryManyRanksWithoutFileAreCounted) {
  std::vector<FlightFile> files(1);
  files[0].world_size = 1'000'000;
  EXPECT_THAT(
      comparison_text(files),
      AllOf(
          HasSubstr("rank 64 has left no file"),
          Not(HasSubstr("rank 65 has left no file")),
          HasSubstr("so have 999935 ranks more")));
}

TEST(AlignClocks, HostsMeetWhereTheirRanksEndedTheSameSteps) {
  constexpr std::int64_t kApart = 5'000'000'000;
  const auto steps = [](RankEvents events) {
    for (std::uint64_t sequence = 0; sequence < 5; ++sequence) {
      events.agreed(sequence);
    }
    return events;
  };
  std::vector<FlightFile> files = {
      steps(RankEvents(0, "a")), steps(RankEvents(1, "b").later_by(kApart)),
      steps(RankEvents(2, "b").later_by(kApart + 300))};
  align_clocks(files);
  EXPECT_EQ(files[0].events[2].time_ns, files[1].events[2].time_ns);
  // Events of one host keep their distances.
  EXPECT_EQ(files[2].events[2].time_ns, files[1].events[2].time_ns + 300);
}

TEST(AlignClocks, HostsWithoutACommonStepMeetByTheTimeOfDay) {
  FlightFile a = RankEvents(0, "a").of(FlightEvent::kPosted, kLayer0);
  FlightFile b = RankEvents(1, "b").of(FlightEvent::kPosted, kLayer0);
  a.unix_ns = 1'000'000;
  b.unix_ns = 1'000'700;
  std::vector<FlightFile> files = {a, b};
  align_clocks(files);
  EXPECT_EQ(files[1].monotonic_ns, files[0].monotonic_ns + 700);
}

// ---- the trace ----

// One step: layers 0 and 1 in forward and backward, one wait, one optimizer step.
RankEvents step_of(int rank) {
  return RankEvents(rank)
      .add({.bytes = 64, .unit = kLayer0, .event = FlightEvent::kAsked})
      .of(FlightEvent::kStarted, kLayer0)
      .add(
          {.unit = kLayer0,
           .event = FlightEvent::kVisited,
           .step = FlightStep::kForward})
      .add(
          {.unit = kLayer0,
           .event = FlightEvent::kWaiting,
           .step = FlightStep::kUnshardInForward})
      .of(FlightEvent::kGathered, kLayer0)
      .add(
          {.unit = kLayer0,
           .event = FlightEvent::kResumed,
           .step = FlightStep::kUnshardInForward})
      .add(
          {.unit = kLayer1,
           .event = FlightEvent::kVisited,
           .step = FlightStep::kBackward})
      .of(FlightEvent::kPosted, kLayer1)
      .of(FlightEvent::kPosted, kLayer0)
      .of(FlightEvent::kReduced, kLayer1)
      .of(FlightEvent::kReduced, kLayer0)
      .of(FlightEvent::kBackwardEnded)
      .of(FlightEvent::kPublished);
}

std::vector<std::string> spans_in(
    TraceSpan::Lane lane, const FlightFile& file) {
  std::vector<std::string> texts;
  for (const auto& span : trace_spans(file)) {
    if (span.lane == lane) {
      texts.push_back(
          span.name + " " + std::to_string(span.begin_ns / 1000) + "-" +
          std::to_string(span.end_ns / 1000));
    }
  }
  return texts;
}

TEST(TraceSpans, OneStepFillsAllLanes) {
  const FlightFile file = step_of(0);
  EXPECT_THAT(
      spans_in(TraceSpan::Lane::kCompute, file),
      ElementsAre("forward h.0 3-4", "forward h.0 6-7", "backward h.1 7-12"));
  EXPECT_THAT(
      spans_in(TraceSpan::Lane::kUnshard, file), ElementsAre("h.0 2-5"));
  EXPECT_THAT(
      spans_in(TraceSpan::Lane::kReduce, file),
      ElementsAre("h.1 8-10", "h.0 9-11"));
  EXPECT_THAT(
      spans_in(TraceSpan::Lane::kOptimizer, file),
      ElementsAre("optimizer 12-13"));
  EXPECT_THAT(
      spans_in(TraceSpan::Lane::kWait, file),
      ElementsAre("unshard h.0 in forward 4-6"));
}

TEST(TraceSpans, WhatBeganBeforeTheFirstEventIsLeftOut) {
  EXPECT_THAT(
      trace_spans(RankEvents(0)
                      .of(FlightEvent::kGathered, kLayer0)
                      .of(FlightEvent::kReduced, kLayer0)
                      .of(FlightEvent::kResumed)
                      .of(FlightEvent::kPublished)),
      IsEmpty());
}

TEST(TraceSpans, AMicroBatchAfterABackwardIsNoOptimizer) {
  EXPECT_THAT(
      spans_in(
          TraceSpan::Lane::kOptimizer,
          RankEvents(0)
              .of(FlightEvent::kBackwardEnded)
              .of(FlightEvent::kVisited, kLayer0)
              .of(FlightEvent::kPublished)),
      IsEmpty());
}

TEST(ChromeTrace, HasEveryRankWithEveryLaneAndSpansThatDoNotOverlap) {
  const auto json = nlohmann::json::parse(chrome_trace(
      std::vector<FlightFile>{step_of(0), step_of(1).failed("why \"so\"")}));
  std::set<std::pair<int, std::string>> lanes;
  std::map<std::pair<int, int>, double> ended;
  for (const auto& event : json.at("traceEvents")) {
    const int pid = event.at("pid");
    if (event.at("name") == "thread_name") {
      lanes.emplace(pid, event.at("args").at("name"));
    }
    if (event.at("ph") == "X") {
      const double begin = event.at("ts");
      auto& end = ended[{pid, event.at("tid").get<int>()}];
      EXPECT_GE(begin, end) << event;
      end = begin + event.at("dur").get<double>();
    }
  }
  for (const int rank : {0, 1}) {
    for (const auto* lane :
         {"compute", "unshard", "reduce", "reduce 2", "optimizer", "wait"}) {
      EXPECT_TRUE(lanes.contains({rank, lane})) << rank << " " << lane;
    }
  }
  EXPECT_EQ(lanes.size(), 12U);
  EXPECT_THAT(json.dump(), HasSubstr(R"("reason":"why \"so\"")"));
  EXPECT_THAT(json.dump(), HasSubstr(R"("bytes":64)"));
}

// ---- files ----

std::string error_of_file(const std::string& text) {
  try {
    parse_flight_file(text, "rank-0.json");
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string recorded(
    const FlightOptions& options = {
        .rank = 2, .world_size = 3, .host = "a b"}) {
  static const SteadyClock clock;
  const auto recorder = std::make_shared<FlightRecorder>(options, clock);
  const FlightLog log(recorder, "fsdp/0", {0, 1, 2});
  log.name_units({"h.0", "h.1"});
  log.record(
      {.sequence = 7,
       .bytes = 5,
       .unit = 1,
       .event = FlightEvent::kRequested,
       .step = FlightStep::kUnshardInBackward});
  log.fail("rank 1 died");
  return recorder->to_json();
}

TEST(FlightFile, IsReadAsItWasRecorded) {
  const auto file = parse_flight_file(recorded(), "rank-2.json");
  EXPECT_EQ(file.rank, 2);
  EXPECT_EQ(file.world_size, 3);
  EXPECT_EQ(file.host, "a b");
  EXPECT_EQ(file.reason, "rank 1 died");
  ASSERT_THAT(file.events, SizeIs(2));
  EXPECT_EQ(file.events[0].sequence, 7U);
  EXPECT_EQ(file.events[0].bytes, 5);
  EXPECT_EQ(subject_of(file, file.events[0]), "unshard h.1 in backward");
  EXPECT_EQ(file.events[1].event, FlightEvent::kFailed);
}

TEST(FlightFile, EveryPrefixIsRefused) {
  const auto text = recorded();
  for (std::size_t size = 0; size + 2 < text.size(); size += 7) {
    EXPECT_THAT(
        error_of_file(text.substr(0, size)),
        AllOf(HasSubstr("rank-0.json: expected"), HasSubstr("found")))
        << size;
  }
}

TEST(FlightFile, AFolderOfReplicasIsToldFromAnEmptyOne) {
  const testing::ScratchFolder scratch;
  const auto refusal = [&] {
    try {
      read_flight_folder(scratch.path());
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal(), ::testing::EndsWith("found none in it"));
  scratch.file("replica-0/rank-0.json", recorded());
  scratch.file("replica-1/rank-0.json", recorded());
  EXPECT_THAT(
      refusal(),
      HasSubstr(
          "found none in it, but folders of replicas: replica-0, replica-1; "
          "name one of them"));
}

TEST(FlightFile, OnlyThoseOfTheRunThatWroteLastAreOfOneFailure) {
  const testing::ScratchFolder scratch;
  for (const int rank : {0, 1, 2, 3}) {
    scratch.file(
        "rank-" + std::to_string(rank) + ".json",
        recorded({.rank = rank, .world_size = 4, .run = "first"}));
  }
  EXPECT_THAT(read_flight_folder(scratch.path()), SizeIs(4));
  // A rank of the second run was killed.
  scratch.file(
      "rank-1.json", recorded({.rank = 1, .world_size = 2, .run = "second"}));
  const auto files = read_flight_folder(scratch.path());
  ASSERT_THAT(files, SizeIs(1));
  EXPECT_EQ(files[0].rank, 1);
  EXPECT_EQ(files[0].world_size, 2);
}

TEST(FlightFile, ForeignFilesAreRefusedByWhatTheyAre) {
  EXPECT_THAT(error_of_file("{}"), HasSubstr("another format"));
  EXPECT_THAT(error_of_file("[1]"), HasSubstr("another format"));
  auto json = nlohmann::json::parse(recorded());
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    auto changed = json;
    changed[nlohmann::json::json_pointer(pointer)] = value;
    return error_of_file(changed.dump());
  };
  EXPECT_THAT(with("/version", 2), HasSubstr("version 2 instead of 1"));
  EXPECT_THAT(with("/rank", 3), HasSubstr("rank 3 of 3"));
  EXPECT_THAT(with("/world_size", 2'000'000'000), HasSubstr("of 2000000000"));
  EXPECT_THAT(with("/events/0/1", "eaten"), HasSubstr("the event"));
  EXPECT_THAT(with("/events/0/3", 1), HasSubstr("no known exchange or unit"));
  EXPECT_THAT(with("/events/0/4", 2), HasSubstr("no known exchange or unit"));
  EXPECT_THAT(with("/events/0/0", "noon"), Not(IsEmpty()));
}

}  // namespace
}  // namespace sherd::tools
