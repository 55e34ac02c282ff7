// SPDX-License-Identifier: Apache-2.0
//
// StepBarrier keeps the copies of the bound in lock step: processes of one host
// that map one page. It spins for some milliseconds before it sleeps: ranks
// come that close together on an idle machine, and waking up would cost what a
// bound must not; on a busy machine spinning on would. Thread rule: one thread a
// process.
#pragma once

#include <string>

namespace sherd::bench {

class StepBarrier {
 public:
  // `path` leads to a file of at least kBytes zero bytes that all `ranks`
  // processes open. Throws Error when it cannot be mapped.
  StepBarrier(const std::string& path, int ranks);
  ~StepBarrier();
  StepBarrier(const StepBarrier&) = delete;
  StepBarrier& operator=(const StepBarrier&) = delete;

  // Returns when every rank has called it as often as this one. Throws Error
  // when that takes a minute.
  void wait();

  static constexpr int kBytes = 4096;

 private:
  struct Page;
  Page* page_ = nullptr;
  const unsigned ranks_;
  unsigned waits_ = 0;
};

}  // namespace sherd::bench
