// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of a checkpoint a rank reads. A checkpoint holds each tensor as
// pieces: ranges of its flattened elements, saved by different ranks, in files.
// A job with another number of ranks wants other ranges, so what a rank wants
// may begin within one piece and end within another; where replicas saved the
// same elements, pieces overlap and one copy must be chosen. Everything is
// counted in elements and depends on the arguments only.
// Thread rule: pure functions and values.
#pragma once

#include <span>
#include <vector>
#include "plan/flat_layout.h"

namespace sherd::plan {

// A part of a flattened tensor as it lies in a checkpoint.
struct SavedPiece {
  ElementRange range;  // Of the tensor's elements.
  int file = 0;        // Number of the file it lies in.
};

// What to read of a piece.
struct PieceRead {
  int piece = 0;       // Position in the pieces given.
  ElementRange range;  // Of the tensor's elements; within piece and wanted.

  bool operator==(const PieceRead&) const = default;
};

struct ReadPlan {
  // Ascending, none empty; each wanted element that a piece has, exactly once.
  std::vector<PieceRead> reads;
  // Ascending, none empty and no two of them touch: the wanted elements that no
  // piece has. A checkpoint is complete when there are none.
  std::vector<ElementRange> missing;

  bool operator==(const ReadPlan&) const = default;
};

// The fewest reads that cover `wanted`. Pieces may overlap, be empty, and come
// in any order. Where n of them reach equally far, `reader`, a rank, decides:
// of ranks that want the same, 0 to n - 1 read n different ones, and so do n
// along an axis of a mesh where n and the axes are powers of two. Takes
// O(p log p) for p pieces.
// Throws Error for a range that ends before it begins or begins below 0, and
// for a negative reader.
ReadPlan plan_reads(
    std::span<const SavedPiece> pieces, ElementRange wanted, int reader);

// The part of `range` that one of `replicas` ranks saves when all of them hold
// all of it. In the order of the replicas the parts follow one another without
// a gap and cover the range; the first ones are longer by at most one element.
// Throws Error for such a range as above and unless 0 <= replica < replicas.
ElementRange share_of(ElementRange range, int replica, int replicas);

}  // namespace sherd::plan
