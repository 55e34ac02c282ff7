// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/codec.h"

#include <random>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ft/wire/messages_testing.h"
#include "support/error_of.h"

namespace sherd::ft {
namespace {

using test::RandomMessages;
using ::testing::HasSubstr;

std::uint64_t seed_of_test() {
  const std::uint64_t seed = std::random_device()();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

TEST(Codec, EveryValueComesBack) {
  RandomMessages random(seed_of_test());
  for (int i = 0; i < 2000; ++i) {
    const Report report = random.report();
    const RunView view = random.view();
    const Record record = random.record();
    EXPECT_EQ(report_of(bytes_of(report)).value(), report);
    EXPECT_EQ(run_view_of(bytes_of(view)).value(), view);
    EXPECT_EQ(record_of(bytes_of(record)).value(), record);
  }
}

TEST(Codec, RefusesEveryTruncationAndEveryAddition) {
  RandomMessages random(seed_of_test());
  for (int i = 0; i < 20; ++i) {
    const std::string report = bytes_of(random.report());
    const std::string view = bytes_of(random.view());
    const std::string record = bytes_of(random.record());
    for (std::size_t size = 0; size < report.size(); ++size) {
      EXPECT_FALSE(report_of(report.substr(0, size)).ok()) << size;
    }
    for (std::size_t size = 0; size < view.size(); ++size) {
      EXPECT_FALSE(run_view_of(view.substr(0, size)).ok()) << size;
    }
    for (std::size_t size = 0; size < record.size(); ++size) {
      EXPECT_FALSE(record_of(record.substr(0, size)).ok()) << size;
    }
    EXPECT_FALSE(report_of(report + '\0').ok());
    EXPECT_FALSE(run_view_of(view + '\0').ok());
    EXPECT_FALSE(record_of(record + '\0').ok());
  }
}

TEST(Codec, RandomBytesAreRefusedOrComeBack) {
  RandomMessages random(seed_of_test());
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = bytes_of(random.view());
    for (auto damages = 1 + random.below(4); damages > 0; --damages) {
      bytes[random.below(bytes.size())] = static_cast<char>(random.below(256));
    }
    if (const auto view = run_view_of(bytes); view.ok()) {
      EXPECT_EQ(bytes_of(view.value()), bytes);
    }
    if (const auto record = record_of(bytes); record.ok()) {
      EXPECT_EQ(bytes_of(record.value()), bytes);
    }
    (void)report_of(bytes);
  }
}

TEST(Codec, AnotherVersionIsRefusedNamingBoth) {
  for (const int version : {1, 9}) {
    std::string bytes = bytes_of(Report());
    bytes[0] = static_cast<char>(version);
    EXPECT_THAT(
        report_of(bytes).status().message(),
        HasSubstr(
            "a report: expected version 3, found " + std::to_string(version)));
  }
}

TEST(Codec, AMessageOfAnotherKindIsRefused) {
  EXPECT_FALSE(report_of(bytes_of(RunView())).ok());
  EXPECT_FALSE(run_view_of(bytes_of(Report())).ok());
}

TEST(Codec, AnUnknownKindOfRecordIsRefused) {
  std::string bytes = bytes_of(Record(IncarnationRecord{3, 4}));
  bytes[2] = 5;
  EXPECT_THAT(
      record_of(bytes).status().message(),
      HasSubstr("expected at most 4 as the kind of a record, found 5"));
}

TEST(Codec, AnUnknownStageIsRefused) {
  const RunView view;
  std::string bytes = bytes_of(view);
  // Version, run, term, state, no commits, epoch.
  constexpr std::size_t kStage = 2 + 8 + 8 + 24 + 4 + 16;
  bytes[kStage] = 3;
  EXPECT_THAT(
      run_view_of(bytes).status().message(),
      HasSubstr("expected at most 2 as a stage, found 3"));
}

TEST(Codec, SamplesThatEndBeforeTheyBeginAreRefused) {
  const Record record = EpochRecord{{1, 1}, {}, 0, {{0, 1, {{5, 3}}}}};
  EXPECT_THAT(
      record_of(bytes_of(record)).status().message(),
      HasSubstr("expected samples in order, found [5, 3)"));
}

TEST(Codec, NegativeStepsAreRefused) {
  Report report;
  report.held = StateId{-1, {}};
  EXPECT_THAT(
      report_of(bytes_of(report)).status().message(),
      HasSubstr("expected 0 or more as a step, found -1"));
}

TEST(Codec, ALengthAboveTheLimitIsRefusedBeforeMemoryIsTaken) {
  std::string bytes = bytes_of(RunView());
  // Version, run, term, state.
  constexpr std::size_t kCommits = 2 + 8 + 8 + 24;
  bytes.replace(kCommits, 4, "\xff\xff\xff\xff", 4);
  EXPECT_THAT(
      run_view_of(bytes).status().message(),
      HasSubstr("expected at most 1024 commits, found 4294967295"));
  // Within the limit, but more than there are bytes for.
  bytes.replace(kCommits, 4, std::string("\x00\x04\x00\x00", 4));
  EXPECT_THAT(
      run_view_of(bytes).status().message(),
      HasSubstr("expected 1024 commits of at least 80 bytes each"));
}

TEST(Codec, TheLargestListsComeBack) {
  RunView view;
  view.members.resize(CodecLimits::kMembers);
  view.recent.resize(CodecLimits::kCommits);
  view.members.back().samples.resize(CodecLimits::kRanges);
  EXPECT_EQ(run_view_of(bytes_of(view)).value(), view);
}

TEST(Codec, ListsAboveTheLimitAreNotWritten) {
  RunView view;
  view.members.resize(CodecLimits::kMembers + 1);
  EXPECT_THAT(
      sherd::test::error_of([&] { (void)bytes_of(view); }),
      HasSubstr("expected at most 4096 members, found 4097"));
}

TEST(Codec, AReasonThatIsTooLongIsCut) {
  RunView view;
  view.fenced = std::string(CodecLimits::kTextBytes + 5, 'x');
  EXPECT_EQ(
      run_view_of(bytes_of(view)).value().fenced,
      std::string(CodecLimits::kTextBytes, 'x'));
}

}  // namespace
}  // namespace sherd::ft
