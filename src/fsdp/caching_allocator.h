// SPDX-License-Identifier: Apache-2.0
//
// CachingAllocator gives LibTorch its CPU memory while a memory limit holds. It counts what is in
// use, and it keeps large blocks that are freed for later ones of the same size, as PyTorch's caching
// allocator for CUDA does. What is in use and what it keeps are never more together than what was in
// use at once: so the resident memory of a process follows what its tensors need, without the holes
// of a heap and without new page faults at every step. Thread rule: any thread.
#pragma once

#include <cstdint>

namespace sherd::fsdp {

class CachingAllocator {
 public:
  // LibTorch allocates here until the last of these has ended, unless its own allocator was replaced
  // by one that cannot be wrapped. Tensors may live longer.
  CachingAllocator();
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // False if it could not be installed: all figures are 0 then.
  static bool installed();
  // In use, of what was allocated here.
  static std::int64_t bytes();
  // The most in use since the last call. For one caller in a process.
  static std::int64_t take_peak();
  // Freed and kept.
  static std::int64_t cached_bytes();
  // Gives what is kept back to the system; less will be kept from now on, until more is in use.
  static void release_cached();
};

}  // namespace sherd::fsdp
