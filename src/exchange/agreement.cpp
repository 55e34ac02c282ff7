// SPDX-License-Identifier: Apache-2.0
#include "exchange/agreement.h"

#include <algorithm>

#include "base/check.h"
#include "exchange/exchange.h"

namespace sherd::exchange {
namespace {

bool part_of_backward(const CollectiveRequest& request) {
  return request.kind == CollectiveKind::kEndBackward ||
      request.kind == CollectiveKind::kStartReductions ||
      (request.kind == CollectiveKind::kUnshard && request.in_backward != 0);
}

// Both inside the same backward of the same parameters.
bool may_differ(const CollectiveRequest& a, const CollectiveRequest& b) {
  return part_of_backward(a) && part_of_backward(b) &&
      a.sequence == b.sequence && a.generation == b.generation &&
      a.backward == b.backward;
}

// As the first forward of a step does.
bool begins_step(const CollectiveRequest& request) {
  return request.kind == CollectiveKind::kAllReduce &&
      request.op == static_cast<std::uint32_t>(ScalarReduceOp::kSame);
}

// Without the numbers that tell equal requests apart. Strings are appended to, because each gather
// has a description, and a stream takes several times as long.
std::string plain(
    const CollectiveRequest& request, std::span<const std::string> unit_names) {
  switch (request.kind) {
    case CollectiveKind::kUnshard: {
      const auto unit = static_cast<std::size_t>(request.unit);
      const auto name =
          unit < unit_names.size() ? unit_names[unit] : std::to_string(unit);
      return "unshard unit " + name +
          (request.full_precision != 0 ? " in full precision" : "") +
          (request.in_backward != 0 ? " in backward" : " in forward");
    }
    case CollectiveKind::kStartReductions:
      return "reduce gradients";
    case CollectiveKind::kEndBackward:
      return "end the backward";
    case CollectiveKind::kAllReduce:
      if (begins_step(request)) {
        return "begin a step";
      }
      return str(
          "all-reduce ", request.numel, " numbers to their ",
          request.op == static_cast<std::uint32_t>(ScalarReduceOp::kMax)
              ? "largest"
              : "sum");
  }
  return "do something unknown";
}

Status mismatch(
    std::span<const CollectiveRequest> requests,
    std::size_t other,
    std::span<const int> world_ranks,
    std::span<const std::string> unit_names) {
  const auto& mine = requests[0];
  const auto& theirs = requests[other];
  const bool told_apart = mine.generation == theirs.generation &&
      mine.backward == theirs.backward &&
      plain(mine, unit_names) != plain(theirs, unit_names);
  const auto say = [&](const CollectiveRequest& request) {
    return told_apart ? plain(request, unit_names)
                      : describe(request, unit_names);
  };
  const auto rule = rule_broken_by(mine);
  return {
      ErrorCode::kPeerMismatch,
      str("[exchange] ranks went different ways: rank ", world_ranks[0],
          " wants to ", say(mine), ", rank ", world_ranks[other], " wants to ",
          say(theirs), rule.empty() ? rule_broken_by(theirs) : rule)};
}

}  // namespace

Result<CollectiveRequest> agree(
    std::span<const CollectiveRequest> requests,
    std::span<const int> world_ranks,
    std::span<const std::string> unit_names) {
  SHERD_ASSERT(!requests.empty());
  for (std::size_t i = 1; i < requests.size(); ++i) {
    if (requests[i] != requests[0] && !may_differ(requests[0], requests[i])) {
      return mismatch(requests, i, world_ranks, unit_names);
    }
  }
  for (const auto kind :
       {CollectiveKind::kUnshard, CollectiveKind::kStartReductions}) {
    const auto first =
        std::ranges::find(requests, kind, &CollectiveRequest::kind);
    if (first != requests.end()) {
      return *first;
    }
  }
  return requests[0];  // All are equal.
}

FlightStep flight_step(const CollectiveRequest& request) {
  switch (request.kind) {
    case CollectiveKind::kUnshard:
      return request.in_backward != 0 ? FlightStep::kUnshardInBackward
                                      : FlightStep::kUnshardInForward;
    case CollectiveKind::kStartReductions:
      return FlightStep::kStartReductions;
    case CollectiveKind::kEndBackward:
      return FlightStep::kEndBackward;
    case CollectiveKind::kAllReduce:
      break;
  }
  return begins_step(request) ? FlightStep::kBeginStep : FlightStep::kAllReduce;
}

std::string rule_broken_by(const CollectiveRequest& request) {
  const bool gathers =
      request.kind == CollectiveKind::kUnshard && request.in_backward == 0;
  if (!gathers && !begins_step(request)) {
    return "";
  }
  return request.full_precision != 0
      ? "; every rank calls summon_full_parameters(), or none, and uses the "
        "same units inside full_precision()"
      : "; every rank makes every forward, an evaluation too, and uses the "
        "same units in it: where one rank alone reads parameters, let it do "
        "so inside summon_full_parameters({.read_only = true}), which every "
        "rank opens; where an exception ends the forward of one rank, all "
        "ranks have to skip that batch";
}

std::string describe(
    const CollectiveRequest& request, std::span<const std::string> unit_names) {
  return plain(request, unit_names) + " (step " +
      std::to_string(request.sequence) + ", generation " +
      std::to_string(request.generation) + ", backward " +
      std::to_string(request.backward) + ")";
}

}  // namespace sherd::exchange
