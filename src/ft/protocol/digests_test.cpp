// SPDX-License-Identifier: Apache-2.0
//
// Which replicas have wrong bits.
#include "ft/protocol/digests.h"

#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const StateId kState{10, {5, 6}};
const StateId kBefore{9, {3, 4}};

ReportedDigest claim_of(
    ReplicaId replica, std::uint64_t digest, bool copied = false) {
  return {replica, kState, StateDigest{kState, digest, copied}};
}

std::vector<ReplicaId> wrong(const DigestVerdict& verdict) {
  std::vector<ReplicaId> replicas;
  for (const auto& one : verdict.wrong) {
    replicas.push_back(one.replica);
  }
  return replicas;
}

TEST(Digests, EqualOnesBlameNobody) {
  const auto verdict = judge({claim_of(0, 7), claim_of(1, 7), claim_of(2, 7)});
  EXPECT_THAT(wrong(verdict), IsEmpty());
  EXPECT_THAT(verdict.tie, IsEmpty());
}

TEST(Digests, WhoDiffersFromMostIsWrong) {
  const auto verdict = judge({claim_of(0, 7), claim_of(1, 8), claim_of(2, 7)});
  EXPECT_THAT(wrong(verdict), ElementsAre(1));
  EXPECT_THAT(verdict.wrong[0].reason, HasSubstr("step 10"));
  EXPECT_THAT(verdict.tie, IsEmpty());
}

TEST(Digests, OfTwoNobodyKnowsWhoIsRight) {
  const auto verdict = judge({claim_of(0, 7), claim_of(3, 8)});
  EXPECT_THAT(wrong(verdict), IsEmpty());
  EXPECT_THAT(verdict.tie, HasSubstr("replicas 0, 3 hold different bits"));
}

TEST(Digests, WhoIsStillToComeIsWaitedFor) {
  const ReportedDigest late{2, kBefore};
  const auto verdict = judge({claim_of(0, 7), claim_of(1, 8), late});
  EXPECT_THAT(wrong(verdict), IsEmpty());
  EXPECT_THAT(verdict.tie, IsEmpty());
}

TEST(Digests, AMajorityOfAllNeedsNobodyElse) {
  const ReportedDigest late{3, kBefore};
  const auto verdict = judge(
      {claim_of(0, 7), claim_of(1, 7), claim_of(2, 7), claim_of(4, 8), late});
  EXPECT_THAT(wrong(verdict), ElementsAre(4));
}

TEST(Digests, WhoWillNeverSayIsNotWaitedFor) {
  const ReportedDigest came_later{2, StateId{11, {7, 8}}};
  const ReportedDigest damaged{3, std::nullopt};
  const auto verdict =
      judge({claim_of(0, 7), claim_of(1, 8), came_later, damaged});
  EXPECT_THAT(verdict.tie, HasSubstr("different bits"));
}

// It may have been copied from the replica that is wrong.
TEST(Digests, ACopyIsNoWitness) {
  const auto copied =
      judge({claim_of(0, 7), claim_of(1, 8), claim_of(2, 8, true)});
  EXPECT_THAT(wrong(copied), IsEmpty());
  EXPECT_THAT(copied.tie, HasSubstr("different bits"));
  const auto wrong_copy =
      judge({claim_of(0, 7), claim_of(1, 7), claim_of(2, 8, true)});
  EXPECT_THAT(wrong(wrong_copy), ElementsAre(2));
  // Either of them may have changed since.
  const auto two = judge({claim_of(0, 7), claim_of(1, 8, true)});
  EXPECT_THAT(wrong(two), IsEmpty());
  EXPECT_THAT(two.tie, HasSubstr("different bits"));
}

TEST(Digests, DifferentStatesAreNotCompared) {
  const ReportedDigest before{1, kState, StateDigest{kBefore, 8}};
  const auto verdict = judge({claim_of(0, 7), before});
  EXPECT_THAT(wrong(verdict), IsEmpty());
  EXPECT_THAT(verdict.tie, IsEmpty());
}

}  // namespace
}  // namespace sherd::ft
