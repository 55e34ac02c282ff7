// SPDX-License-Identifier: Apache-2.0
//
// Lets waits for other ranks end when the program wants it (sherd/base/run_main.h).
#pragma once

#include <exception>
#include <sherd/base/run_main.h>
#include "base/clock.h"
#include "base/status.h"

namespace sherd {

// A wait polls its own InterruptibleWait while it lasts. Once the check has returned true, waits of
// all threads end, because the interrupted thread may itself be waiting for another thread of
// sherd. Thread rule: one thread.
class InterruptibleWait {
 public:
  InterruptibleWait() = default;
  ~InterruptibleWait();
  InterruptibleWait(const InterruptibleWait&) = delete;
  InterruptibleWait& operator=(const InterruptibleWait&) = delete;

  // How long a wait may sleep between two polls.
  static constexpr Duration kPeriod = std::chrono::milliseconds(50);
  // Whether a check is set.
  static bool possible();
  // Whether some wait was interrupted and has not returned yet.
  static bool under_way();

  // Returns kAborted if this wait should end. Calls the check at most once in kPeriod.
  Status poll();

 private:
  Instant next_{0};
  bool interrupted_ = false;
};

// Throws Error if parameters must not be used here: in a forked process, or inside the check of a
// wait. `what` is the start of the sentence.
void check_may_use_parameters(const char* what);

// Calls the translator with an Error; rethrows the current exception. REQUIRES: called in a catch
// clause.
[[noreturn]] void rethrow_translated(const Error& error);

}  // namespace sherd
