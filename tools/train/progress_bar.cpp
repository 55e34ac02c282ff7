// SPDX-License-Identifier: Apache-2.0
#include "train/progress_bar.h"

#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <iterator>
#include "format_text.h"

namespace sherd::tools {
namespace {

constexpr int kWidth = 40;

std::int64_t percent(std::int64_t done, std::int64_t all) {
  return all > 0 ? std::clamp<std::int64_t>(done * 100 / all, 0, 100) : 100;
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  auto number = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (number >= 999.5 && unit + 1 < std::size(kUnits)) {
    number /= 1000;
    ++unit;
  }
  return format("%.3g %s", number, kUnits[unit]);
}

std::string progress_line(
    const std::string& what, std::int64_t done, std::int64_t all) {
  const auto now = percent(done, all);
  const auto filled = static_cast<std::size_t>(now * kWidth / 100);
  return what + " [" + std::string(filled, '#') +
      std::string(kWidth - filled, ' ') +
      format("] %3d %%  ", static_cast<int>(now)) + bytes_text(done) + " of " +
      bytes_text(all);
}

std::function<void(std::int64_t done, std::int64_t all)> progress_bar(
    const std::string& what) {
  if (::isatty(STDERR_FILENO) == 0) {
    return nullptr;
  }
  return [what, shown = std::int64_t{-1}](
             std::int64_t done, std::int64_t all) mutable {
    const auto now = percent(done, all);
    if (now != shown) {
      shown = now;
      // Returns to the beginning of the line, which the next output overwrites.
      std::fprintf(
          stderr, "\r\033[K%s%s", progress_line(what, done, all).c_str(),
          now == 100 ? "\r\033[K" : "");
      std::fflush(stderr);
    }
  };
}

}  // namespace sherd::tools
