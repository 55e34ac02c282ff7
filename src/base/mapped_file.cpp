// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>

#include "base/descriptor.h"

namespace sherd {
namespace {

Status unavailable(const std::string& path, const char* action) {
  const bool too_many = errno == EMFILE || errno == ENFILE;
  return {
      too_many ? ErrorCode::kFailedPrecondition : ErrorCode::kUnavailable,
      str("[base] ", path, ": expected a readable file, ", action,
          " failed: ", std::strerror(errno))};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // Non-blocking, because opening a named pipe would wait for a writer.
  const Descriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    return unavailable(path, "open");
  }
  struct stat found = {};
  if (::fstat(file.get(), &found) != 0) {
    return unavailable(path, "stat");
  }
  if (!S_ISREG(found.st_mode)) {
    return Status(
        ErrorCode::kUnavailable,
        str("[base] ", path, ": expected a regular file, found ",
            S_ISDIR(found.st_mode) ? "a folder" : "a device or pipe"));
  }
  if (found.st_size == 0) {
    return MappedFile();
  }
  const auto size = static_cast<std::size_t>(found.st_size);
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (at == MAP_FAILED) {
    return unavailable(path, "mmap");
  }
  return MappedFile({static_cast<char*>(at), Unmap{size}});
}

// Unmapping fails only for an address that is not mapped.
void MappedFile::Unmap::operator()(char* at) const { ::munmap(at, bytes); }

}  // namespace sherd
