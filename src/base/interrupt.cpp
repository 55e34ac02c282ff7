// SPDX-License-Identifier: Apache-2.0
#include "base/interrupt.h"

#include <atomic>
#include "base/check.h"

namespace sherd {
namespace {

std::atomic<ErrorTranslator> translator{nullptr};
std::atomic<InterruptCheck> interrupt_check{nullptr};
std::atomic<int> interrupted_waits{0};
std::atomic<bool> forked{false};
thread_local bool runs_check = false;

}  // namespace

void set_error_translator(ErrorTranslator function) { translator = function; }
void set_interrupt_check(InterruptCheck function) {
  interrupt_check = function;
}

bool in_interrupt_check() { return runs_check; }

void forbid_after_fork() { forked = true; }

void check_may_use_parameters(const char* what) {
  SHERD_CHECK_AS(
      kFailedPrecondition, !forked, "[autograd] ", what,
      " uses a parameter of a sharded or replicated module in a forked "
      "process, "
      "which is no rank of the job; use the module in the process that forked, "
      "or start the other with spawn");
  SHERD_CHECK_AS(
      kFailedPrecondition, !runs_check, "[autograd] ", what,
      " uses a parameter of a sharded or replicated module in a handler of a "
      "signal that runs while this rank waits for others, whose locks it would "
      "wait for; set a flag there and look at it after the step");
}

void rethrow_translated(const Error& error) {
  if (const auto translate = translator.load()) {
    translate(error);
  }
  throw;
}

InterruptibleWait::~InterruptibleWait() {
  if (interrupted_) {
    --interrupted_waits;
  }
}

bool InterruptibleWait::possible() { return interrupt_check.load() != nullptr; }
bool InterruptibleWait::under_way() { return interrupted_waits.load() > 0; }

Status InterruptibleWait::poll() {
  const auto check = interrupt_check.load();
  if (check == nullptr) {
    return {};
  }
  const Instant now = SteadyClock().now();
  if (!under_way() && now >= next_) {
    next_ = now + kPeriod;
    runs_check = true;
    const bool interrupted = check();
    runs_check = false;
    if (interrupted) {
      interrupted_ = true;
      ++interrupted_waits;
    }
  }
  return under_way() ? Status(
                           ErrorCode::kAborted,
                           "[base] the program was interrupted (Ctrl-C?) while "
                           "it waited for other ranks")
                     : Status();
}

}  // namespace sherd
