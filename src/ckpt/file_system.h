// SPDX-License-Identifier: Apache-2.0
//
// A file-system interface with only the operations that saving a checkpoint needs, so that tests
// can simulate power loss. What was written to a file survives a power loss once the file is
// synced; its name survives once the folder is synced. Thread rule: one thread.
#pragma once

#include <sys/types.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/status.h"

namespace sherd::ckpt {

class OutputFile {
 public:
  // Closes the file; what was not synced may be lost.
  virtual ~OutputFile() = default;

  [[nodiscard]] virtual Status write(const void* bytes, std::size_t count) = 0;
  [[nodiscard]] virtual Status sync() = 0;
};

// Failures are kUnavailable and name the path and the system's reason.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Also makes the folders above it. An existing folder is not an error.
  [[nodiscard]] virtual Status make_folder(const std::string& path) = 0;
  // Makes an empty file. REQUIRES: the folder exists, the file does not.
  [[nodiscard]] virtual Result<std::unique_ptr<OutputFile>> create(
      const std::string& path) = 0;
  // Makes changes of names in the folder durable.
  [[nodiscard]] virtual Status sync_folder(const std::string& path) = 0;
  // Atomic. REQUIRES: `to` does not exist.
  [[nodiscard]] virtual Status rename(
      const std::string& from, const std::string& to) = 0;
  // Atomic: gives each of two the other's name. Returns false, and has changed nothing, where the
  // file system cannot do that. REQUIRES: both exist.
  [[nodiscard]] virtual Result<bool> exchange(
      const std::string& a, const std::string& b) = 0;
  // Removes a file, or a folder with everything in it. A missing one is not an error.
  [[nodiscard]] virtual Status remove(const std::string& path) = 0;
  // If the answer cannot be found out, that is a failure, not false.
  [[nodiscard]] virtual Result<bool> exists(const std::string& path) = 0;
  // The names in the folder, sorted; none if there is no folder.
  [[nodiscard]] virtual Result<std::vector<std::string>> list(
      const std::string& path) = 0;
  [[nodiscard]] virtual Result<std::int64_t> free_bytes(
      const std::string& path) = 0;
};

std::unique_ptr<FileSystem> make_posix_file_system();

// How often a lock that others hold is tried.
inline constexpr Duration kLockPollInterval = std::chrono::milliseconds(50);

// A lock on a folder that only one process holds. It ends with this object, which a child that the
// process has forked cannot end, or with the process and those children, however they end.
class FolderLock {
 public:
  // `path` is that of the locked file.
  FolderLock(Descriptor file, std::string path);
  FolderLock(FolderLock&&) noexcept = default;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

  // Whether the path still leads to the locked file: the folder may have been moved or removed.
  bool in_place() const;

 private:
  void unlock();

  Descriptor file_;
  std::string path_;
  pid_t owner_;
};
// Returns kFailedPrecondition, naming the folder, if another process holds the lock.
Result<FolderLock> lock_folder(const std::string& path);
// Another lock, which the processes of one run share. Returns kFailedPrecondition if one of another
// run still holds it when the time is up.
Result<FolderLock> share_folder(
    const std::string& path, std::uint64_t run, Duration timeout);

}  // namespace sherd::ckpt
