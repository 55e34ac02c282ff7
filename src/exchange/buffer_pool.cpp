// SPDX-License-Identifier: Apache-2.0
#include "exchange/buffer_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sherd::exchange {
namespace {

// The system maps nothing of no bytes; such a block counts nothing all the same.
std::size_t mapped(std::int64_t bytes) {
  return static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
}

}  // namespace

BufferSource BufferSource::of_system() {
  return {
      .take = [](std::int64_t bytes) -> void* {
        void* memory = ::mmap(
            nullptr, mapped(bytes), PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return memory == MAP_FAILED ? nullptr : memory;
      },
      .give_back = [](void* memory,
                      std::int64_t bytes) { ::munmap(memory, mapped(bytes)); }};
}

BufferPool::BufferPool(std::int64_t bytes_max, BufferSource source)
    : bytes_max_(bytes_max), source_(std::move(source)) {}

BufferPool::~BufferPool() {
  for (const auto& block : blocks_) {
    source_.give_back(block.memory, block.bytes);
  }
}

BufferPool::Block* BufferPool::find_kept(std::int64_t bytes) {
  const auto found = std::ranges::find_if(blocks_, [&](const Block& block) {
    return !block.lent && block.bytes == bytes;
  });
  return found == blocks_.end() ? nullptr : &*found;
}

void* BufferPool::borrow(std::int64_t bytes) {
  if (auto* kept = find_kept(bytes)) {
    kept->lent = true;
    lent_bytes_ += kept->bytes;
    return kept->memory;
  }
  if (bytes_max_ > 0) {
    SHERD_ASSERT(
        lent_bytes_ + bytes <= bytes_max_, "slots of ", lent_bytes_,
        " bytes are lent, ", bytes, " more would exceed ", bytes_max_);
    trim(bytes_max_ - bytes);
  }
  void* memory = source_.take(bytes);
  SHERD_CHECK_AS(
      kUnavailable, memory != nullptr, "[exchange] expected ", bytes,
      " bytes of memory for a slot, there is none");
  blocks_.push_back({memory, bytes, true});
  lent_bytes_ += bytes;
  allocated_bytes_ += bytes;
  allocated_bytes_peak_ = std::max(allocated_bytes_peak_, allocated_bytes_);
  return memory;
}

void BufferPool::give_back(void* memory) {
  const auto found = std::ranges::find_if(
      blocks_, [&](const Block& block) { return block.memory == memory; });
  SHERD_ASSERT(found != blocks_.end() && found->lent);
  found->lent = false;
  lent_bytes_ -= found->bytes;
}

void BufferPool::trim(std::int64_t bytes) {
  while (allocated_bytes_ > bytes) {
    auto largest = blocks_.end();
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
      if (!block->lent &&
          (largest == blocks_.end() || block->bytes > largest->bytes)) {
        largest = block;
      }
    }
    if (largest == blocks_.end()) {
      return;
    }
    source_.give_back(largest->memory, largest->bytes);
    allocated_bytes_ -= largest->bytes;
    blocks_.erase(largest);
  }
}

}  // namespace sherd::exchange
