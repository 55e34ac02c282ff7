// SPDX-License-Identifier: Apache-2.0
#include "watch/metrics_csv.h"

#include <array>
#include <charconv>
#include <cmath>
#include <optional>

namespace sherd::tools {
namespace {

// The shortest text that reads back as the same number.
std::string text_of(std::optional<double> value) {
  if (!value.has_value() || !std::isfinite(*value)) {
    return "";
  }
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), *value).ptr;
  return {text.data(), end};
}

}  // namespace

std::string csv_header() {
  return "step,time,tokens,loss,val_loss,lr,grad_norm,step_s,tokens_per_s,mfu,"
         "rss_bytes\n";
}

std::string csv_line(const StepMetrics& record) {
  return std::to_string(record.step) + "," + text_of(record.time) + "," +
      std::to_string(record.tokens) + "," + text_of(record.loss) + "," +
      text_of(record.val_loss) + "," + text_of(record.lr) + "," +
      text_of(record.grad_norm) + "," + text_of(record.step_s) + "," +
      text_of(record.tokens_per_s) + "," + text_of(record.mfu) + "," +
      std::to_string(record.rss_bytes) + "\n";
}

}  // namespace sherd::tools
