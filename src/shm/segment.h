// SPDX-License-Identifier: Apache-2.0
//
// Memory that several processes map: an anonymous file (memfd), which has no name, so the kernel
// frees it with the last process that maps it, whatever dies. It starts as zeros. Addresses differ
// between processes, so nothing in a segment is a pointer. Owns the mapping and the descriptor,
// which programs started by exec do not inherit. Thread rule: any thread.
// docs/design/shared_memory.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include "base/check.h"
#include "base/descriptor.h"
#include "base/status.h"

namespace sherd::shm {

struct SegmentOptions {
  // Behaviour. Its length; > 0.
  std::size_t bytes = 0;
  // How much of that will ever be written, and so take pages; 0: all. This is
  // compared with the available memory when the segment is made.
  std::size_t touched_bytes = 0;
  // Performance. Asks the kernel for huge pages; ignored where it has none for
  // shared memory (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
  bool huge_pages = false;
};

class Segment {
 public:
  // A new segment of zeros. kUnavailable, with bytes wanted and found, when
  // they exceed the memory left; pages are taken when they are touched.
  static Result<Segment> create(const SegmentOptions& options);

  // Maps what another process created. kPeerMismatch unless `descriptor` is a
  // segment of exactly options.bytes.
  static Result<Segment> from_descriptor(
      Descriptor descriptor, const SegmentOptions& options);

  // Maps nothing; the only call allowed is assignment.
  Segment() = default;
  ~Segment() { close(); }
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  // To be passed to another process; stays owned here.
  int descriptor() const { return file_.get(); }
  std::byte* data() const { return base_; }
  std::size_t bytes() const { return bytes_; }

  // From now on this process only reads the range: a write there is a SIGSEGV.
  // Others write as before. kUnavailable, and nothing has changed, when the
  // kernel has no more mappings. REQUIRES: whole pages that lie inside.
  Status make_read_only(std::size_t offset, std::size_t bytes) const;

  // From now on nobody else sees what this process writes into the range, and it
  // may write all of it. Addresses and contents stay; writes of others show in
  // pages that this process has not written itself since. Pages that are written
  // cost memory. kUnavailable, and nothing has changed, when the
  // kernel refuses. REQUIRES: as make_read_only().
  Status make_private(std::size_t offset, std::size_t bytes) const;

  // `count` objects from `offset` on; zeros until somebody writes.
  // REQUIRES: the range lies inside, `offset` suits T's alignment.
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

// `bytes` rounded up to whole pages: only these are protected on their own.
std::size_t round_up_to_pages(std::size_t bytes);

}  // namespace sherd::shm
