// SPDX-License-Identifier: Apache-2.0
#include "watch/metrics_csv.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include "train/metric_columns.h"

namespace sherd::tools {
namespace {

// Whole numbers up to this one are exact, and are written without an exponent.
constexpr double kWholeMax = 0x1p53;

// The shortest text that reads back as the same number.
std::string text_of(std::optional<double> value) {
  if (!value.has_value() || !std::isfinite(*value)) {
    return "";
  }
  if (std::abs(*value) <= kWholeMax && std::trunc(*value) == *value) {
    return std::to_string(static_cast<std::int64_t>(*value));
  }
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), *value).ptr;
  return {text.data(), end};
}

}  // namespace

std::string csv_header() {
  std::string line;
  for (const auto& column : kMetricColumns) {
    line += (line.empty() ? "" : ",") + std::string(column.name);
  }
  return line + "\n";
}

std::string csv_line(const StepMetrics& record) {
  std::string line;
  for (const auto& column : kMetricColumns) {
    line += text_of(column.value(record)) + ",";
  }
  line.back() = '\n';
  return line;
}

}  // namespace sherd::tools
