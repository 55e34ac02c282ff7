// SPDX-License-Identifier: Apache-2.0
//
// Plans the reads of a checkpoint that another number of ranks saved. A checkpoint holds each
// tensor as pieces: ranges of its flattened elements, in files. The range that a rank wants may
// begin within one piece and end within another; where replicas saved the same elements, pieces
// overlap and one copy must be chosen. All numbers count elements, and results depend only on the
// arguments. Thread rule: pure functions and values.
#pragma once

#include <span>
#include <vector>
#include "plan/flat_layout.h"

namespace sherd::plan {

// A part of a flattened tensor in a checkpoint.
struct SavedPiece {
  ElementRange range;  // Elements of the tensor.
  int file = 0;        // Number of the file.
};

struct ReadPlan {
  // A range to read from a piece.
  struct Read {
    int piece = 0;  // Index among the pieces given.
    // Elements of the tensor, inside both piece and `wanted`.
    ElementRange range;

    bool operator==(const Read&) const = default;
  };

  // Ascending, none empty; covers each wanted element that a piece has exactly once.
  std::vector<Read> reads;
  // Ascending, none empty, no two adjacent: the wanted elements that no piece has. A checkpoint is
  // complete if there are none.
  std::vector<ElementRange> missing;

  bool operator==(const ReadPlan&) const = default;
};

// The fewest reads that cover `wanted`. Pieces may overlap, be empty, and come in any order. If n
// pieces reach equally far, `reader`, a rank, decides which is read, so that ranks 0 to n - 1 read
// n different ones, and so do n ranks along an axis of a mesh if n and the axes are powers of two.
// Takes O(p log p) for p pieces. Throws Error for a range that ends before it begins or begins
// below 0, and for a negative reader.
ReadPlan plan_reads(
    std::span<const SavedPiece> pieces, ElementRange wanted, int reader);

// The part of `range` that one of `replicas` ranks saves if each of them holds all of it. The parts
// follow one another in the order of the replicas and cover the range; the first ones may be longer
// by one element. Throws Error for such a range as above, and unless 0 <= replica < replicas.
ElementRange share_of(ElementRange range, int replica, int replicas);

}  // namespace sherd::plan
