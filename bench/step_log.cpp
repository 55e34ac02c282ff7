// SPDX-License-Identifier: Apache-2.0
#include "bench/step_log.h"

#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <string_view>
#include "base/parse_number.h"

namespace sherd::bench {
namespace {

constexpr std::array<const char*, 5> kKinds = {
    "begun", "computed", "followed", "replayed", "dropped"};

std::optional<StepEventKind> kind_named(const std::string& name) {
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    if (name == kKinds[i]) {
      return static_cast<StepEventKind>(i);
    }
  }
  return std::nullopt;
}

// Cuts "MARKnumber" off the front.
std::optional<int> take(std::string_view& text, std::string_view mark) {
  if (!text.starts_with(mark)) {
    return std::nullopt;
  }
  text.remove_prefix(mark.size());
  const auto digits = text.substr(0, text.find('.'));
  text.remove_prefix(digits.size());
  const auto value = parse_number<int>(digits);
  return value && *value >= 0 ? value : std::nullopt;
}

}  // namespace

std::string line_of(const StepEvent& line) {
  std::array<char, 120> text{};
  const int count = std::snprintf(
      text.data(), text.size(), "%s %" PRId64 " %.6f ",
      kKinds[static_cast<std::size_t>(line.kind)], line.step, line.time_s);
  if (line.hash) {
    std::snprintf(
        text.data() + count, text.size() - static_cast<std::size_t>(count),
        "%016" PRIx64, *line.hash);
  }
  return text.data() + std::string(line.hash ? "" : "-");
}

std::optional<StepEvent> parse_step_event(const std::string& line) {
  std::istringstream in(line);
  std::string kind_text;
  std::string step_text;
  std::string time_text;
  std::string hash_text;
  std::string more;
  in >> kind_text >> step_text >> time_text >> hash_text;
  if (!in || in >> more) {
    return std::nullopt;
  }
  const auto kind = kind_named(kind_text);
  const auto step = parse_number<std::int64_t>(step_text);
  const auto time_s = parse_number<double>(time_text);
  const auto hash = parse_number<std::uint64_t>(hash_text, 16);
  const bool has_hash = hash_text != "-";
  if (!kind || !step || *step < 0 || !time_s || !std::isfinite(*time_s) ||
      (has_hash && (!hash || hash_text.size() != 16))) {
    return std::nullopt;
  }
  return StepEvent{
      .kind = *kind,
      .step = *step,
      .time_s = *time_s,
      .hash = has_hash ? hash : std::nullopt};
}

std::string file_name_of(const StepLogName& name) {
  return "replica-" + std::to_string(name.replica) + ".rank-" +
      std::to_string(name.rank) + ".life-" + std::to_string(name.process);
}

std::optional<StepLogName> parse_file_name(const std::string& name) {
  std::string_view rest = name;
  const auto replica = take(rest, "replica-");
  const auto rank = replica ? take(rest, ".rank-") : std::nullopt;
  const auto process = rank ? take(rest, ".life-") : std::nullopt;
  if (!process || *process == 0 || !rest.empty()) {
    return std::nullopt;
  }
  return StepLogName{.replica = *replica, .rank = *rank, .process = *process};
}

}  // namespace sherd::bench
