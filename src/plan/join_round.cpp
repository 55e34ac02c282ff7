// SPDX-License-Identifier: Apache-2.0
#include "plan/join_round.h"

#include "base/check.h"

namespace sherd::plan {
namespace {

const char* text_of(JoinKind kind) {
  switch (kind) {
    case JoinKind::kNoInputs:
      return "has no inputs";
    case JoinKind::kReduces:
      return "reduces gradients";
    case JoinKind::kKeeps:
      return "is under no_sync()";
    case JoinKind::kReducesPartially:
      return "is under no_sync() of the replicate axis";
  }
  return "does something unknown";
}

}  // namespace

JoinRound join_round(std::span<const double> told) {
  JoinRound round;
  for (int rank = 0; rank < static_cast<int>(told.size()); ++rank) {
    const auto kind =
        static_cast<JoinKind>(told[static_cast<std::size_t>(rank)]);
    if (kind == JoinKind::kNoInputs) {
      round.first_without =
          round.first_without < 0 ? rank : round.first_without;
      continue;
    }
    if (round.active.empty()) {
      round.kind = kind;
    } else if (kind != round.kind && round.difference.empty()) {
      round.difference =
          str("ranks differ in a backward inside join(): rank ",
              round.active.front(), " ", text_of(round.kind), ", rank ", rank,
              " ", text_of(kind));
    }
    round.active.push_back(rank);
  }
  return round;
}

std::string no_more_inputs(int rank, std::int64_t backwards) {
  return str(
      "rank ", rank, " has no more inputs after ", backwards,
      " backwards, and join() was asked to throw on early termination");
}

}  // namespace sherd::plan
