// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/history.h"

#include <gmock/gmock.h>
#include "support/error_of.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const StateId kFirst{0, first_lineage(1, 2)};

// The next step of everybody in `history`, of these samples.
CommitRecord commit_of(const History& history, SampleRange samples) {
  const std::vector<Participant> participants = {{3, 30, {samples}}};
  CommitRecord record;
  record.participants = participants;
  record.gradients = 99;
  record.commit.base = *history.canonical;
  record.commit.attempt = {history.epoch, record.commit.base.step + 1};
  record.commit.result = {
      record.commit.attempt.step,
      next_lineage(
          record.commit.base.lineage, record.commit.attempt, participants, 99)};
  return record;
}

History after_two_commits() {
  History history;
  append(history, TermRecord{4});
  append(history, EpochRecord{{4, 1}, kFirst, {}});
  append(history, commit_of(history, {0, 8}));
  append(history, commit_of(history, {8, 16}));
  return history;
}

TEST(History, IsTheFoldOfItsRecords) {
  const auto history = after_two_commits();
  EXPECT_EQ(history.term, 4U);
  EXPECT_EQ(history.epoch, (Epoch{4, 1}));
  EXPECT_EQ(history.canonical->step, 2);
  EXPECT_EQ(history.commit->result, *history.canonical);
  EXPECT_THAT(history.consumed.ranges(), ElementsAre(SampleRange{0, 16}));
  EXPECT_EQ(history.past.size(), 3U);
}

TEST(History, ARollbackGivesSamplesBack) {
  auto history = after_two_commits();
  const auto lost = *history.canonical;
  const auto to = history.past[1].state;
  append(history, RollbackRecord{lost, to});
  EXPECT_EQ(history.canonical, to);
  EXPECT_EQ(history.commit->result, to);
  EXPECT_THAT(history.consumed.ranges(), ElementsAre(SampleRange{0, 8}));
  append(history, EpochRecord{{4, 2}, to, {}});
  append(history, commit_of(history, {8, 16}));
  // The same step of the same samples, and another state all the same.
  EXPECT_EQ(history.canonical->step, lost.step);
  EXPECT_NE(*history.canonical, lost);
}

TEST(History, RefusesWhatCannotFollow) {
  const auto refused = [](const auto& record) {
    auto history = after_two_commits();
    return test::error_of([&] { append(history, record); });
  };
  EXPECT_THAT(refused(TermRecord{4}), HasSubstr("expected a term above 4"));
  EXPECT_THAT(
      refused(EpochRecord{{4, 1}, kFirst, {}}),
      HasSubstr("above epoch 4.1, found epoch 4.1"));
  EXPECT_THAT(
      refused(EpochRecord{{5, 2}, kFirst, {}}),
      HasSubstr("expected an epoch of term 4"));
  EXPECT_THAT(
      refused(EpochRecord{{4, 2}, kFirst, {}}),
      HasSubstr("expected epoch 4.2 to begin at step 2"));
  const auto history = after_two_commits();
  EXPECT_THAT(
      refused(commit_of(history, {15, 17})), HasSubstr("samples 15 to 17"));
  auto other_epoch = commit_of(history, {16, 17});
  other_epoch.commit.attempt.epoch = {4, 0};
  EXPECT_THAT(
      refused(other_epoch), HasSubstr("expected a commit of epoch 4.1"));
  auto other_sum = commit_of(history, {16, 17});
  other_sum.gradients = 98;
  EXPECT_THAT(refused(other_sum), HasSubstr("expected a commit of epoch 4.1"));
  EXPECT_THAT(
      refused(RollbackRecord{kFirst, kFirst}),
      HasSubstr("expected a rollback of the last commit"));
}

}  // namespace
}  // namespace sherd::ft
