// SPDX-License-Identifier: Apache-2.0
#include "fsdp/hook_reduction.h"

#include <gtest/gtest.h>

namespace sherd::fsdp {
namespace {

std::string text_of(const std::vector<HookReduction::Piece>& pieces) {
  std::string text;
  for (const auto& piece : pieces) {
    text += piece.name + "@" + std::to_string(piece.begin) + "x";
    for (const auto size : piece.shape) {
      text += std::to_string(size) + ".";
    }
    text += " ";
  }
  return text;
}

// A parameter "w" of 4 rows of 6 elements that begins at element 100 of its flat.
std::string matrix_in(std::int64_t begin, std::int64_t end) {
  return text_of(HookReduction::pieces_in({begin, end}, "w", {4, 2, 3}, 100));
}

TEST(HookReduction, RowsOfAParameterKeepItsShape) {
  EXPECT_EQ(matrix_in(0, 200), "w@100x4.2.3. ");
  EXPECT_EQ(matrix_in(100, 124), "w@0x4.2.3. ");
  EXPECT_EQ(matrix_in(106, 118), "w@0x2.2.3. ");
}

TEST(HookReduction, ElementsOfCutRowsAreApart) {
  EXPECT_EQ(matrix_in(104, 124), "w[4:6]@0x2. w@2x3.2.3. ");
  EXPECT_EQ(matrix_in(90, 115), "w@10x2.2.3. w[12:15]@22x3. ");
  EXPECT_EQ(matrix_in(101, 123), "w[1:6]@0x5. w@5x2.2.3. w[18:23]@17x5. ");
  EXPECT_EQ(matrix_in(107, 109), "w[7:9]@0x2. ");
  EXPECT_EQ(matrix_in(104, 108), "w[4:6]@0x2. w[6:8]@2x2. ");
}

TEST(HookReduction, AVectorsElementsAreItsRows) {
  EXPECT_EQ(
      text_of(HookReduction::pieces_in({12, 17}, "b", {10}, 10)), "b@0x5. ");
  EXPECT_EQ(
      text_of(HookReduction::pieces_in({0, 17}, "scalar", {}, 10)),
      "scalar@10x ");
}

TEST(HookReduction, WhatLiesElsewhereHasNoPiece) {
  EXPECT_EQ(matrix_in(0, 100), "");
  EXPECT_EQ(matrix_in(124, 200), "");
  EXPECT_EQ(matrix_in(110, 110), "");
  EXPECT_EQ(
      text_of(HookReduction::pieces_in({0, 50}, "empty", {0, 3}, 10)), "");
}

}  // namespace
}  // namespace sherd::fsdp
