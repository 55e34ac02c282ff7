// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_unit_buffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/check.h"
#include "plan/arithmetic.h"

namespace sherd::exchange {
namespace {

std::int64_t pages(std::int64_t bytes) {
  return plan::round_up(std::max<std::int64_t>(bytes, 1), kPage);
}

}  // namespace

SharedUnitBuffers::SharedUnitBuffers(
    std::span<std::byte> region, std::span<std::uint64_t> dropped, int units)
    : region_(region),
      dropped_(dropped),
      units_(static_cast<std::size_t>(units)),
      lendings_(dropped.size(), 0),
      allocator_(static_cast<std::int64_t>(region.size())),
      pool_(0, source()),
      passing_(0, source()) {}

// Pages that are given back are the kernel's again, in every process.
BufferSource SharedUnitBuffers::source() {
  return {
      .take = [this](std::int64_t bytes) -> void* {
        const auto begin = allocator_.take(pages(bytes));
        return begin ? region_.data() + *begin : nullptr;
      },
      .give_back =
          [this](void* memory, std::int64_t bytes) {
            if (ending_) {
              return;
            }
            ::madvise(
                memory, static_cast<std::size_t>(pages(bytes)), MADV_REMOVE);
            allocator_.give_back(
                static_cast<std::byte*>(memory) - region_.data());
          }};
}

// Acquire: pairs with the release of who drops.
bool SharedUnitBuffers::is_read_by(const Lent& lent, std::size_t local) const {
  auto& number = dropped_[local * units_ + static_cast<std::size_t>(lent.unit)];
  return std::atomic_ref(number).load(std::memory_order_acquire) <
      lent.until[local];
}

std::int64_t SharedUnitBuffers::allocated_bytes_of(int local) const {
  std::int64_t bytes = pool_.allocated_bytes();
  for (const auto& lent : lent_) {
    if (!lent.passing && !is_read_by(lent, static_cast<std::size_t>(local))) {
      bytes -= lent.bytes;
    }
  }
  return bytes;
}

void SharedUnitBuffers::reclaim() {
  std::erase_if(lent_, [&](const Lent& lent) {
    bool free = true;
    for (std::size_t local = 0; local < lent.until.size(); ++local) {
      free = free && !is_read_by(lent, local);
    }
    if (free) {
      (lent.passing ? passing_ : pool_).give_back(lent.memory);
    }
    return free;
  });
  passing_.trim(passing_.lent_bytes());
}

std::int64_t SharedUnitBuffers::allocate(const Request& request) {
  reclaim();
  auto& pool = request.passing ? passing_ : pool_;
  if (!request.passing) {
    pool.set_bytes_max(
        request.bytes_max == 0
            ? 0
            : std::max(request.bytes_max, pool.lent_bytes() + request.bytes));
  }
  Lent lent;
  lent.passing = request.passing;
  lent.bytes = request.bytes;
  lent.unit = request.unit;
  for (std::size_t local = 0; local < request.wanted.size(); ++local) {
    auto& lendings =
        lendings_[local * units_ + static_cast<std::size_t>(request.unit)];
    lent.until.push_back(request.wanted[local] ? ++lendings : 0);
  }
  lent.memory = pool.borrow(request.bytes);
  if (request.bytes_max > 0) {
    pool_.trim(std::max(request.bytes_max, pool_.lent_bytes()));
  }
  lent_.push_back(lent);
  return static_cast<std::byte*>(lent.memory) - region_.data();
}

}  // namespace sherd::exchange
