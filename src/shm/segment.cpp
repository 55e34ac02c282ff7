// SPDX-License-Identifier: Apache-2.0
#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include "shm/available_memory.h"

namespace sherd::shm {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20U;
// Leaves room for rounding up to pages.
constexpr std::size_t kBytesMax =
    static_cast<std::size_t>(std::numeric_limits<off_t>::max()) - 2 * kHugePage;

std::size_t page_bytes() {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

Status unavailable(std::size_t bytes, const char* call) {
  return {
      ErrorCode::kUnavailable,
      str("[world] a shared segment of ", bytes, " bytes: ", call,
          " failed: ", std::strerror(errno))};
}

std::optional<std::size_t> length_of(const Descriptor& file) {
  struct stat found = {};
  if (::fstat(file.get(), &found) != 0) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(found.st_size);
}

// Above this limit ftruncate() does not fail but kills, by SIGXFSZ.
Status within_file_limit(std::size_t bytes) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) {
    return {};
  }
  return {
      ErrorCode::kUnavailable,
      str("[world] a shared segment of ", bytes,
          " bytes: expected a limit of file sizes (ulimit -f) that allows it, "
          "found ",
          limit.rlim_cur, " bytes")};
}

// Makes `file` at least `bytes` long; `untouched` of them take no pages.
Status lengthen(
    const Descriptor& file, std::size_t bytes, std::size_t untouched = 0) {
  const auto found = length_of(file);
  if (!found) {
    return unavailable(bytes, "fstat");
  }
  if (*found >= bytes) {
    return {};
  }
  Status possible = within_file_limit(bytes);
  if (possible.ok()) {
    possible = check_available_memory(
        bytes - *found - untouched, available_memory(read_small_file));
  }
  if (!possible.ok()) {
    return possible;
  }
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0) {
    return {};
  }
  // The seal against shrinking refuses when another process was faster and
  // made it longer still.
  const int reason = errno;
  if (reason == EPERM && length_of(file).value_or(0) >= bytes) {
    return {};
  }
  errno = reason;
  return unavailable(bytes, "ftruncate");
}

Status check_sizes(const SegmentOptions& options) {
  const std::size_t most = std::max(options.bytes, options.reserve_bytes);
  if (options.bytes > 0 && most <= kBytesMax) {
    return {};
  }
  return {
      ErrorCode::kInvalidArgument,
      str("[world] a shared segment: expected 1 to ", kBytesMax,
          " bytes, found ", options.bytes > 0 ? most : options.bytes)};
}

}  // namespace

std::size_t round_up_to_pages(std::size_t bytes) {
  return round_up(bytes, page_bytes());
}

