// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/codec.h"

#include <random>
#include <string>
#include <utility>
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
    EXPECT_EQ(report_of(bytes_of(report)).value(), report);
    EXPECT_EQ(run_view_of(bytes_of(view)).value(), view);
  }
}

TEST(Codec, RefusesEveryTruncationAndEveryAddition) {
  RandomMessages random(seed_of_test());
  for (int i = 0; i < 20; ++i) {
    const std::string report = bytes_of(random.report());
    const std::string view = bytes_of(random.view());
    for (std::size_t size = 0; size < report.size(); ++size) {
      EXPECT_FALSE(report_of(report.substr(0, size)).ok()) << size;
    }
    for (std::size_t size = 0; size < view.size(); ++size) {
      EXPECT_FALSE(run_view_of(view.substr(0, size)).ok()) << size;
    }
    EXPECT_FALSE(report_of(report + '\0').ok());
    EXPECT_FALSE(run_view_of(view + '\0').ok());
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
      EXPECT_EQ(run_view_of(bytes_of(view.value())).value(), view.value());
    }
    (void)report_of(bytes);
  }
}

// ---- versions ----

TEST(Codec, AnotherVersionIsRefusedNamingBoth) {
  for (const int version : {1, 9}) {
    std::string bytes = bytes_of(Report());
    EXPECT_EQ(other_version(bytes), std::nullopt);
    bytes[0] = static_cast<char>(version);
    EXPECT_EQ(other_version(bytes), version);
    EXPECT_THAT(
        report_of(bytes).status().message(),
        HasSubstr(
            "a report: expected version 6, found " + std::to_string(version)));
  }
}

// Written as by a later version that knows one more part.
TEST(Codec, PartsOfLaterVersionsAreSkipped) {
  RandomMessages random(seed_of_test());
  const Report report = random.report();
  const RunView view = random.view();
  constexpr std::size_t kMaskEnd = 2 + 4 + 4;
  for (auto [bytes, is_report] :
       {std::pair(bytes_of(report), true), std::pair(bytes_of(view), false)}) {
    bytes[kMaskEnd - 1] = '\x40';
    bytes += "something new";
    if (is_report) {
      EXPECT_EQ(report_of(bytes).value(), report);
    } else {
      EXPECT_EQ(run_view_of(bytes).value(), view);
    }
  }
}

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// Recorded bytes of version 6: a change to them would break replicas that run.
TEST(Codec, BytesOfThisVersionAreReadForEver) {
  Report report;
  report.run = 7;
  report.replica = 2;
  report.incarnation = 9;
  report.held = StateId{5, {1, 2}};
  report.addresses = {{"h", 3, 4}};
  const std::string kept =
      "060001000000ff0f00000700000000000000020000000900000000000000000000000000"
      "0000"
      "0000000000000000"
      "010500000000000000010000000000000002000000000000000000000000000000"
      "0000000000000000"
      "000000000000"
      "010000000100000068"
      "00000000000000000000000000000000"
      "0100000003000400"
      "0000000000000000000000000000"
      "0000000000000000000000000000";
  EXPECT_EQ(bytes_of(report), bytes_of_hex(kept));
  EXPECT_EQ(report_of(bytes_of_hex(kept)).value(), report);
}

// Recorded bytes of parts added since.
TEST(Codec, BytesOfWhatIsRememberedAreReadForEver) {
  Report report;
  RunView memory;
  memory.run = 7;
  memory.term = 2;
  memory.canonical = {5, {1, 2}};
  memory.epoch = {2, 3};
  memory.stage = EpochStage::kRunning;
  memory.members = {{0, 9, {{8, 16}}}};
  memory.starts = 3;
  memory.lives = {{0, 9}};
  memory.consumed.add({0, 8});
  report.remembers = memory;
  const std::string kept =
      "0107000000000000000200000000000000"
      "050000000000000001000000000000000200000000000000"
      "0200000000000000030000000000000001"
      "030000000000000001000000000000000900000000000000"
      "0100000000000000000000000800000000000000"
      "00000000"
      "010000000000000009000000000000000101000000080000000000000010000000000000"
      "000100000001000000080000000000000000"
      "00";
  const auto bytes = bytes_of(report);
  EXPECT_EQ(bytes.substr(bytes.size() - kept.size() / 2), bytes_of_hex(kept));
  EXPECT_EQ(report_of(bytes).value(), report);
}

