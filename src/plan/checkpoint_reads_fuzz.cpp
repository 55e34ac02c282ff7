// SPDX-License-Identifier: Apache-2.0
//
// Any bytes stand for a checkpoint and a wanted range of it. Invalid ranges must be refused;
// otherwise each wanted element must be read once or be missing, in as few reads as any other way
// needs, also far from element 0.
#include "plan/checkpoint_reads.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>
#include <sherd/base/error.h>
#include "base/check.h"
#include "support/fuzz_bytes.h"

namespace sherd::plan {
namespace {

using test::FuzzBytes;

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max() - 128;
// Limits what the check of the fewest reads costs.
constexpr std::size_t kPiecesMax = 40;

struct Load {
  std::vector<SavedPiece> pieces;
  ElementRange wanted;
  int reader = 0;
  bool valid = true;
};

// Mostly a valid load; one of 16 takes the bytes as they are.
Load load_of(FuzzBytes bytes) {
  const std::uint8_t kind = bytes.next();
  const bool wild = kind % 16 == 15;
  const std::int64_t base = kind >= 128 ? kFar : wild ? -32 : 0;
  Load load;
  const auto next_range = [&] {
    const std::int64_t begin = base + bytes.next() % 64;
    const ElementRange range{begin, begin + bytes.next() % 64 - (wild ? 8 : 0)};
    load.valid &= range.begin >= 0 && range.begin <= range.end;
    return range;
  };
  load.wanted = next_range();
  load.reader = bytes.next() - (wild ? 16 : 0);
  load.valid &= load.reader >= 0;
  while (!bytes.empty() && load.pieces.size() < kPiecesMax) {
    const int file = bytes.next();
    load.pieces.push_back({.range = next_range(), .file = file});
  }
  return load;
}

bool holds(const ElementRange& outer, std::int64_t element) {
  return outer.begin <= element && element < outer.end;
}

bool any_holds(const Load& load, std::int64_t element) {
  return std::any_of(
      load.pieces.begin(), load.pieces.end(),
      [&](const SavedPiece& piece) { return holds(piece.range, element); });
}

// From the end backwards, over every piece and every place at which to stop reading it.
std::size_t fewest_reads(const Load& load) {
  const auto& [begin, end] = load.wanted;
  const auto numel = static_cast<std::size_t>(load.wanted.numel());
  std::vector<std::size_t> least(numel + 1, 0);
  for (std::size_t from = numel; from-- > 0;) {
    const auto element = begin + static_cast<std::int64_t>(from);
    least[from] = any_holds(load, element) ? numel + 1 : least[from + 1];
    for (const auto& piece : load.pieces) {
      if (!holds(piece.range, element)) {
        continue;
      }
      const auto stop =
          static_cast<std::size_t>(std::min(piece.range.end, end) - begin);
      for (std::size_t to = from + 1; to <= stop; ++to) {
        least[from] = std::min(least[from], 1 + least[to]);
      }
    }
  }
  return least[0];
}

// Reads and missing ranges, each ascending, must together be `wanted`.
void check_cover(const Load& load, const ReadPlan& plan) {
  auto read = plan.reads.begin();
  auto missing = plan.missing.begin();
  for (auto at = load.wanted.begin; at < load.wanted.end;) {
    const bool there = any_holds(load, at);
    SHERD_ASSERT(
        there ? read != plan.reads.end() : missing != plan.missing.end(),
        "element ", at, " is left out");
    const ElementRange range = there ? (read++)->range : *missing++;
    SHERD_ASSERT(
        range.begin == at && range.end > at && range.end <= load.wanted.end,
        "a range begins at ", range.begin, ", expected ", at);
    for (; at < range.end; ++at) {
      SHERD_ASSERT(any_holds(load, at) == there, "element ", at);
    }
    SHERD_ASSERT(
        there || at == load.wanted.end || any_holds(load, at),
        "more is missing than up to ", at);
  }
  SHERD_ASSERT(read == plan.reads.end() && missing == plan.missing.end());
}

void check_reads(const Load& load, const ReadPlan& plan) {
  for (const auto& [piece, range] : plan.reads) {
    SHERD_ASSERT(piece >= 0, "piece ", piece);
    const auto& whole = load.pieces.at(static_cast<std::size_t>(piece)).range;
    SHERD_ASSERT(whole.begin <= range.begin && range.end <= whole.end);
  }
  SHERD_ASSERT(plan.reads.size() == fewest_reads(load), "too many reads");
}

// If there are as many readers as copies, together they read each copy.
void check_spread(const Load& load) {
  const int copies = 1 + load.reader % 8;
  const std::vector<SavedPiece> pieces(
      static_cast<std::size_t>(copies), {.range = load.wanted, .file = 0});
  std::vector<bool> read(pieces.size(), load.wanted.empty());
  for (int reader = 0; reader < copies; ++reader) {
    for (const auto& part : plan_reads(pieces, load.wanted, reader).reads) {
      read[static_cast<std::size_t>(part.piece)] = true;
    }
  }
  SHERD_ASSERT(
      std::find(read.begin(), read.end(), false) == read.end(), "a copy of ",
      copies, " is not read");
}

void check_shares(const Load& load) {
  const int replicas = 1 + load.reader;
  const auto least = load.wanted.numel() / replicas;
  auto at = load.wanted.begin;
  for (int replica = 0; replica < replicas; ++replica) {
    const auto share = share_of(load.wanted, replica, replicas);
    SHERD_ASSERT(share.begin == at, "share ", replica, " of ", replicas);
    SHERD_ASSERT(share.numel() == least || share.numel() == least + 1);
    at = share.end;
  }
  SHERD_ASSERT(at == load.wanted.end, "shares end at ", at);
}

void run(const Load& load) {
  try {
    const ReadPlan plan = plan_reads(load.pieces, load.wanted, load.reader);
    SHERD_ASSERT(load.valid, "not refused");
    check_cover(load, plan);
    check_reads(load, plan);
    check_spread(load);
    check_shares(load);
  } catch (const Error& error) {
    SHERD_ASSERT(!load.valid, "refused: ", error.what());
  }
}

}  // namespace
}  // namespace sherd::plan

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  sherd::plan::run(sherd::plan::load_of(sherd::test::FuzzBytes({data, size})));
  return 0;
}
