// SPDX-License-Identifier: Apache-2.0
//
// How the options of `sherd bench` are refused: with an Error that names the flag, what was
// expected and what was found. Thread rule: pure functions, any thread.
#pragma once

#include <sstream>
#include <string>
#include <vector>
#include <sherd/base/error.h>

namespace sherd::bench {

template <typename T>
[[noreturn]] void refuse(
    const char* flag, const std::string& expected, const T& found) {
  std::ostringstream message;
  message << "[bench] " << flag << ": expected " << expected << ", found "
          << found;
  throw Error(message.str());
}

// Refuses smaller values, and NaN.
template <typename T>
void expect_at_least(const char* flag, double least, const T& found) {
  if (!(static_cast<double>(found) >= least)) {
    std::ostringstream expected;
    expected << "at least " << least;
    refuse(flag, expected.str(), found);
  }
}

void expect_one_of(
    const char* flag,
    const std::vector<std::string>& known,
    const std::string& found);

}  // namespace sherd::bench
