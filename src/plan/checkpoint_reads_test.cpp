// SPDX-License-Identifier: Apache-2.0
#include "plan/checkpoint_reads.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/check.h"
#include "plan/random_testing.h"
#include "support/error_of.h"

namespace sherd::plan {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Pieces = std::vector<SavedPiece>;

// Each piece in a file of its own.
Pieces pieces_of(const std::vector<ElementRange>& ranges) {
  Pieces pieces;
  for (const auto& range : ranges) {
    pieces.push_back({.range = range, .file = static_cast<int>(pieces.size())});
  }
  return pieces;
}

std::string text_of(const ElementRange& range) {
  return str("[", range.begin, ",", range.end, ")");
}

// Text such as "1[0,4) 0[4,6) missing [6,8)": the pieces read, each with its range.
std::string text_of(const ReadPlan& plan) {
  std::string text;
  for (const auto& read : plan.reads) {
    text += str(text.empty() ? "" : " ", read.piece, text_of(read.range));
  }
  for (const auto& range : plan.missing) {
    text += str(text.empty() ? "" : " ", "missing ", text_of(range));
  }
  return text;
}

bool holds(const ElementRange& outer, std::int64_t element) {
  return outer.begin <= element && element < outer.end;
}

bool within(const ElementRange& inner, const ElementRange& outer) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

bool any_holds(const Pieces& pieces, std::int64_t element) {
  return std::any_of(pieces.begin(), pieces.end(), [&](const auto& piece) {
    return holds(piece.range, element);
  });
}

// From the end backwards, over every piece and every place at which to stop reading it.
int fewest_reads(const Pieces& pieces, const ElementRange& wanted) {
  std::vector<int> least(static_cast<std::size_t>(wanted.numel()) + 1, 0);
  const auto least_from = [&](std::int64_t element) -> int& {
    return least[static_cast<std::size_t>(element - wanted.begin)];
  };
  for (std::int64_t from = wanted.end - 1; from >= wanted.begin; --from) {
    if (!any_holds(pieces, from)) {
      least_from(from) = least_from(from + 1);
      continue;
    }
    least_from(from) = std::numeric_limits<int>::max();
    for (const auto& piece : pieces) {
      const auto stop = std::min(piece.range.end, wanted.end);
      for (auto to = from + 1; holds(piece.range, from) && to <= stop; ++to) {
        least_from(from) = std::min(least_from(from), 1 + least_from(to));
      }
    }
  }
  return least_from(wanted.begin);
}

// What must hold for all pieces.
void expect_promises(
    const Pieces& pieces, const ElementRange& wanted, const ReadPlan& plan) {
  SCOPED_TRACE(text_of(wanted) + " by " + text_of(plan));
  auto at = wanted.begin;
  for (const auto& read : plan.reads) {
    EXPECT_LE(at, read.range.begin);
    EXPECT_LT(read.range.begin, read.range.end);
    at = read.range.end;
    ASSERT_GE(read.piece, 0);
    const auto& piece = pieces.at(static_cast<std::size_t>(read.piece));
    EXPECT_TRUE(within(read.range, piece.range));
    EXPECT_TRUE(within(read.range, wanted));
  }
  std::vector<ElementRange> missing;
  for (auto element = wanted.begin; element < wanted.end; ++element) {
    const bool there = any_holds(pieces, element);
    const auto times = std::count_if(
        plan.reads.begin(), plan.reads.end(),
        [&](const auto& read) { return holds(read.range, element); });
    EXPECT_EQ(times, there ? 1 : 0) << "element " << element;
    if (there) {
      continue;
    }
    if (missing.empty() || missing.back().end != element) {
      missing.push_back({element, element});
    }
    missing.back().end = element + 1;
  }
  EXPECT_EQ(plan.missing, missing);
  EXPECT_EQ(static_cast<int>(plan.reads.size()), fewest_reads(pieces, wanted));
}

TEST(Reshard, ReadsWhatIsWantedAndNoMore) {
  struct Case {
    std::vector<ElementRange> pieces;
    ElementRange wanted;
    std::string plan;
  };
  const std::vector<Case> cases = {
      {{{0, 8}}, {0, 8}, "0[0,8)"},
      {{{0, 8}}, {2, 5}, "0[2,5)"},
      {{{0, 4}, {4, 8}}, {0, 8}, "0[0,4) 1[4,8)"},
      {{{0, 4}, {4, 8}}, {3, 5}, "0[3,4) 1[4,5)"},
      {{{0, 4}, {4, 8}}, {4, 8}, "1[4,8)"},
      {{{4, 8}, {0, 4}}, {0, 8}, "1[0,4) 0[4,8)"},
      {{{0, 4}, {4, 4}, {4, 8}, {8, 8}}, {0, 8}, "0[0,4) 2[4,8)"},
      {{{0, 4}}, {0, 0}, ""},
      {{{0, 4}}, {2, 2}, ""},
      {{}, {3, 3}, ""}};
  for (const auto& one : cases) {
    EXPECT_EQ(
        text_of(plan_reads(pieces_of(one.pieces), one.wanted, 0)), one.plan)
        << "wanted " << text_of(one.wanted);
  }
}

TEST(Reshard, OverlappingPiecesAreReadAsFewAsPossible) {
  const auto plan = [](const std::vector<ElementRange>& ranges) {
    return text_of(plan_reads(pieces_of(ranges), {0, 10}, 0));
  };
  EXPECT_EQ(plan({{0, 4}, {2, 10}}), "0[0,4) 1[4,10)");
  EXPECT_EQ(plan({{0, 4}, {2, 7}, {3, 10}}), "0[0,4) 2[4,10)");
  EXPECT_EQ(plan({{0, 3}, {3, 6}, {6, 10}, {0, 10}}), "3[0,10)");
  EXPECT_EQ(plan({{0, 3}, {0, 6}, {5, 7}, {6, 10}}), "1[0,6) 3[6,10)");
}

TEST(Reshard, SaysWhatIsMissing) {
  const auto plan = [](const std::vector<ElementRange>& ranges) {
    return text_of(plan_reads(pieces_of(ranges), {2, 10}, 0));
  };
  EXPECT_EQ(plan({}), "missing [2,10)");
  EXPECT_EQ(plan({{0, 2}, {5, 5}, {10, 12}}), "missing [2,10)");
  EXPECT_EQ(plan({{4, 6}}), "0[4,6) missing [2,4) missing [6,10)");
  EXPECT_EQ(plan({{8, 20}, {0, 5}}), "1[2,5) 0[8,10) missing [5,8)");
}

TEST(Reshard, WorksAtTheEndOfTheNumbers) {
  const auto last = std::numeric_limits<std::int64_t>::max();
  const Pieces pieces = pieces_of({{last - 4, last}, {0, last - 2}});
  const ElementRange wanted{last - 8, last};
  const auto plan = plan_reads(pieces, wanted, std::numeric_limits<int>::max());
  ASSERT_EQ(plan.reads.size(), 2U);
  const ReadPlan::Read first{.piece = 1, .range = {last - 8, last - 2}};
  const ReadPlan::Read second{.piece = 0, .range = {last - 2, last}};
  EXPECT_EQ(plan.reads[0], first);
  EXPECT_EQ(plan.reads[1], second);
  EXPECT_THAT(plan.missing, IsEmpty());
  EXPECT_EQ(share_of({0, last}, 2, 3).end, last);
}

TEST(Reshard, KeepsItsPromisesForAnyPieces) {
  for_seeds(5000, [](TestRandom& random) {
    const auto end = random.in(1, 20);
    const auto any_range = [&] {
      const auto begin = random.in(0, end);
      return ElementRange{begin, random.in(begin, end)};
    };
    Pieces pieces(static_cast<std::size_t>(random.in(0, 9)));
    for (auto& piece : pieces) {
      piece = {.range = any_range(), .file = static_cast<int>(random.in(0, 3))};
      if (random.in(0, 3) == 0) {
        piece.range = pieces.front().range;  // A copy.
      }
    }
    const auto wanted = any_range();
    const int reader = static_cast<int>(random.in(0, 9));
    const auto plan = plan_reads(pieces, wanted, reader);
    expect_promises(pieces, wanted, plan);
    EXPECT_EQ(plan_reads(pieces, wanted, reader), plan);
  });
}

// Which file a rank reads does not depend on the order of the pieces.
TEST(Reshard, TheOrderOfThePiecesDoesNotMatter) {
  for_seeds(200, [](TestRandom& random) {
    Pieces pieces;
    for (int file = 0; file < 8; ++file) {
      const auto begin = 4 * random.in(0, 2);
      pieces.push_back({.range = {begin, begin + 8}, .file = file});
    }
    const auto files_read = [&](int reader) {
      std::vector<int> files;
      for (const auto& read : plan_reads(pieces, {2, 14}, reader).reads) {
        files.push_back(pieces.at(static_cast<std::size_t>(read.piece)).file);
      }
      return files;
    };
    const auto before = files_read(5);
    for (std::size_t i = pieces.size() - 1; i > 0; --i) {
      const auto other = random.in(0, static_cast<std::int64_t>(i));
      std::swap(pieces[i], pieces[static_cast<std::size_t>(other)]);
    }
    EXPECT_EQ(files_read(5), before);
  });
}

TEST(Reshard, ReadersSpreadOverCopies) {
  for (int copies = 1; copies <= 8; ++copies) {
    const auto pieces = pieces_of(
        std::vector<ElementRange>(static_cast<std::size_t>(copies), {0, 6}));
    std::set<int> read;
    for (int reader = 0; reader < copies; ++reader) {
      const auto plan = plan_reads(pieces, {1, 4}, reader);
      ASSERT_EQ(plan.reads.size(), 1U);
      read.insert(plan.reads[0].piece);
    }
    EXPECT_EQ(static_cast<int>(read.size()), copies);
  }
}

// It suffices to be equal within the wanted range; such pieces are ordered by file.
TEST(Reshard, ReadersSpreadOverPiecesThatReachFurtherThanWanted) {
  const auto pieces = pieces_of({{1, 9}, {0, 6}});
  EXPECT_EQ(text_of(plan_reads(pieces, {2, 5}, 0)), "0[2,5)");
  EXPECT_EQ(text_of(plan_reads(pieces, {2, 5}, 1)), "1[2,5)");
}

// Ranks that want the same shard are a shard axis apart.
TEST(Reshard, RanksOfAMeshOfPowersOfTwoReadAFileEach) {
  constexpr std::int64_t kNumel = 67;
  for (const int replicas : {1, 2, 4, 8}) {
    for (const int shards : {1, 2, 4, 8, 16}) {
      SCOPED_TRACE(::testing::Message() << replicas << " x " << shards);
      const int ranks = replicas * shards;
      Pieces pieces;
      for (int rank = 0; rank < ranks; ++rank) {
        pieces.push_back(
            {.range = share_of({0, kNumel}, rank % shards, shards),
             .file = rank});
      }
      std::set<int> read;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto wanted = pieces[static_cast<std::size_t>(rank)].range;
        const auto plan = plan_reads(pieces, wanted, rank);
        ASSERT_EQ(plan.reads.size(), 1U);
        read.insert(plan.reads[0].piece);
      }
      EXPECT_EQ(static_cast<int>(read.size()), ranks);
    }
  }
}

