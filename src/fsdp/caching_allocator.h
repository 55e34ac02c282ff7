// SPDX-License-Identifier: Apache-2.0
//
// CachingAllocator gives LibTorch its CPU memory while a memory limit holds. It counts what is in
// use, and it keeps large freed blocks for later blocks of the same size. Both together are never
// more than the largest amount that was in use at once. Thread rule: any thread. Why:
// docs/design/memory.md.
#pragma once

#include <cstdint>

namespace sherd::fsdp {

class CachingAllocator {
 public:
  // LibTorch allocates here until the last of these objects has ended, unless its own allocator was
  // replaced by one that cannot be wrapped. Tensors may live longer.
  CachingAllocator();
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // Whether it could be installed. If not, all figures are 0.
  static bool installed();
  // The bytes in use of what was allocated here.
  static std::int64_t bytes();
  // The most bytes in use since the last call. For one caller in a process.
  static std::int64_t take_peak();
  // The bytes that were freed and kept.
  static std::int64_t cached_bytes();
  // Returns what is kept to the system; less will be kept from now on, until more is in use.
  static void release_cached();
};

}  // namespace sherd::fsdp
