// SPDX-License-Identifier: Apache-2.0
#include "exchange/agreement.h"

#include <random>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "exchange/exchange.h"

namespace sherd::exchange {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::vector<int> kThree{10, 11, 12};  // World ranks of the group.
const std::vector<std::string> kUnits{"(root)", "h.0", "h.1"};

CollectiveRequest unshard(int unit, bool in_backward) {
  CollectiveRequest request;
  request.kind = CollectiveKind::kUnshard;
  request.unit = unit;
  request.in_backward = in_backward ? 1 : 0;
  request.sequence = 5;
  request.generation = 2;
  request.backward = 3;
  return request;
}

CollectiveRequest other(CollectiveKind kind) {
  CollectiveRequest request = unshard(-1, false);
  request.kind = kind;
  return request;
}

Result<CollectiveRequest> agreed(
    const std::vector<CollectiveRequest>& requests) {
  return agree(requests, kThree, kUnits);
}

TEST(Agreement, EqualWishesAreGrantedTogether) {
  for (const auto& request :
       {unshard(1, false), unshard(1, true),
        other(CollectiveKind::kEndBackward),
        other(CollectiveKind::kAllReduce)}) {
    const auto agreement = agreed({request, request, request});
    EXPECT_EQ(agreement.value(), request);
  }
}

TEST(Agreement, AnyDifferenceInForwardIsAMismatchThatNamesBothRanks) {
  const auto agreement =
      agreed({unshard(1, false), unshard(1, false), unshard(2, false)});
  EXPECT_EQ(agreement.status().code(), ErrorCode::kPeerMismatch);
  EXPECT_THAT(
      agreement.status().message(),
      AllOf(
          HasSubstr("rank 10 wants to unshard unit h.0 in forward"),
          HasSubstr("rank 12 wants to unshard unit h.1 in forward"),
          Not(HasSubstr("rank 11"))));
}

TEST(Agreement, AMismatchTellsTheRuleAndNumbersOnlyWhereNothingElseDiffers) {
  const auto end = other(CollectiveKind::kEndBackward);
  const auto sum = other(CollectiveKind::kAllReduce);
  auto summon = unshard(1, false);
  summon.full_precision = 1;
  for (const auto& requests :
       {std::vector<CollectiveRequest>{unshard(1, false), end, end},
        std::vector<CollectiveRequest>{end, end, unshard(1, false)}}) {
    EXPECT_THAT(
        agreed(requests).status().message(),
        AllOf(
            HasSubstr("every rank makes every forward, an evaluation too"),
            HasSubstr("summon_full_parameters({.read_only = true})"),
            Not(HasSubstr("generation"))));
  }
  EXPECT_THAT(
      agreed({summon, end, end}).status().message(),
      HasSubstr("every rank calls summon_full_parameters()"));
  EXPECT_THAT(
      agreed({sum, end, end}).status().message(), Not(HasSubstr("every rank")));
  auto begin = sum;
  begin.op = static_cast<std::uint32_t>(ScalarReduceOp::kSame);
  EXPECT_THAT(
      agreed({end, begin, end}).status().message(),
      HasSubstr("every rank makes every forward"));
  auto later = sum;
  ++later.generation;
  EXPECT_THAT(
      agreed({sum, later, later}).status().message(),
      AllOf(HasSubstr("generation 2"), HasSubstr("generation 3")));
}

TEST(Agreement, InBackwardTheLowestRankIsServedFirst) {
  const auto agreement =
      agreed({unshard(2, true), unshard(1, true), unshard(1, true)});
  EXPECT_EQ(agreement.value(), unshard(2, true));
}

TEST(Agreement, RanksAtTheEndServeThoseStillInside) {
  const auto end = other(CollectiveKind::kEndBackward);
  const auto agreement = agreed({end, unshard(1, true), end});
  EXPECT_EQ(agreement.value(), unshard(1, true));
}

TEST(Agreement, ReductionsStartAfterUnitsAndBeforeTheEnd) {
  const auto start = other(CollectiveKind::kStartReductions);
  const auto end = other(CollectiveKind::kEndBackward);
  EXPECT_EQ(agreed({end, start, end}).value(), start);
  EXPECT_EQ(agreed({end, start, unshard(1, true)}).value(), unshard(1, true));
  EXPECT_EQ(
      agreed({start, unshard(1, false), start}).status().code(),
      ErrorCode::kPeerMismatch);
}

TEST(Agreement, OnlyOneBackwardOfOneGenerationMayDiffer) {
  for (const auto change :
       {+[](CollectiveRequest& w) { ++w.sequence; },
        +[](CollectiveRequest& w) { ++w.generation; },
        +[](CollectiveRequest& w) { ++w.backward; },
        +[](CollectiveRequest& w) { w.in_backward = 0; },
        +[](CollectiveRequest& w) { w.kind = CollectiveKind::kAllReduce; }}) {
    auto odd = unshard(1, true);
    change(odd);
    EXPECT_EQ(
        agreed({unshard(1, true), odd, unshard(1, true)}).status().code(),
        ErrorCode::kPeerMismatch);
    EXPECT_EQ(
        agreed({odd, unshard(1, true), unshard(1, true)}).status().code(),
        ErrorCode::kPeerMismatch);
  }
}

TEST(Agreement, AllReducesMustAgreeInNumbersAndOperation) {
  auto two = other(CollectiveKind::kAllReduce);
  two.numel = 2;
  auto largest = two;
  largest.op = 1;
  auto three = two;
  three.numel = 3;
  EXPECT_EQ(
      agreed({two, three, two}).status().code(), ErrorCode::kPeerMismatch);
  EXPECT_EQ(
      agreed({two, two, largest}).status().code(), ErrorCode::kPeerMismatch);
}

TEST(Agreement, WithoutANameAUnitIsItsNumber) {
  EXPECT_THAT(describe(unshard(77, true), kUnits), HasSubstr("unit 77"));
  EXPECT_THAT(
      describe(unshard(0, true), kUnits),
      AllOf(
          HasSubstr("(root)"), HasSubstr("step 5"), HasSubstr("generation 2"),
          HasSubstr("backward 3")));
}

// Whatever ranks want in a backward, all are granted all of it, in at most as many rounds as there are
// requests.
TEST(Agreement, EveryMixOfBackwardsEnds) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<std::vector<int>> programs(3);
    std::size_t wanted = 0;
    for (auto& program : programs) {
      program.resize(random() % 6);
      wanted += program.size();
      for (auto& unit : program) {
        unit = static_cast<int>(random() % 4);  // 3: reductions.
      }
    }
    std::vector<std::size_t> at(3, 0);
    std::uint64_t rounds = 0;
    for (;; ++rounds) {
      ASSERT_LE(rounds, wanted);
      std::vector<CollectiveRequest> requests;
      for (std::size_t r = 0; r < 3; ++r) {
        const int next = at[r] < programs[r].size() ? programs[r][at[r]] : -1;
        requests.push_back(
            next == -1      ? other(CollectiveKind::kEndBackward)
                : next == 3 ? other(CollectiveKind::kStartReductions)
                            : unshard(next, true));
        requests.back().sequence = rounds;
      }
      const auto agreement = agreed(requests);
      ASSERT_TRUE(agreement.ok()) << agreement.status().message();
      if (agreement.value().kind == CollectiveKind::kEndBackward) {
        EXPECT_THAT(requests, testing::Each(agreement.value()));
        break;
      }
      for (std::size_t r = 0; r < 3; ++r) {
        at[r] += requests[r] == agreement.value() ? 1 : 0;
      }
    }
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(at[r], programs[r].size());
    }
  }
}

}  // namespace
}  // namespace sherd::exchange