Result<Segment> Segment::create(const SegmentOptions& options) {
  if (Status wrong = check_sizes(options); !wrong.ok()) {
    return wrong;
  }
  Segment segment;
  segment.file_ = Descriptor(
      ::memfd_create("sherd-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.file_.open()) {
    return unavailable(options.bytes, "memfd_create");
  }
  const std::size_t untouched =
      options.touched_bytes > 0 && options.touched_bytes < options.bytes
      ? options.bytes - options.touched_bytes
      : 0;
  if (Status failed = lengthen(segment.file_, options.bytes, untouched);
      !failed.ok()) {
    return failed;
  }
  // Nobody can take pages away under a rank that reads them (SIGBUS).
  if (::fcntl(segment.descriptor(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    return unavailable(options.bytes, "sealing");
  }
  if (Status failed = segment.map(options); !failed.ok()) {
    return failed;
  }
  return segment;
}

Result<Segment> Segment::from_descriptor(
    Descriptor descriptor, const SegmentOptions& options) {
  if (Status wrong = check_sizes(options); !wrong.ok()) {
    return wrong;
  }
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(
        ErrorCode::kPeerMismatch,
        "[world] expected the descriptor of a shared segment that cannot "
        "shrink, found another one");
  }
  const std::size_t found = length_of(descriptor).value_or(0);
  if (found != options.bytes) {
    return Status(
        ErrorCode::kPeerMismatch,
        str("[world] expected a shared segment of ", options.bytes,
            " bytes, found one of ", found));
  }
  Segment segment;
  segment.file_ = std::move(descriptor);
  if (Status failed = segment.map(options); !failed.ok()) {
    return failed;
  }
  return segment;
}

// Maps the file with all it may grow to: addresses beyond its end fault until
// it is longer, so growing needs no second mapping in any process.
Status Segment::map(const SegmentOptions& options) {
  const std::size_t most =
      round_up_to_pages(std::max(options.bytes, options.reserve_bytes));
  // Huge pages need an aligned address, so look for one in a larger range.
  const std::size_t room = most + kHugePage;
  void* found = ::mmap(
      nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
      0);
  if (found == MAP_FAILED) {
    return unavailable(most, "reserving addresses");
  }
  auto* const first = static_cast<std::byte*>(found);
  const std::size_t misfit =
      reinterpret_cast<std::uintptr_t>(first) % kHugePage;
  const std::size_t skipped = misfit == 0 ? 0 : kHugePage - misfit;
  std::byte* const base = first + skipped;
  const void* mapped = ::mmap(
      base, most, PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file_.get(), 0);
  if (mapped == MAP_FAILED) {
    Status failed = unavailable(most, "mmap");
    ::munmap(first, room);
    return failed;
  }
  if (skipped > 0) {
    ::munmap(first, skipped);
  }
  if (room - skipped > most) {
    ::munmap(base + most, room - skipped - most);
  }
  base_ = base;
  bytes_ = options.bytes;
  mapped_bytes_ = most;
  if (options.huge_pages) {
    ::madvise(base_, mapped_bytes_, MADV_HUGEPAGE);
  }
  return {};
}

Status Segment::grow(std::size_t bytes) {
  if (bytes > mapped_bytes_) {
    return {
        ErrorCode::kUnavailable,
        str("[world] a shared segment of ", bytes_,
            " bytes: expected to grow to at most the reserved ", mapped_bytes_,
            " bytes, found ", bytes)};
  }
  if (Status failed = lengthen(file_, bytes); !failed.ok()) {
    return failed;
  }
  bytes_ = std::max(bytes_, bytes);
  return {};
}

Status Segment::touch(std::size_t offset, std::size_t bytes) const {
  SHERD_ASSERT(
      offset <= bytes_ && bytes <= bytes_ - offset,
      "range outside of the segment");
  const std::size_t page = page_bytes();
  const std::size_t begin = offset / page * page;
  const std::size_t end = round_up(offset + bytes, page);
  if (bytes == 0) {
    return {};
  }
#ifdef MADV_POPULATE_WRITE
  constexpr int kPopulate = MADV_POPULATE_WRITE;
#else
  constexpr int kPopulate = 23;  // Linux 5.14; older libc headers lack it.
#endif
  int outcome = 0;
  do {
    outcome = ::madvise(base_ + begin, end - begin, kPopulate);
  } while (outcome != 0 && errno == EINTR);
  if (outcome == 0) {
    return {};
  }
  if (errno != EINVAL) {
    return unavailable(bytes, "taking its pages");
  }
  // An older kernel. Adding 0 atomically writes to the page and loses nothing
  // that another process writes meanwhile; no order is needed.
  for (std::size_t at = begin; at < end; at += page) {
    auto& byte = reinterpret_cast<unsigned char&>(base_[at]);
    std::atomic_ref<unsigned char>(byte).fetch_add(
        0, std::memory_order_relaxed);
  }
  return {};
}

Status Segment::make_read_only(std::size_t offset, std::size_t bytes) const {
  SHERD_ASSERT(
      offset % page_bytes() == 0 && bytes % page_bytes() == 0 &&
          offset <= bytes_ && bytes <= round_up_to_pages(bytes_) - offset,
      "range outside of the segment, or of no whole pages");
  return ::mprotect(base_ + offset, bytes, PROT_READ) == 0
      ? Status()
      : unavailable(bytes, "mprotect");
}

// Other threads that use the range meanwhile find one mapping or the other.
Status Segment::make_private(std::size_t offset, std::size_t bytes) const {
  SHERD_ASSERT(
      offset % page_bytes() == 0 && bytes % page_bytes() == 0 &&
          offset <= bytes_ && bytes <= round_up_to_pages(bytes_) - offset,
      "range outside of the segment, or of no whole pages");
  const void* mapped = ::mmap(
      base_ + offset, bytes, PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file_.get(),
      static_cast<off_t>(offset));
  return mapped != MAP_FAILED ? Status()
                              : unavailable(bytes, "a private mapping");
}

Segment::Segment(Segment&& other) noexcept
    : file_(std::move(other.file_)),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    close();
    file_ = std::move(other.file_);
    base_ = std::exchange(other.base_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    mapped_bytes_ = std::exchange(other.mapped_bytes_, 0);
  }
  return *this;
}

void Segment::close() {
  if (base_ != nullptr) {
    ::munmap(std::exchange(base_, nullptr), mapped_bytes_);
  }
  file_.close();
}

}  // namespace sherd::shm
