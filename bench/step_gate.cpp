// SPDX-License-Identifier: Apache-2.0
#include "bench/step_gate.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <sherd/base/error.h>

namespace sherd::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Only the first step after a pause waits, and it is not timed.
constexpr auto kPollInterval = std::chrono::milliseconds(1);
constexpr auto kTimeout = std::chrono::minutes(10);

}  // namespace

void open_gate_until(const std::string& gate, std::int64_t step) {
  std::error_code error;
  std::ofstream(gate, std::ios::app).close();
  // The file has a hole: it takes no room.
  std::filesystem::resize_file(gate, static_cast<std::uintmax_t>(step), error);
  if (error) {
    throw Error(
        "[bench] cannot write to " + gate + ": " + error.message(),
        ErrorCode::kUnavailable);
  }
}

void wait_at_gate(const std::string& gate, std::int64_t step) {
  const auto deadline = Clock::now() + kTimeout;
  while (std::filesystem::file_size(gate) < static_cast<std::uintmax_t>(step)) {
    if (Clock::now() > deadline) {
      throw Error(
          "[bench] expected step " + std::to_string(step) +
              " to be allowed within ten minutes",
          ErrorCode::kDeadlineExceeded);
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

}  // namespace sherd::bench
