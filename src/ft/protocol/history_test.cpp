// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/history.h"

#include <gmock/gmock.h>
#include "support/error_of.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const StateId kFirst{0, first_lineage(1, 2)};

// The next step of all members in `history`, with these samples.
CommitRecord commit_of(const History& history, SampleRange samples) {
  CommitRecord record;
  record.participants = {{3, 30, {samples}}};
  record.commit.gradients = 99;
  record.commit.samples = samples.size();
  record.commit.base = *history.canonical;
  record.commit.attempt = {history.epoch, record.commit.base.step + 1};
  record.commit.result = result_of(record);
  return record;
}

History after_two_commits() {
  History history;
  append(history, TermRecord{4, 7});
  append(history, EpochRecord{{4, 1}, kFirst, 9, {}});
  append(history, commit_of(history, {0, 8}));
  append(history, commit_of(history, {8, 16}));
  return history;
}

TEST(History, IsTheFoldOfItsRecords) {
  const auto history = after_two_commits();
  EXPECT_EQ(history.term, 4U);
  EXPECT_EQ(history.epoch, (Epoch{4, 1}));
  EXPECT_EQ(history.canonical->step, 2);
  EXPECT_EQ(history.commit()->result, *history.canonical);
  EXPECT_THAT(history.consumed.ranges(), ElementsAre(SampleRange{0, 16}));
  EXPECT_EQ(history.past.size(), 3U);
}

TEST(History, SamplesThatAreLeftOutAreTakenAndPartOfTheLineage) {
  auto history = after_two_commits();
  auto record = commit_of(history, {16, 24});
  const auto without = record.commit.result;
  record.participants.push_back({4, 40, {}, {{24, 32}}});
  EXPECT_THAT(
      sherd::test::error_of([&] { append(history, record); }),
      HasSubstr("expected a commit of"));
  record.commit.result = result_of(record);
  EXPECT_NE(record.commit.result, without);
  append(history, record);
  EXPECT_EQ(history.commit()->samples, 8);
  EXPECT_THAT(history.consumed.ranges(), ElementsAre(SampleRange{0, 32}));
  // They are free again when the step is gone.
  append(
      history,
      RollbackRecord{{4, 2}, *history.canonical, history.past[2].state});
  EXPECT_THAT(history.consumed.ranges(), ElementsAre(SampleRange{0, 16}));
}

TEST(History, ARollbackGivesSamplesBack) {
  auto history = after_two_commits();
  const auto lost = *history.canonical;
  const auto to = history.past[1].state;
  append(history, RollbackRecord{{4, 2}, lost, to});
  EXPECT_EQ(history.canonical, to);
  EXPECT_EQ(history.commit()->result, to);
  EXPECT_THAT(history.consumed.ranges(), ElementsAre(SampleRange{0, 8}));
  append(history, EpochRecord{{4, 3}, to, 9, {}});
  append(history, commit_of(history, {8, 16}));
  // It is the same step with the same samples, but another state.
  EXPECT_EQ(history.canonical->step, lost.step);
  EXPECT_NE(*history.canonical, lost);
}

TEST(History, KnowsWhatWasCommittedAndWhatWasRolledBack) {
  auto history = after_two_commits();
  const auto lost = *history.canonical;
  append(history, RollbackRecord{{4, 2}, lost, kFirst});
  EXPECT_TRUE(history.on_chain(kFirst));
  EXPECT_FALSE(history.on_chain(lost));
  EXPECT_TRUE(history.knows(lost));
  EXPECT_FALSE(history.knows(StateId{2, {1, 1}}));
  EXPECT_TRUE(history.recent(8).empty());
}

TEST(History, ReturnsToWhatWasRolledBack) {
  const auto before = after_two_commits();
  auto history = before;
  const auto lost = *history.canonical;
  append(history, RollbackRecord{{4, 2}, lost, kFirst});
  append(history, EpochRecord{{4, 3}, kFirst, 9, {}});
  append(history, commit_of(history, {0, 4}));
  const auto other = *history.canonical;
  append(history, RollbackRecord{{4, 4}, other, lost});
  EXPECT_EQ(history.canonical, lost);
  EXPECT_EQ(history.past, before.past);
  EXPECT_EQ(history.consumed, before.consumed);
  EXPECT_TRUE(history.knows(other));
}

TEST(History, ForgetsTheOldestStatesAndNotTheirSamples) {
  auto history = after_two_commits();
  append(history, commit_of(history, {16, 24}));
  const auto all = history;
  trim(history, 2);
  EXPECT_EQ(history.past.size(), 2U);
  EXPECT_FALSE(history.knows(kFirst));
  EXPECT_TRUE(history.knows(all.past[2].state));
  EXPECT_EQ(history.consumed, all.consumed);
  append(
      history,
      RollbackRecord{{4, 2}, *history.canonical, history.past[0].state});
  EXPECT_THAT(history.consumed.ranges(), ElementsAre(SampleRange{0, 16}));
}

TEST(History, ForgetsWhatWasRolledBackWithWhatItCameFrom) {
  auto history = after_two_commits();
  const auto lost = *history.canonical;
  append(history, RollbackRecord{{4, 2}, lost, history.past[1].state});
  append(history, EpochRecord{{4, 3}, *history.canonical, 9, {}});
  append(history, commit_of(history, {8, 12}));
  append(history, commit_of(history, {12, 16}));
  EXPECT_TRUE(history.knows(lost));
  trim(history, 2);
  EXPECT_FALSE(history.knows(lost));
  EXPECT_TRUE(history.lost.empty());
}

