// SPDX-License-Identifier: Apache-2.0
//
// Memory that several processes map: an anonymous file (memfd), which has no name, so the kernel
// frees it with the last process that maps it, whichever dies. It starts as zeros. Addresses differ
// between processes, so nothing in a segment is a pointer. It owns the mapping and the descriptor,
// which programs started by exec do not inherit. Thread rule: any thread.
// docs/design/shared_memory.md
#pragma once

#include <cstddef>
#include <span>
#include <type_traits>
#include "base/check.h"
#include "base/descriptor.h"
#include "base/status.h"

namespace sherd::shm {

struct SegmentOptions {
  // ---- behaviour ----
  // Its length; > 0.
  std::size_t bytes = 0;
  // How much of that is expected to be written, and so to take pages; 0 means all. It is compared
  // with the available memory when the segment is created.
  std::size_t touched_bytes = 0;
  // ---- performance ----
  // Asks the kernel for huge pages; ignored if it has none for shared memory
  // (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
  bool huge_pages = false;
};

class Segment {
 public:
  // Creates a segment of zeros. kUnavailable, with bytes wanted and found, if they exceed the
  // available memory; pages are allocated when they are touched.
  static Result<Segment> create(const SegmentOptions& options);

  // Maps a segment created by another process. kPeerMismatch unless `descriptor` is a segment of
  // exactly options.bytes.
  static Result<Segment> from_descriptor(
      Descriptor descriptor, const SegmentOptions& options);

  // Maps nothing; only assignment is allowed.
  Segment() = default;
  ~Segment() { close(); }
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // Can be passed to another process; the segment still owns it.
  int descriptor() const { return file_.get(); }
  std::byte* data() const { return base_; }
  std::size_t bytes() const { return bytes_; }

  // From now on this process can only read the range: a write there is a SIGSEGV. Other processes
  // write as before. kUnavailable, with nothing changed, if the kernel has no more mappings.
  // REQUIRES: whole pages that lie inside.
  Status make_read_only(std::size_t offset, std::size_t bytes) const;

  // From now on this process may write the whole range, and others do not see its writes. Addresses
  // and contents stay; writes of others show in pages that this process has not written itself
  // since. Written pages cost memory. kUnavailable, with nothing changed, if the kernel refuses.
  // REQUIRES: as make_read_only().
  Status make_private(std::size_t offset, std::size_t bytes) const;

  // `count` objects from `offset` on; zeros until a process writes. REQUIRES: the range lies
  // inside, `offset` suits T's alignment.
  template <typename T>
  std::span<T> at(std::size_t offset, std::size_t count) const {
    static_assert(
        std::is_trivially_copyable_v<T> &&
            std::is_trivially_default_constructible_v<T> &&
            std::is_standard_layout_v<T> && !std::is_pointer_v<T>,
        "other processes read the same bytes, and zeros must be a value");
    SHERD_ASSERT(
        offset % alignof(T) == 0 && offset <= bytes_ &&
            count <= (bytes_ - offset) / sizeof(T),
        "range outside of the segment");
    return {reinterpret_cast<T*>(base_ + offset), count};
  }

 private:
  Status map(const SegmentOptions& options);
  void close();

  Descriptor file_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

// `bytes` rounded up to whole pages, which are the smallest unit of protection.
std::size_t round_up_to_pages(std::size_t bytes);

}  // namespace sherd::shm
