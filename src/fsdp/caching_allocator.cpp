// SPDX-License-Identifier: Apache-2.0
#include "fsdp/caching_allocator.h"

#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <c10/core/Allocator.h>
#include "base/check.h"
#include "exchange/gradient_heap.h"

namespace sherd::fsdp {
namespace {

constexpr std::size_t kLargeBytes = 256 << 10;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kHeaderBytes = 64;  // Keeps LibTorch's alignment.

// Before the memory of each block.
struct Header {
  std::size_t block_bytes = 0;
  std::uint64_t freed = 0;  // A number that grows, if it is kept.
};
static_assert(sizeof(Header) <= kHeaderBytes);

Header* header_of(void* memory) {
  return reinterpret_cast<Header*>(static_cast<char*>(memory) - kHeaderBytes);
}

bool is_large(std::size_t block_bytes) { return block_bytes >= kLargeBytes; }

void raise_to(std::atomic<std::int64_t>& most, std::int64_t value) {
  auto seen = most.load(std::memory_order_relaxed);
  while (value > seen &&
         !most.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

// Lives as long as the process: storages keep their allocator, and all that a deleter knows is the
// address.
class Pool final : public c10::Allocator {
 public:
  static Pool& instance() {
    static Pool& only = *std::make_unique<Pool>().release();
    return only;
  }

  void install() {
    const std::lock_guard lock(mu_);
    if (users_++ > 0) {
      return;
    }
    auto* before = exchange::cpu_allocator();
    const bool another = before_ != nullptr && before_ != before;
    if (another || before->raw_deleter() == nullptr) {
      return;  // Blocks of `before_` may still come back.
    }
    before_ = before;
    most_.store(bytes(), std::memory_order_relaxed);
    delete_before_ = before->raw_deleter();
    installed_ = true;
    exchange::set_cpu_allocator(this);
  }
  void remove() {
    const std::lock_guard lock(mu_);
    if (--users_ > 0 || !installed_) {
      return;
    }
    if (exchange::cpu_allocator() == this) {
      exchange::set_cpu_allocator(before_);
    }
    installed_ = false;
    evict(bytes_.load(std::memory_order_relaxed));
  }
  bool installed() const { return installed_; }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) {
      return before_->allocate(0);
    }
    void* memory = bytes + kHeaderBytes < kLargeBytes ? small_block(bytes)
                                                      : large_block(bytes);
    return {memory, memory, &free_block, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  std::int64_t take_peak() {
    return peak_.exchange(bytes(), std::memory_order_relaxed);
  }
  std::int64_t cached_bytes() const {
    return cached_.load(std::memory_order_relaxed);
  }
  void release_cached() {
    const std::lock_guard lock(mu_);
    most_.store(bytes(), std::memory_order_relaxed);
    evict(bytes());
  }

 private:
  static void free_block(void* memory) {
    if (memory == nullptr) {
      return;
    }
    auto& self = instance();
    auto* header = header_of(memory);
    const auto size = header->block_bytes;
    if (!is_large(size)) {
      self.delete_before_(header);
      self.bytes_.fetch_sub(
          static_cast<std::int64_t>(size), std::memory_order_relaxed);
      return;
    }
    const std::lock_guard lock(self.mu_);
    self.bytes_.fetch_sub(
        static_cast<std::int64_t>(size), std::memory_order_relaxed);
    if (!self.installed_) {
      ::munmap(header, size);
      return;
    }
    header->freed = self.frees_++;
    self.kept_[size].push_back(header);
    self.cached_.fetch_add(
        static_cast<std::int64_t>(size), std::memory_order_relaxed);
  }

  // Counts a block that is in use from now on.
  void count(std::size_t block_bytes) {
    const auto more = static_cast<std::int64_t>(block_bytes);
    const auto now = bytes_.fetch_add(more, std::memory_order_relaxed) + more;
    raise_to(peak_, now);
    raise_to(most_, now);
  }
  bool holds_too_much() const {
    return bytes() + cached_bytes() > most_.load(std::memory_order_relaxed);
  }

  void* small_block(std::size_t bytes) {
    const auto size = bytes + kHeaderBytes;
    auto data = before_->allocate(size);
    count(size);
    if (cached_bytes() > 0 && holds_too_much()) {
      const std::lock_guard lock(mu_);
      evict(most_.load(std::memory_order_relaxed));
    }
    return with_header(data.release_context(), size);
  }

  void* large_block(std::size_t bytes) {
    const auto size =
        (bytes + kHeaderBytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    const std::lock_guard lock(mu_);
    const auto found = kept_.find(size);
    if (found != kept_.end()) {
      count(size);
      auto* block = found->second.back();  // The one most recently used.
      found->second.pop_back();
      forget_if_empty(found);
      cached_.fetch_sub(
          static_cast<std::int64_t>(size), std::memory_order_relaxed);
      return with_header(block, size);
    }
    const auto more = static_cast<std::int64_t>(size);
    evict(
        std::max(
            most_.load(std::memory_order_relaxed),
            bytes_.load(std::memory_order_relaxed) + more) -
        more);
    auto* block = map(size);
    if (block == MAP_FAILED) {
      evict(0);
      block = map(size);
    }
    SHERD_CHECK(
        block != MAP_FAILED, "[fsdp] expected ", size,
        " bytes of memory for a tensor, found: ", std::strerror(errno));
    count(size);
    return with_header(block, size);
  }

  static void* map(std::size_t size) {
    return ::mmap(
        nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
        0);
  }

  static void* with_header(void* block, std::size_t size) {
    new (block) Header{.block_bytes = size};
    return static_cast<char*>(block) + kHeaderBytes;
  }

  using Kept = std::map<std::size_t, std::deque<Header*>>;
  void forget_if_empty(Kept::iterator size) {
    if (size->second.empty()) {
      kept_.erase(size);
    }
  }

  // Until no more than that is in use and kept. The block that was freed first goes first.
  // REQUIRES: mu_ is held.
  void evict(std::int64_t bytes_max) {
    while (!kept_.empty() && bytes() + cached_bytes() > bytes_max) {
      const auto oldest =
          std::ranges::min_element(kept_, [](const auto& a, const auto& b) {
            return a.second.front()->freed < b.second.front()->freed;
          });
      const auto size = oldest->first;
      ::munmap(oldest->second.front(), size);
      oldest->second.pop_front();
      forget_if_empty(oldest);
      cached_.fetch_sub(
          static_cast<std::int64_t>(size), std::memory_order_relaxed);
    }
  }

  // All relaxed: they order nothing.
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<std::int64_t> peak_{0};    // Since take_peak().
  std::atomic<std::int64_t> most_{0};    // Since release_cached().
  std::atomic<std::int64_t> cached_{0};  // Written under mu_.
  std::atomic<bool> installed_{false};   // Written under mu_.
  // Set when it is installed first, and the same ever after.
  c10::Allocator* before_ = nullptr;
  c10::DeleterFnPtr delete_before_ = nullptr;
  std::mutex mu_;  // Guards what follows.
  int users_ = 0;
  std::uint64_t frees_ = 0;
  Kept kept_;  // By size, each in the order in which they were freed.
};

}  // namespace

CachingAllocator::CachingAllocator() { Pool::instance().install(); }
CachingAllocator::~CachingAllocator() { Pool::instance().remove(); }

bool CachingAllocator::installed() { return Pool::instance().installed(); }
std::int64_t CachingAllocator::bytes() { return Pool::instance().bytes(); }
std::int64_t CachingAllocator::take_peak() {
  return Pool::instance().take_peak();
}
std::int64_t CachingAllocator::cached_bytes() {
  return Pool::instance().cached_bytes();
}
void CachingAllocator::release_cached() { Pool::instance().release_cached(); }

}  // namespace sherd::fsdp
