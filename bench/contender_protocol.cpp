// SPDX-License-Identifier: Apache-2.0
#include "bench/contender_protocol.h"

#include <cmath>
#include <cstdio>
#include <sstream>
#include <string_view>
#include "base/parse_number.h"
#include "format_text.h"

namespace sherd::bench {
namespace {

constexpr std::string_view kMark = "bench:";
constexpr int kStepsMax = 100'000;

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) {
    words.push_back(word);
  }
  return words;
}

// Whole words [first, end) as finite numbers; nothing if one is not.
std::optional<std::vector<double>> numbers(
    const std::vector<std::string>& words, std::size_t first, std::size_t end) {
  std::vector<double> values;
  for (std::size_t i = first; i < end; ++i) {
    const auto value = parse_number<double>(words[i]);
    if (!value || !std::isfinite(*value)) {
      return std::nullopt;
    }
    values.push_back(*value);
  }
  return values;
}

bool is(const std::vector<std::string>& words, std::string_view kind) {
  return words.size() >= 3 && words[0] == kMark && words[1] == kind;
}

}  // namespace

std::string request_line(int steps) {
  return steps == 0 ? "end" : "run " + std::to_string(steps);
}

std::string line_of(const ReadyReply& ready) {
  std::string line = std::string(kMark) + " ready " + ready.torch_version;
  for (const int process : ready.processes) {
    line += ' ';
    line += std::to_string(process);
  }
  return line;
}

std::string line_of(const StepsReply& ran) {
  std::string line =
      std::string(kMark) + " ran " + std::to_string(ran.step_ms.size());
  for (const auto* values : {&ran.step_ms, &ran.losses}) {
    for (const double value : *values) {
      line += tools::format(" %.9g", value);
    }
  }
  return line;
}

bool is_answer(const std::string& line) { return line.starts_with(kMark); }

std::optional<int> parse_request(const std::string& line) {
  const auto words = words_of(line);
  if (words.size() == 1 && words[0] == "end") {
    return 0;
  }
  if (words.size() != 2 || words[0] != "run") {
    return std::nullopt;
  }
  const auto steps = parse_number<int>(words[1]);
  if (!steps || *steps < 1 || *steps > kStepsMax) {
    return std::nullopt;
  }
  return steps;
}

std::optional<ReadyReply> parse_ready_reply(const std::string& line) {
  const auto words = words_of(line);
  if (!is(words, "ready") || words.size() < 4) {
    return std::nullopt;
  }
  ReadyReply ready{.torch_version = words[2], .processes = {}};
  for (std::size_t i = 3; i < words.size(); ++i) {
    const auto process = parse_number<int>(words[i]);
    if (!process || *process < 1) {
      return std::nullopt;
    }
    ready.processes.push_back(*process);
  }
  return ready;
}

std::optional<StepsReply> parse_steps_reply(const std::string& line) {
  const auto words = words_of(line);
  if (!is(words, "ran")) {
    return std::nullopt;
  }
  const auto steps = parse_number<int>(words[2]);
  if (!steps || *steps < 1 || *steps > kStepsMax) {
    return std::nullopt;
  }
  const auto count = static_cast<std::size_t>(*steps);
  if (words.size() != 3 + 2 * count) {
    return std::nullopt;
  }
  const auto step_ms = numbers(words, 3, 3 + count);
  const auto losses = numbers(words, 3 + count, words.size());
  if (!step_ms || !losses) {
    return std::nullopt;
  }
  for (const double ms : *step_ms) {
    if (ms <= 0.0) {
      return std::nullopt;
    }
  }
  return StepsReply{.step_ms = *step_ms, .losses = *losses};
}

}  // namespace sherd::bench
