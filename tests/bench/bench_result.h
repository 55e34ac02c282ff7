// SPDX-License-Identifier: Apache-2.0
//
// For tests that run `sherd bench`: its last line, which is JSON.
#pragma once

#include <sstream>
#include <string>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "support/shell_command.h"

namespace sherd::test {

inline nlohmann::json bench_result(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_status, 0) << outcome.shown;
  std::istringstream lines(outcome.shown);
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    last = line;
  }
  return nlohmann::json::parse(last, nullptr, /*allow_exceptions=*/false);
}

}  // namespace sherd::test
