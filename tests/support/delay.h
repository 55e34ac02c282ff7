// SPDX-License-Identifier: Apache-2.0
//
// Delays as a stimulus: a test makes something late. Never used to wait for something.
#pragma once

#include <poll.h>
#include <chrono>
#include <ctime>

namespace sherd::test {

inline void be_late(std::chrono::microseconds by) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(by);
  const timespec time{
      static_cast<std::time_t>(seconds.count()),
      static_cast<long>((by - seconds).count()) * 1000};
  ::ppoll(nullptr, 0, &time, nullptr);
}

}  // namespace sherd::test