// A save by `saved` ranks and a load by `loaded`, both with equal cuts.
void expect_reshard(std::int64_t numel, int saved, int loaded) {
  SCOPED_TRACE(
      ::testing::Message() << numel << ": " << saved << " to " << loaded);
  Pieces pieces;
  for (int rank = 0; rank < saved; ++rank) {
    pieces.push_back({share_of({0, numel}, rank, saved), rank});
  }
  std::int64_t read = 0;
  for (int rank = 0; rank < loaded; ++rank) {
    const auto wanted = share_of({0, numel}, rank, loaded);
    const auto plan = plan_reads(pieces, wanted, rank);
    expect_promises(pieces, wanted, plan);
    EXPECT_THAT(plan.missing, IsEmpty());
    for (const auto& part : plan.reads) {
      read += part.range.numel();
    }
    if (saved == loaded && !wanted.empty()) {
      EXPECT_EQ(text_of(plan), str(rank, text_of(wanted)));
    }
  }
  EXPECT_EQ(read, numel);
}

TEST(Reshard, AnyNumberOfRanksReadsWhatAnyOtherSaved) {
  for (int saved = 1; saved <= 8; ++saved) {
    for (int loaded = 1; loaded <= 8; ++loaded) {
      for (const std::int64_t numel : {0, 1, 3, 7, 61, 96}) {
        expect_reshard(numel, saved, loaded);
      }
    }
  }
}