TEST(History, TellsTheLastCommitsInOrder) {
  const auto history = after_two_commits();
  EXPECT_EQ(history.recent(8).size(), 2U);
  EXPECT_EQ(history.recent(8).front().base, kFirst);
  EXPECT_EQ(history.recent(1).front().result, *history.canonical);
}

TEST(History, ANewLifeEndsTheOneBefore) {
  History history;
  append(history, TermRecord{1, 7});
  append(history, IncarnationRecord{3, 30});
  append(history, IncarnationRecord{3, 31});
  EXPECT_EQ(history.lives.at(3).current, 31U);
  EXPECT_TRUE(history.lives.at(3).former.contains(30));
  EXPECT_THAT(
      test::error_of([&] { append(history, IncarnationRecord{3, 30}); }),
      HasSubstr("expected a new life of replica 3, found 30"));
}

// What after_two_commits() has led to, from its second state on.
RecoveryRecord recovery_record() {
  const auto lost = after_two_commits();
  RecoveryRecord record;
  record.config = lost.config;
  record.epoch = lost.epoch;
  record.members = {{3, 30, {{16, 24}}}};
  record.lives = {{3, 30}, {4, 40}};
  record.given_up = {{2, {7, 7}}};
  record.first = lost.commit()->base;
  record.commits = {*lost.commit()};
  record.consumed = lost.consumed;
  return record;
}

TEST(History, GoesOnWithARunWhoseLogIsLost) {
  History history;
  append(history, TermRecord{1, 8});  // The run never began.
  append(history, IncarnationRecord{4, 41});
  append(history, TermRecord{5, 7});
  append(history, recovery_record());
  EXPECT_EQ(history.lives.at(3).current, 30U);
  EXPECT_EQ(history.lives.at(4).current, 41U);
  EXPECT_TRUE(history.lives.at(4).former.contains(40));
  EXPECT_TRUE(history.knows({2, {7, 7}}));
  EXPECT_FALSE(history.can_go_to({2, {7, 7}}));
  append(history, commit_of(history, {16, 24}));
  EXPECT_EQ(history.canonical->step, 3);
  EXPECT_EQ(history.consumed.size(), 24);
  EXPECT_EQ(history.recent(8).size(), 2U);
  append(history, EpochRecord{{5, 2}, *history.canonical, 9, {}});
  // Which of the first steps took which samples is not known.
  const auto first = recovery_record().first;
  append(history, RollbackRecord{{5, 3}, *history.canonical, first});
  EXPECT_EQ(history.canonical, first);
  EXPECT_EQ(history.consumed.size(), 16);
}

TEST(History, RefusesARecoveryThatCannotFollow) {
  const auto refused = [](std::uint64_t term, const RecoveryRecord& record) {
    History history;
    append(history, TermRecord{term, 7});
    return test::error_of([&] { append(history, record); });
  };
  EXPECT_THAT(
      refused(4, recovery_record()), HasSubstr("in a term above that of"));
  auto gap = recovery_record();
  gap.first = kFirst;
  EXPECT_THAT(refused(5, gap), HasSubstr("expected a commit of step 0"));
  auto later = after_two_commits();
  append(later, TermRecord{5, 7});
  EXPECT_THAT(
      test::error_of([&] { append(later, recovery_record()); }),
      HasSubstr("expected a recovery at its beginning"));
}

TEST(History, RefusesWhatCannotFollow) {
  const auto refused = [](const auto& record) {
    auto history = after_two_commits();
    return test::error_of([&] { append(history, record); });
  };
  EXPECT_THAT(refused(TermRecord{4, 7}), HasSubstr("expected a term above 4"));
  EXPECT_THAT(refused(TermRecord{5, 8}), HasSubstr("expected a term of run 7"));
  EXPECT_THAT(
      refused(EpochRecord{{4, 1}, kFirst, 9, {}}),
      HasSubstr("above epoch 4.1, found epoch 4.1"));
  EXPECT_THAT(
      refused(EpochRecord{{5, 2}, kFirst, 9, {}}),
      HasSubstr("expected an epoch of term 4"));
  EXPECT_THAT(
      refused(EpochRecord{{4, 2}, kFirst, 9, {}}),
      HasSubstr("expected epoch 4.2 to begin at step 2"));
  const auto history = after_two_commits();
  EXPECT_THAT(
      refused(commit_of(history, {15, 17})), HasSubstr("samples 15 to 17"));
  auto other_epoch = commit_of(history, {16, 17});
  other_epoch.commit.attempt.epoch = {4, 0};
  EXPECT_THAT(
      refused(other_epoch), HasSubstr("expected a commit of epoch 4.1"));
  auto other_sum = commit_of(history, {16, 17});
  other_sum.commit.gradients = 98;
  EXPECT_THAT(refused(other_sum), HasSubstr("expected a commit of epoch 4.1"));
  EXPECT_THAT(
      refused(RollbackRecord{{4, 2}, kFirst, kFirst}),
      HasSubstr("expected a rollback of the last commit to another one"));
}

}  // namespace
}  // namespace sherd::ft
