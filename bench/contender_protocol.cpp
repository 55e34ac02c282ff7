// SPDX-License-Identifier: Apache-2.0
#include "bench/contender_protocol.h"

#include <algorithm>
#include "base/text.h"

namespace sherd::bench {
namespace {

constexpr int kStepsMax = 100'000;

template <typename Value>
bool are_positive(const std::vector<Value>& values) {
  return !values.empty() && std::ranges::min(values) > 0;
}

}  // namespace

bool is_possible(const ReadyReply& ready) {
  return are_positive(ready.processes);
}

bool is_possible(const StepsReply& ran) {
  return are_positive(ran.step_ms) && ran.losses.size() == ran.step_ms.size();
}

std::optional<int> parse_request(const std::string& line) {
  const auto steps = parse_number<int>(line);
  return steps && *steps >= 0 && *steps <= kStepsMax ? steps : std::nullopt;
}

}  // namespace sherd::bench
