// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/record_codec.h"

#include <random>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ft/wire/messages_testing.h"

namespace sherd::ft {
namespace {

using test::RandomMessages;
using ::testing::HasSubstr;

std::uint64_t seed_of_records() {
  const std::uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

TEST(RecordCodec, EveryRecordComesBack) {
  RandomMessages random(seed_of_records());
  for (int i = 0; i < 2000; ++i) {
    const auto before = random.members();
    Record record = random.record();
    if (auto* commit = std::get_if<CommitRecord>(&record);
        commit != nullptr && random.coin()) {
      commit->participants = before;
    }
    EXPECT_EQ(record_of(bytes_of(record, before), before).value(), record);
  }
}

TEST(RecordCodec, RefusesEveryTruncationAndEveryAddition) {
  RandomMessages random(seed_of_records());
  for (int i = 0; i < 20; ++i) {
    const auto before = random.members();
    const std::string bytes = bytes_of(random.record(), before);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(record_of(bytes.substr(0, size), before).ok()) << size;
    }
    EXPECT_FALSE(record_of(bytes + '\0', before).ok());
  }
}

TEST(RecordCodec, AnotherVersionIsRefusedNamingBoth) {
  std::string bytes = bytes_of(TermRecord{1, 2}, {});
  bytes[0] = 9;
  EXPECT_THAT(
      record_of(bytes, {}).status().message(),
      HasSubstr("a record: expected version 2 to 5, found 9"));
}

// The records of version 4 have not changed since.
TEST(RecordCodec, RecordsOfVersion4AreRead) {
  RandomMessages random(seed_of_records());
  for (int i = 0; i < 200; ++i) {
    const auto before = random.members();
    const Record record = random.record();
    std::string bytes = bytes_of(record, before);
    bytes[0] = 4;
    EXPECT_EQ(record_of(bytes, before).value(), record);
  }
}

TEST(RecordCodec, AnUnknownKindOfRecordIsRefused) {
  std::string bytes = bytes_of(IncarnationRecord{3, 4}, {});
  bytes[2] = 6;
  EXPECT_THAT(
      record_of(bytes, {}).status().message(),
      HasSubstr("expected at most 5 as the kind of a record, found 6"));
}

TEST(RecordCodec, SamplesThatEndBeforeTheyBeginAreRefused) {
  const Record record = EpochRecord{{1, 1}, {}, 0, {{0, 1, {{5, 3}}}}};
  EXPECT_THAT(
      record_of(bytes_of(record, {}), {}).status().message(),
      HasSubstr("expected samples in order, found [5, 3)"));
}

// Each member trains 8 samples a step, after a gap that a lost member has left.
std::vector<Member> many_members(std::size_t count, std::int64_t first) {
  SampleSet taken;
  taken.add({0, first});
  taken.add({first + 12, first + 20});
  std::vector<Member> members;
  for (std::size_t i = 0; i < count; ++i) {
    const auto samples = taken.lowest_free(8);
    taken.add(samples);
    members.push_back({static_cast<ReplicaId>(i), 1000 + i, samples});
  }
  return members;
}

TEST(RecordCodec, ACommitOfManyMembersIsAsShortAsOneOfFew) {
  const auto before = many_members(1000, 0);
  CommitRecord record;
  record.participants = before;
  record.next = many_members(1000, 8000);
  const auto bytes = bytes_of(record, before);
  EXPECT_LT(bytes.size(), 300U);
  EXPECT_EQ(record_of(bytes, before).value(), Record(record));
}

TEST(RecordCodec, SamplesThatDoNotFitTheirMembersAreRefused) {
  const std::vector<Member> before = {{0, 1, {{0, 8}}}, {1, 1, {{8, 16}}}};
  CommitRecord record;
  record.participants = record.next = before;
  const auto bytes = bytes_of(record, before);
  EXPECT_THAT(
      record_of(bytes, {before[0]}).status().message(),
      HasSubstr("expected the samples of 1 members, found 2"));
}

TEST(RecordCodec, AHistoryInTwoComesBack) {
  RandomMessages random(seed_of_records());
  History history;
  history.term = 3;
  history.run = 77;
  history.config = 9;
  history.lives[4] = {50, {10, 20}};
  history.epoch = {3, 5};
  history.canonical = random.state();
  history.members = random.members();
  history.consumed.add({0, 100});
  const auto commit = random.commit();
  history.lost[commit.result] = {commit.result, commit, {{3, 7}}};
  EXPECT_EQ(summary_of(bytes_of_summary(history)).value(), history);
  PastPiece piece;
  piece.before.add({5, 9});
  piece.states = {{random.state(), {}, {}}, {commit.result, commit, {{1, 2}}}};
  EXPECT_EQ(past_piece_of(bytes_of(piece)).value(), piece);
}

}  // namespace
}  // namespace sherd::ft
