// SPDX-License-Identifier: Apache-2.0
#include "optim/update_runs.h"

#include <random>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::optim {
namespace {

using ::testing::HasSubstr;

// Pieces of the given sizes in one storage, with `gap` zero bytes between them.
std::vector<SliceUpdate> row(
    const std::vector<std::int64_t>& sizes, std::int64_t gap = 0) {
  std::vector<SliceUpdate> pieces;
  std::uintptr_t offset = 0;
  for (const std::int64_t bytes : sizes) {
    pieces.push_back(
        {.parameter = {.storage = 1, .address = 1000 + offset},
         .gradient = {.storage = 2, .address = 5000 + offset},
         .state = {.storage = 3, .address = offset},
         .bytes = bytes,
         .zero_bytes_after = gap,
         .has_gradient = true});
    offset += static_cast<std::uintptr_t>(bytes + gap);
  }
  return pieces;
}

std::vector<std::size_t> counts(const std::vector<SliceUpdate>& pieces) {
  std::vector<std::size_t> result;
  for (const UpdateRun& run : plan_update_runs(pieces)) {
    result.push_back(run.count);
  }
  return result;
}

TEST(UpdateRuns, NothingHasNoRuns) {
  EXPECT_TRUE(plan_update_runs({}).empty());
}

TEST(UpdateRuns, NeighboursAreOneRun) {
  const auto runs = plan_update_runs(row({4, 8, 12}));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].first, 0U);
  EXPECT_EQ(runs[0].count, 3U);
  EXPECT_EQ(runs[0].bytes, 24);
}

TEST(UpdateRuns, ZeroPaddingIsPartOfTheRunButNotAfterItsEnd) {
  const auto runs = plan_update_runs(row({4, 8}, /*gap=*/60));
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].bytes, 4 + 60 + 8);
}

TEST(UpdateRuns, AMissingGradientCutsAlsoWhenTheGapIsSmall) {
  auto pieces = row({4, 8, 12});
  pieces[1].has_gradient = false;
  pieces[0].zero_bytes_after = 8;
  const auto runs = plan_update_runs(pieces);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].bytes, 4);
  EXPECT_EQ(runs[1].first, 2U);
  EXPECT_THAT(runs[0].ends_because, HasSubstr("no gradient"));
}

struct Cut {
  const char* reason;
  void (*change)(SliceUpdate&);
};

TEST(UpdateRuns, EachReasonCutsAndSaysSo) {
  const std::vector<Cut> cuts = {
      {"has no gradient", [](SliceUpdate& p) { p.has_gradient = false; }},
      {"other settings", [](SliceUpdate& p) { p.kind = 7; }},
      {"number of times", [](SliceUpdate& p) { p.updates = 7; }},
      {"parameter lies", [](SliceUpdate& p) { p.parameter.storage = 7; }},
      {"parameter lies", [](SliceUpdate& p) { p.parameter.address += 65; }},
      {"parameter lies", [](SliceUpdate& p) { p.parameter.address -= 1; }},
      {"gradient lies", [](SliceUpdate& p) { p.gradient.storage = 7; }},
      {"gradient lies", [](SliceUpdate& p) { p.gradient.address += 4; }},
      {"state lies", [](SliceUpdate& p) { p.state.storage = 7; }},
      {"state lies", [](SliceUpdate& p) { p.state.address += 4; }},
  };
  for (const Cut& cut : cuts) {
    auto pieces = row({4, 8});
    cut.change(pieces[1]);
    const auto runs = plan_update_runs(pieces);
    EXPECT_EQ(runs.at(0).count, 1U) << cut.reason;
    EXPECT_THAT(runs.at(0).ends_because, HasSubstr(cut.reason));
  }
}

TEST(UpdateRuns, BytesThatAreNotZeroCut) {
  auto pieces = row({4, 8, 4}, /*gap=*/16);
  pieces[0].zero_bytes_after = 15;
  EXPECT_EQ(counts(pieces), (std::vector<std::size_t>{1, 2}));
}

// For any input, runs keep the order, cover exactly the pieces with a gradient, and could not be
// longer.
TEST(UpdateRuns, CoverEveryGradientOnceAndAreMaximal) {
  std::mt19937 random(1);
  const auto draw = [&](int below) {
    return std::uniform_int_distribution<int>(0, below - 1)(random);
  };
  for (int trial = 0; trial < 500; ++trial) {
    auto pieces =
        row(std::vector<std::int64_t>(static_cast<std::size_t>(draw(12)), 8),
            draw(2) * 8);
    for (SliceUpdate& piece : pieces) {
      piece.has_gradient = draw(4) != 0;
      piece.kind = draw(4) == 0 ? 1 : 0;
      piece.gradient.address += draw(6) == 0 ? 64U : 0U;
    }
    std::vector<int> covered(pieces.size(), 0);
    std::size_t next = 0;
    for (const UpdateRun& run : plan_update_runs(pieces)) {
      ASSERT_GE(run.first, next);
      next = run.first + run.count;
      for (std::size_t i = run.first; i < next; ++i) {
        ++covered[i];
        EXPECT_EQ(pieces[i].kind, pieces[run.first].kind);
      }
      // A run of the two pieces at its end would be cut between them.
      if (next < pieces.size()) {
        EXPECT_NE(counts({pieces[next - 1], pieces[next]}).at(0), 2U);
      }
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      EXPECT_EQ(covered[i], pieces[i].has_gradient ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace sherd::optim