// Written as by an earlier version: without all replicas ever in the run and without the taken
// samples.
TEST(Codec, AViewWithoutItsLaterPartsIsRead) {
  RunView view;
  view.run = 7;
  std::string bytes = bytes_of(view);
  constexpr std::size_t kMask = 2 + 4;
  constexpr std::size_t kLaterParts = (8 + 4) + 4 + 1;
  ASSERT_EQ(bytes.substr(kMask, 2), "\xff\x1f");
  bytes[kMask + 1] = '\x03';
  bytes.resize(bytes.size() - kLaterParts);
  EXPECT_EQ(run_view_of(bytes).value(), view);
}

// A report uses all bits that a view has, so only the frame's type tells them apart.
TEST(Codec, AMessageOfAnotherKindIsRefused) {
  EXPECT_FALSE(report_of(bytes_of(RunView())).ok());
}

TEST(Codec, AnUnknownStageIsRefused) {
  const RunView view;
  std::string bytes = bytes_of(view);
  // Version, number, parts, run, term, state, no commits, epoch.
  constexpr std::size_t kStage = 2 + 4 + 4 + 8 + 8 + 24 + 8 + 16;
  bytes[kStage] = 3;
  EXPECT_THAT(
      run_view_of(bytes).status().message(),
      HasSubstr("expected at most 2 as a stage, found 3"));
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
  // Version, number, parts, run, term, state, how many commits stay.
  constexpr std::size_t kCommits = 2 + 4 + 4 + 8 + 8 + 24 + 4;
  bytes.replace(kCommits, 4, "\xff\xff\xff\xff", 4);
  EXPECT_THAT(
      run_view_of(bytes).status().message(),
      HasSubstr("expected at most 1024 commits, found 4294967295"));
  // The count is within its limit, but there are not enough bytes for it.
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

// ---- texts ----

// It clears the screen of a terminal.
const std::string kBad = "a\x1b[2J\nb";
const std::string kGood = "a?[2J?b";

TEST(Codec, TextsOfAReportAreMadeFitForATerminal) {
  Report report;
  report.suspicion = Suspicion{{1, 1}, 2, kBad};
  report.bad_gradients = BadGradients{{}, {}, {kBad, false}};
  report.addresses = {{"h", 1, 2}, {kBad, 3, 4}};
  report.progress.place.emplace();
  report.progress.place->unit = kBad;
  report.ranks = {{}, report.progress};
  const Report clean = report_of(bytes_of(report)).value();
  EXPECT_EQ(clean.suspicion->reason, kGood);
  EXPECT_EQ(clean.suspicion->accused, 2U);
  EXPECT_EQ(clean.bad_gradients->fault.reason, kGood);
  EXPECT_EQ(clean.addresses[0].host, "h");
  EXPECT_EQ(clean.addresses[1].host, kGood);
  EXPECT_EQ(clean.progress.place->unit, kGood);
  EXPECT_EQ(clean.ranks[1].place->unit, kGood);
}

TEST(Codec, TextsOfAnOrderAreMadeFitForATerminal) {
  RunView view;
  view.fenced = kBad;
  view.peers = {{1, 1, {}, {{kBad, 1, 2}}}};
  const RunView clean = run_view_of(bytes_of(view)).value();
  EXPECT_EQ(clean.fenced, kGood);
  EXPECT_EQ(clean.peers[0].addresses[0].host, kGood);
}

TEST(Codec, TextsThatAreTooLongAreCut) {
  RunView view;
  view.fenced = std::string(CodecLimits::kTextBytes + 5, 'x');
  EXPECT_EQ(
      run_view_of(bytes_of(view)).value().fenced,
      std::string(kShownBytesMax, 'x'));
}

}  // namespace
}  // namespace sherd::ft