// Each rank of a mesh saves a share of the shard that its replicas also hold.
TEST(Reshard, SharesOfReplicasMakeTheTensorOnce) {
  for (int replicas = 1; replicas <= 4; ++replicas) {
    for (int shards = 1; shards <= 7; ++shards) {
      SCOPED_TRACE(::testing::Message() << replicas << " x " << shards);
      Pieces pieces;
      for (int rank = 0; rank < replicas * shards; ++rank) {
        const auto shard = share_of({0, 53}, rank % shards, shards);
        pieces.push_back({share_of(shard, rank / shards, replicas), rank});
      }
      const auto plan = plan_reads(pieces, {0, 53}, 0);
      expect_promises(pieces, {0, 53}, plan);
      EXPECT_THAT(plan.missing, IsEmpty());
      // Nothing was saved twice: every piece is needed.
      const auto saved = std::count_if(
          pieces.begin(), pieces.end(),
          [](const auto& piece) { return !piece.range.empty(); });
      EXPECT_EQ(static_cast<std::int64_t>(plan.reads.size()), saved);
    }
  }
}

TEST(ShareOf, FollowOneAnotherAndDifferByAtMostOneElement) {
  for (const std::int64_t begin : {0, 5}) {
    for (std::int64_t numel = 0; numel <= 30; ++numel) {
      for (int replicas = 1; replicas <= 9; ++replicas) {
        const ElementRange range{begin, begin + numel};
        SCOPED_TRACE(text_of(range) + str(" by ", replicas));
        auto at = begin;
        for (int replica = 0; replica < replicas; ++replica) {
          const auto share = share_of(range, replica, replicas);
          EXPECT_EQ(share.begin, at);
          EXPECT_GE(share.numel(), numel / replicas);
          EXPECT_LE(share.numel(), (numel + replicas - 1) / replicas);
          at = share.end;
        }
        EXPECT_EQ(at, range.end);
      }
    }
  }
}

