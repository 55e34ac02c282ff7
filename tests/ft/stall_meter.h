// SPDX-License-Identifier: Apache-2.0
//
// StallMeter measures how late this machine wakes its processes, so that a test with a time limit
// can allow for it: on a busy machine any process may have to wait for seconds. It is a process of
// its own, since a test that sets its children's clocks must have one thread only. Thread rule: one
// thread.
#pragma once

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <csignal>
#include "base/check.h"
#include "base/clock.h"
#include "ft/shared_number.h"

namespace sherd::ft::test {

class StallMeter {
 public:
  StallMeter() : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      measure();
    }
    SHERD_CHECK(pid_ > 0, "[test] expected a process");
  }
  ~StallMeter() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  StallMeter(const StallMeter&) = delete;
  StallMeter& operator=(const StallMeter&) = delete;

  // The longest delay so far.
  Duration longest() const { return Duration(longest_ns_.get()); }

 private:
  [[noreturn]] void measure() {
    constexpr Duration kPeriod = std::chrono::milliseconds(10);
    const SteadyClock clock;
    for (Instant last = clock.now();;) {
      ::poll(nullptr, 0, 10);
      const Instant now = clock.now();
      const Duration late = now - last - kPeriod;
      longest_ns_.set(std::max(longest_ns_.get(), late.count()));
      last = now;
    }
  }

  SharedNumber longest_ns_{0};
  const pid_t pid_;
};

}  // namespace sherd::ft::test
