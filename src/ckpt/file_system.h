// SPDX-License-Identifier: Apache-2.0
//
// FileSystem is what saving a checkpoint needs of a file system: the seam at which
// tests lose power. What was written is on the disk when its file was synced, and
// found there when the folder was. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "base/status.h"

namespace sherd::ckpt {

class OutputFile {
 public:
  virtual ~OutputFile() =
      default;  // Closes it; what was not synced may be lost.

  [[nodiscard]] virtual Status write(const void* bytes, std::size_t count) = 0;
  [[nodiscard]] virtual Status sync() = 0;
};

// Failures are kUnavailable and name the path and the system's reason.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // And those above it. One that is there is fine.
  [[nodiscard]] virtual Status make_folder(const std::string& path) = 0;
  // Empty; the folder exists, the file does not.
  [[nodiscard]] virtual Result<std::unique_ptr<OutputFile>> create(
      const std::string& path) = 0;
  // Names made, changed or removed in the folder stay so.
  [[nodiscard]] virtual Status sync_folder(const std::string& path) = 0;
  // In one move. `to` does not exist.
  [[nodiscard]] virtual Status rename(
      const std::string& from, const std::string& to) = 0;
  // A file, or a folder with all that is in it. None is fine.
  [[nodiscard]] virtual Status remove(const std::string& path) = 0;
  // Not that it cannot be told: that is a failure.
  [[nodiscard]] virtual Result<bool> exists(const std::string& path) = 0;
  // Names in the folder, sorted; none where there is no folder.
  [[nodiscard]] virtual Result<std::vector<std::string>> list(
      const std::string& path) = 0;
  [[nodiscard]] virtual Result<std::int64_t> free_bytes(
      const std::string& path) = 0;
};

std::unique_ptr<FileSystem> make_posix_file_system();

// Whoever holds it is the only one; it ends with the process, however that ends.
class FolderLock {
 public:
  virtual ~FolderLock() = default;
};
// kUnavailable, naming the folder, when another process has it.
Result<std::unique_ptr<FolderLock>> lock_folder(const std::string& path);

}  // namespace sherd::ckpt
