// SPDX-License-Identifier: Apache-2.0
#include "shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
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

Status unavailable(std::size_t bytes, const char* call) {
  return {
      ErrorCode::kUnavailable,
      str("[shm] a shared segment of ", bytes, " bytes: ", call,
          " failed: ", std::strerror(errno))};
}

// 0 if it cannot be known.
std::size_t length_of(const Descriptor& file) {
  struct stat found = {};
  return ::fstat(file.get(), &found) == 0
      ? static_cast<std::size_t>(found.st_size)
      : 0;
}

// Above this limit ftruncate() does not fail but kills the process with SIGXFSZ.
Status within_file_limit(std::size_t bytes) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) {
    return {};
  }
  return {
      ErrorCode::kUnavailable,
      str("[shm] a shared segment of ", bytes,
          " bytes: expected a limit of file sizes (ulimit -f) that allows it, "
          "found ",
          limit.rlim_cur, " bytes")};
}

// Gives the new `file` its length; `touched` of its bytes take pages.
Status set_length(
    const Descriptor& file, std::size_t bytes, std::size_t touched) {
  SHERD_RETURN_IF_FAILED(within_file_limit(bytes));
  SHERD_RETURN_IF_FAILED(
      check_available_memory(touched, available_memory(read_small_file)));
  return ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0
      ? Status()
      : unavailable(bytes, "ftruncate");
}

Status check_sizes(const SegmentOptions& options) {
  if (options.bytes > 0 && options.bytes <= kBytesMax) {
    return {};
  }
  return {
      ErrorCode::kInvalidArgument,
      str("[shm] a shared segment: expected 1 to ", kBytesMax, " bytes, found ",
          options.bytes)};
}

}  // namespace

std::size_t round_up_to_pages(std::size_t bytes) {
  const std::size_t page = page_bytes();
  return (bytes + page - 1) / page * page;
}

Result<Segment> Segment::create(const SegmentOptions& options) {
  SHERD_RETURN_IF_FAILED(check_sizes(options));
  Segment segment;
  segment.file_ = Descriptor(
      ::memfd_create("sherd-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!segment.file_.open()) {
    return unavailable(options.bytes, "memfd_create");
  }
  const std::size_t touched = options.touched_bytes > 0
      ? std::min(options.touched_bytes, options.bytes)
      : options.bytes;
  SHERD_RETURN_IF_FAILED(set_length(segment.file_, options.bytes, touched));
  // Keeps pages from being taken away under a rank that reads them (SIGBUS).
  if (::fcntl(segment.descriptor(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    return unavailable(options.bytes, "sealing");
  }
  SHERD_RETURN_IF_FAILED(segment.map(options));
  return segment;
}

Result<Segment> Segment::from_descriptor(
    Descriptor descriptor, const SegmentOptions& options) {
  SHERD_RETURN_IF_FAILED(check_sizes(options));
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(
        ErrorCode::kPeerMismatch,
        "[shm] expected the descriptor of a shared segment that cannot "
        "shrink, found another one");
  }
  const std::size_t found = length_of(descriptor);
  if (found != options.bytes) {
    return Status(
        ErrorCode::kPeerMismatch,
        str("[shm] expected a shared segment of ", options.bytes,
            " bytes, found one of ", found));
  }
  Segment segment;
  segment.file_ = std::move(descriptor);
  SHERD_RETURN_IF_FAILED(segment.map(options));
  return segment;
}

Status Segment::map(const SegmentOptions& options) {
  const std::size_t most = round_up_to_pages(options.bytes);
  // Huge pages need an aligned address, so one is searched in a larger range.
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
  if (options.huge_pages) {
    ::madvise(base_, bytes_, MADV_HUGEPAGE);
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

// Other threads that use the range meanwhile see either the old or the new mapping.
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
      bytes_(std::exchange(other.bytes_, 0)) {}

Segment& Segment::operator=(Segment&& other) noexcept {
  if (this != &other) {
    close();
    file_ = std::move(other.file_);
    base_ = std::exchange(other.base_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void Segment::close() {
  if (base_ != nullptr) {
    ::munmap(std::exchange(base_, nullptr), bytes_);
  }
  file_.close();
}

}  // namespace sherd::shm
