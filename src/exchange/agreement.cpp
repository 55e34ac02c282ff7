// SPDX-License-Identifier: Apache-2.0
#include "exchange/agreement.h"

#include <algorithm>

#include "base/check.h"
#include "exchange/exchange.h"

namespace sherd::exchange {
namespace {

bool part_of_backward(const Wish& wish) {
  return wish.kind == WishKind::kEndBackward ||
      (wish.kind == WishKind::kUnshard && wish.in_backward != 0);
}

// Both inside the same backward of the same parameters.
bool may_differ(const Wish& a, const Wish& b) {
  return part_of_backward(a) && part_of_backward(b) &&
      a.sequence == b.sequence && a.generation == b.generation &&
      a.backward == b.backward;
}

// As the first forward of a step does.
bool begins_step(const Wish& wish) {
  return wish.kind == WishKind::kAllReduce &&
      wish.op == static_cast<std::uint32_t>(ReduceOp::kSame);
}

// Without the numbers that tell equal wishes apart.
std::string plain(const Wish& wish, std::span<const std::string> unit_names) {
  switch (wish.kind) {
    case WishKind::kUnshard: {
      const auto unit = static_cast<std::size_t>(wish.unit);
      const auto name =
          unit < unit_names.size() ? unit_names[unit] : std::to_string(unit);
      return str(
          "unshard unit ", name,
          wish.full_precision != 0 ? " in full precision" : "",
          wish.in_backward != 0 ? " in backward" : " in forward");
    }
    case WishKind::kEndBackward:
      return "end the backward";
    case WishKind::kAllReduce:
      if (begins_step(wish)) {
        return "begin a step";
      }
      return str(
          "all-reduce ", wish.numel, " numbers to their ",
          wish.op == static_cast<std::uint32_t>(ReduceOp::kMax) ? "largest"
                                                                : "sum");
  }
  return "do something unknown";
}

Agreement mismatch(
    std::span<const Wish> wishes,
    std::size_t other,
    std::span<const int> world_ranks,
    std::span<const std::string> unit_names) {
  const auto& mine = wishes[0];
  const auto& theirs = wishes[other];
  const bool told_apart = mine.generation == theirs.generation &&
      mine.backward == theirs.backward &&
      plain(mine, unit_names) != plain(theirs, unit_names);
  const auto say = [&](const Wish& wish) {
    return told_apart ? plain(wish, unit_names) : describe(wish, unit_names);
  };
  const auto rule = rule_broken_by(mine);
  return {
      Verdict::kMismatch, mine,
      str("ranks went different ways: rank ", world_ranks[0], " wants to ",
          say(mine), ", rank ", world_ranks[other], " wants to ", say(theirs),
          rule.empty() ? rule_broken_by(theirs) : rule)};
}

}  // namespace

Agreement agree(
    std::span<const Wish> wishes,
    std::span<const int> world_ranks,
    std::span<const std::string> unit_names) {
  SHERD_ASSERT(!wishes.empty());
  for (std::size_t i = 1; i < wishes.size(); ++i) {
    if (wishes[i] != wishes[0] && !may_differ(wishes[0], wishes[i])) {
      return mismatch(wishes, i, world_ranks, unit_names);
    }
  }
  const bool equal = std::all_of(
      wishes.begin(), wishes.end(),
      [&](const Wish& wish) { return wish == wishes[0]; });
  if (equal) {
    return {Verdict::kTogether, wishes[0], ""};
  }
  const auto first = std::find_if(
      wishes.begin(), wishes.end(),
      [](const Wish& wish) { return wish.kind == WishKind::kUnshard; });
  return {Verdict::kServe, *first, ""};
}

std::string rule_broken_by(const Wish& wish) {
  const bool gathers = wish.kind == WishKind::kUnshard && wish.in_backward == 0;
  if (!gathers && !begins_step(wish)) {
    return "";
  }
  return wish.full_precision != 0
      ? "; every rank calls summon_full_parameters(), or none"
      : "; every rank makes every forward, an evaluation too, and uses the "
        "same units in it: where one rank alone reads parameters, let it do "
        "so inside summon_full_parameters({.read_only = true}), which every "
        "rank opens";
}

std::string describe(
    const Wish& wish, std::span<const std::string> unit_names) {
  return str(
      plain(wish, unit_names), " (step ", wish.sequence, ", generation ",
      wish.generation, ", backward ", wish.backward, ")");
}

}  // namespace sherd::exchange
