// SPDX-License-Identifier: Apache-2.0
//
// SharedNumber is a number whose changes a test's children see. It must be created before they are
// forked. Thread rule: any thread.
#pragma once

#include <sys/mman.h>
#include <atomic>
#include <cstdint>
#include <new>
#include "base/check.h"

namespace sherd::ft::test {

class SharedNumber {
 public:
  explicit SharedNumber(std::int64_t value) {
    void* memory = ::mmap(
        nullptr, sizeof *number_, PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    SHERD_CHECK(memory != MAP_FAILED, "[test] expected a page, found none");
    number_ = new (memory) std::atomic<std::int64_t>(value);
  }
  ~SharedNumber() { ::munmap(number_, sizeof *number_); }
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;

  // Relaxed: nothing else is read because of it.
  std::int64_t get() const { return number_->load(std::memory_order_relaxed); }
  void set(std::int64_t value) {
    number_->store(value, std::memory_order_relaxed);
  }
  // Subtracts one, unless it was 0; returns whether it did.
  bool take_one() {
    auto value = get();
    while (value > 0 &&
           !number_->compare_exchange_weak(
               value, value - 1, std::memory_order_relaxed)) {
    }
    return value > 0;
  }

 private:
  std::atomic<std::int64_t>* number_ = nullptr;
};

}  // namespace sherd::ft::test
