// SPDX-License-Identifier: Apache-2.0
#include "bench/contender_protocol.h"

#include <algorithm>
#include <string_view>
#include <nlohmann/json.hpp>
#include "base/parse_number.h"

namespace sherd::bench {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ReadyReply, torch_version, processes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepsReply, step_ms, losses)

namespace {

constexpr std::string_view kMark = "bench: ";
constexpr int kStepsMax = 100'000;

template <typename Reply>
std::string marked(const Reply& reply) {
  return std::string(kMark) + nlohmann::json(reply).dump();
}

template <typename Reply>
std::optional<Reply> parse_reply(const std::string& line) {
  try {
    return is_answer(line)
        ? std::optional(
              nlohmann::json::parse(line.substr(kMark.size())).get<Reply>())
        : std::nullopt;
  } catch (const nlohmann::json::exception&) {  // Also for NaN and infinity.
    return std::nullopt;
  }
}

template <typename Value>
bool are_positive(const std::vector<Value>& values) {
  return !values.empty() && std::ranges::min(values) > 0;
}

}  // namespace

std::string line_of(const ReadyReply& ready) { return marked(ready); }

std::string line_of(const StepsReply& ran) { return marked(ran); }

bool is_answer(const std::string& line) { return line.starts_with(kMark); }

std::optional<int> parse_request(const std::string& line) {
  const auto steps = parse_number<int>(line);
  return steps && *steps >= 0 && *steps <= kStepsMax ? steps : std::nullopt;
}

std::optional<ReadyReply> parse_ready_reply(const std::string& line) {
  auto ready = parse_reply<ReadyReply>(line);
  return ready && are_positive(ready->processes) ? ready : std::nullopt;
}

std::optional<StepsReply> parse_steps_reply(const std::string& line) {
  auto ran = parse_reply<StepsReply>(line);
  return ran && are_positive(ran->step_ms) &&
          ran->losses.size() == ran->step_ms.size()
      ? ran
      : std::nullopt;
}

}  // namespace sherd::bench
