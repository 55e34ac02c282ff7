// SPDX-License-Identifier: Apache-2.0
//
// What a training run shows while it runs: a bar that is redrawn on a terminal, or a plain line now
// and then elsewhere. It decides what to print and when; the caller provides the time and the width
// of the terminal, and prints. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sherd::tools {

struct ProgressState {
  std::int64_t step = 0;  // How many steps are done.
  std::int64_t steps = 0;
  double loss = 0;
  std::optional<double> val_loss = std::nullopt;  // As last measured.
  double tokens_per_s = 0;
  std::int64_t rss_bytes = 0;  // That of the rank with most.
  double seconds_left = 0;
};

// "step 120/200 | loss 2.413 | val 2.602 | 5.1k tokens/s | 412 MiB/rank |
// 0:21 left", on one line.
std::string progress_line(const ProgressState& state);

// The same behind a bar, at most `columns` wide: what does not fit is left out, first the bar, then
// fields from the right.
std::string progress_bar(const ProgressState& state, int columns);

// "0:07", "12:34", "1:02:03".
std::string format_duration(double seconds);

// "812", "5.1k", "1.25M": a rate or a count.
std::string format_rate(double rate);

// "412 MiB", "12.5 GiB".
std::string format_memory(std::int64_t bytes);

// The last line about the steps of a run: "done   loss 2.413, validation 2.602, 5123 tokens/s,
// 0:21". If the run ended before its last step, the line says at which one. `seconds_left` and
// `rss_bytes` are not used.
std::string end_line(const ProgressState& state, double seconds);

enum class ProgressStyle { kSilent, kLines, kBar };

class ProgressDisplay {
 public:
  // Lines appear at most every `line_interval_s`, except for the first step, the last, and steps
  // that were validated.
  explicit ProgressDisplay(ProgressStyle style, double line_interval_s = 5.0);

  // What to write now; often nothing.
  std::string update(
      const ProgressState& state, bool validated, double now_s, int columns);

  // Ends a bar on the screen, so that other text can follow.
  std::string finish();

 private:
  const ProgressStyle style_;
  const double line_interval_s_;
  double last_s_ = 0;
  bool shown_ = false;
};

}  // namespace sherd::tools