TEST(Reshard, RefusesWhatMakesNoSense) {
  const auto refused = [](const ElementRange& piece,
                          const ElementRange& wanted) {
    return error_of(
        [&] { (void)plan_reads(pieces_of({{0, 4}, piece}), wanted, 0); });
  };
  const auto rule = HasSubstr("0 <= begin <= end");
  EXPECT_EQ(refused({0, 4}, {0, 4}), "no error");
  EXPECT_THAT(
      refused({5, 4}, {0, 4}),
      AllOf(HasSubstr("[plan] expected piece 1 "), rule, HasSubstr("[5, 4)")));
  EXPECT_THAT(refused({-1, 4}, {0, 4}), HasSubstr("found [-1, 4)"));
  EXPECT_THAT(
      refused({0, 4}, {3, 2}),
      AllOf(HasSubstr("the range wanted"), rule, HasSubstr("[3, 2)")));
  EXPECT_THAT(refused({0, 4}, {-2, 2}), HasSubstr("found [-2, 2)"));
  EXPECT_THAT(
      error_of([] { (void)plan_reads({}, {0, 1}, -1); }),
      HasSubstr("[plan] expected a reader of at least 0, found -1"));
}

TEST(ShareOf, RefusesWhatMakesNoSense) {
  const auto refused = [](const ElementRange& range, int replica,
                          int replicas) {
    return error_of([&] { (void)share_of(range, replica, replicas); });
  };
  EXPECT_THAT(
      refused({3, 2}, 0, 1),
      AllOf(HasSubstr("[plan] expected the range"), HasSubstr("[3, 2)")));
  EXPECT_THAT(refused({-3, 2}, 0, 1), HasSubstr("found [-3, 2)"));
  EXPECT_THAT(refused({0, 2}, 0, 0), HasSubstr("at least 1 replica, found 0"));
  EXPECT_THAT(refused({0, 2}, 3, 3), HasSubstr("a replica of 0 to 2, found 3"));
  EXPECT_THAT(refused({0, 2}, -1, 3), HasSubstr("found -1"));
}

}  // namespace
}  // namespace sherd::plan
