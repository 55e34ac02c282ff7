// SPDX-License-Identifier: Apache-2.0
//
// What waits for other ranks know of the program's wish that they end (sherd/base/run_main.h).
#pragma once

#include <exception>
#include <sherd/base/run_main.h>
#include "base/clock.h"
#include "base/status.h"

namespace sherd {

// Polled by one wait while it lasts. Once the check has said yes, waits of all threads end, since
// the thread that was asked may wait for another of ours. Thread rule: one thread.
class InterruptibleWait {
 public:
  InterruptibleWait() = default;
  ~InterruptibleWait();
  InterruptibleWait(const InterruptibleWait&) = delete;
  InterruptibleWait& operator=(const InterruptibleWait&) = delete;

  // How long a wait may sleep between two polls.
  static constexpr Duration kPeriod = std::chrono::milliseconds(50);
  // Whether there is a check at all.
  static bool possible();
  // Some wait was interrupted and has not returned yet.
  static bool under_way();

  // kAborted when this wait shall end. Calls the check once in kPeriod at most.
  Status poll();

 private:
  Instant next_{0};
  bool interrupted_ = false;
};

// Throws Error where no parameter may be used: in a process that was forked, and inside the check of a
// wait. `what` begins the sentence.
void check_may_use_parameters(const char* what);

// Gives the translator what an Error is; rethrows what it is. REQUIRES: called in a catch clause.
[[noreturn]] void rethrow_translated(const Error& error);

}  // namespace sherd
