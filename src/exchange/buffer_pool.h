// SPDX-License-Identifier: Apache-2.0
//
// BufferPool is a caching allocator of page-aligned host memory: returned blocks are kept for the
// next borrower of the same size, because fresh pages cost a page fault each. Lent and kept bytes
// together never exceed the limit, if there is one; kept blocks are freed first, to the system or
// to a source given by the caller. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace sherd::exchange {

// Memory of any number of bytes, including zero; take() returns null if none is left.
struct BufferSource {
  std::function<void*(std::int64_t bytes)> take;
  std::function<void(void* memory, std::int64_t bytes)> give_back;

  static BufferSource of_system();
};

class BufferPool {
 public:
  // bytes_max 0: no limit.
  explicit BufferPool(
      std::int64_t bytes_max = 0,
      BufferSource source = BufferSource::of_system());
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  void set_bytes_max(std::int64_t bytes) { bytes_max_ = bytes; }

  // Returns memory with undefined content, aligned to a page. Throws Error if the source has no
  // memory. REQUIRES: the lent bytes plus `bytes` are within the limit.
  void* borrow(std::int64_t bytes);

  // REQUIRES: borrowed from this pool and not yet given back.
  void give_back(void* memory);

  // Returns kept blocks to the source, largest first, until lent and kept bytes together are at
  // most `bytes`.
  void trim(std::int64_t bytes);

  std::int64_t lent_bytes() const { return lent_bytes_; }
  std::int64_t allocated_bytes() const { return allocated_bytes_; }
  std::int64_t allocated_bytes_peak() const { return allocated_bytes_peak_; }

 private:
  struct Block {
    void* memory;
    std::int64_t bytes;
    bool lent;
  };
  Block* find_kept(std::int64_t bytes);

  std::int64_t bytes_max_;
  const BufferSource source_;
  std::vector<Block> blocks_;
  std::int64_t lent_bytes_ = 0;
  std::int64_t allocated_bytes_ = 0;
  std::int64_t allocated_bytes_peak_ = 0;
};

}  // namespace sherd::exchange
