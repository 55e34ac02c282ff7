// SPDX-License-Identifier: Apache-2.0
#include "train/progress_display.h"

#include <algorithm>
#include <cmath>
#include <vector>
#include "format_text.h"

namespace sherd::tools {
namespace {

// Faster than the eye, slower than a flood.
constexpr double kBarInterval_s = 0.1;
constexpr int kBarWidthMax = 30;
constexpr int kBarWidthMin = 8;
// Returns to the first column and erases the line.
constexpr const char* kRedraw = "\r\x1b[2K";

// The most important first.
std::vector<std::string> fields(const ProgressState& state) {
  std::vector<std::string> result = {
      "step " + std::to_string(state.step) + "/" + std::to_string(state.steps),
      format("loss %.3f", state.loss)};
  if (state.val_loss.has_value()) {
    result.push_back(format("val %.3f", *state.val_loss));
  }
  result.push_back(format_duration(state.seconds_left) + " left");
  result.push_back(format_rate(state.tokens_per_s) + " tokens/s");
  result.push_back(format_memory(state.rss_bytes) + "/rank");
  return result;
}

std::string joined(const std::vector<std::string>& parts, std::size_t count) {
  std::string result;
  for (std::size_t i = 0; i < count; ++i) {
    result += (i > 0 ? " | " : "") + parts[i];
  }
  return result;
}

std::string bar(const ProgressState& state, int width) {
  const double share = state.steps > 0
      ? static_cast<double>(state.step) / static_cast<double>(state.steps)
      : 0.0;
  const auto filled = static_cast<std::size_t>(
      std::clamp(share, 0.0, 1.0) * static_cast<double>(width));
  std::string result = "[";
  result.append(filled, '#');
  result.append(static_cast<std::size_t>(width) - filled, '.');
  return result + "] ";
}

}  // namespace

std::string format_rate(double rate) {
  if (rate >= 1e6) {
    return format("%.2fM", rate / 1e6);
  }
  return rate >= 1e3 ? format("%.1fk", rate / 1e3) : format("%.0f", rate);
}

std::string format_memory(std::int64_t bytes) {
  const double mib = static_cast<double>(bytes) / 0x1p20;
  return mib < 10'000.0 ? format("%.0f MiB", mib)
                        : format("%.1f GiB", mib / 1024.0);
}

std::string end_line(const ProgressState& state, double seconds) {
  auto text = state.step < state.steps
      ? format(
            "ended  at step %lld of %lld: ", static_cast<long long>(state.step),
            static_cast<long long>(state.steps))
      : std::string("done   ");
  text += format("loss %.3f", state.loss);
  if (state.val_loss.has_value()) {
    text += format(", validation %.3f", *state.val_loss);
  }
  return text + format(", %.0f tokens/s, ", state.tokens_per_s) +
      format_duration(seconds);
}

std::string format_duration(double seconds) {
  const auto total = static_cast<long long>(
      std::isfinite(seconds) ? std::clamp(seconds, 0.0, 1e9) + 0.5 : 0.0);
  const auto hours = total / 3600;
  const auto minutes = total / 60 % 60;
  return hours > 0 ? format("%lld:%02lld:%02lld", hours, minutes, total % 60)
                   : format("%lld:%02lld", minutes, total % 60);
}

std::string progress_line(const ProgressState& state) {
  const auto parts = fields(state);
  return joined(parts, parts.size());
}

std::string progress_bar(const ProgressState& state, int columns) {
  const auto parts = fields(state);
  // One column stays free, since a full line would wrap on some terminals.
  const auto room = static_cast<std::size_t>(std::max(columns - 1, 0));
  auto count = parts.size();
  while (count > 1 && joined(parts, count).size() > room) {
    --count;
  }
  const auto text = joined(parts, count);
  constexpr std::size_t kFrame = 3;  // Brackets and a space.
  const auto spare = room > text.size() + kFrame
      ? static_cast<int>(room - text.size() - kFrame)
      : 0;
  return spare < kBarWidthMin
      ? text.substr(0, room)
      : bar(state, std::min(spare, kBarWidthMax)) + text;
}

ProgressDisplay::ProgressDisplay(ProgressStyle style, double line_interval_s)
    : style_(style), line_interval_s_(line_interval_s) {}

std::string ProgressDisplay::update(
    const ProgressState& state, bool validated, double now_s, int columns) {
  const bool must = !shown_ || state.step >= state.steps ||
      (validated && style_ == ProgressStyle::kLines);
  const double interval_s =
      style_ == ProgressStyle::kBar ? kBarInterval_s : line_interval_s_;
  if (style_ == ProgressStyle::kSilent ||
      (!must && now_s - last_s_ < interval_s)) {
    return "";
  }
  shown_ = true;
  last_s_ = now_s;
  return style_ == ProgressStyle::kBar ? kRedraw + progress_bar(state, columns)
                                       : progress_line(state) + "\n";
}

std::string ProgressDisplay::finish() {
  const bool open = shown_ && style_ == ProgressStyle::kBar;
  shown_ = false;
  return open ? "\n" : "";
}

}  // namespace sherd::tools
