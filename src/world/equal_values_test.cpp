// SPDX-License-Identifier: Apache-2.0
#include "world/equal_values.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace sherd::world {
namespace {

using Digests = std::vector<NamedDigest>;

TEST(EqualValues, DigestsFollowDtypeShapeAndElementsNotStrides) {
  const auto tensor = torch::arange(12.0F).view({3, 4});
  const auto digest = digest_of(tensor);
  const auto strided = tensor.t().contiguous().t();
  ASSERT_FALSE(strided.is_contiguous());
  EXPECT_EQ(digest_of(strided), digest);
  EXPECT_NE(digest_of(tensor.t()), digest);
  EXPECT_NE(digest_of(tensor.view({4, 3})), digest);
  EXPECT_NE(digest_of(tensor.to(torch::kDouble)), digest);
  for (int i = 0; i < 12; ++i) {
    auto other = tensor.clone();
    other.view({-1})[i] += 1e-6 + 1e-6 * i;
    EXPECT_NE(digest_of(other), digest) << "element " << i;
  }
  EXPECT_EQ(digest_of(torch::empty({0, 2})), digest_of(torch::empty({0, 2})));
}

TEST(EqualValues, NothingDiffersBetweenEqualRanks) {
  const Digests one = {{"parameter a", 1}, {"buffer b", 2}};
  EXPECT_EQ(difference_of({one}), "");
  EXPECT_EQ(difference_of({one, one, one}), "");
  EXPECT_EQ(difference_of({{}, {}}), "");
}

TEST(EqualValues, TheFirstDifferenceIsNamedWithItsRanks) {
  const Digests one = {{"parameter a", 1}, {"parameter b", 2}, {"buffer c", 3}};
  auto other = one;
  other[1].digest = 7;
  other[2].digest = 7;
  EXPECT_EQ(
      difference_of({one, other, one}),
      "parameter b: ranks 0, 2 hold one value, rank 1 another (2 of 3 tensors "
      "differ)");
  auto third = one;
  third[1].digest = 8;
  EXPECT_EQ(
      difference_of({one, other, third}),
      "parameter b: rank 0 holds one value, ranks 1, 2 others (2 of 3 tensors "
      "differ)");
  std::vector<Digests> many(12, other);
  many[0] = one;
  EXPECT_EQ(
      difference_of(many),
      "parameter b: rank 0 holds one value, ranks 1, 2, 3, 4, 5, 6, 7, 8 and 3 "
      "more another (2 of 3 tensors differ)");
}

TEST(EqualValues, WhatNotAllRanksHaveIsNamed) {
  const Digests one = {{"parameter a", 1}, {"buffer b", 2}};
  const Digests fewer = {{"parameter a", 1}};
  const Digests others = {{"parameter a", 1}, {"buffer c", 2}};
  EXPECT_EQ(difference_of({one, one, fewer}), "buffer b is missing on rank 2");
  EXPECT_EQ(difference_of({fewer, one}), "buffer b is missing on rank 0");
  EXPECT_EQ(
      difference_of({one, others}),
      "rank 0 has buffer b where rank 1 has buffer c");
}

}  // namespace
}  // namespace sherd::world
