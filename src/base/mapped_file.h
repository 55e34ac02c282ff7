// SPDX-License-Identifier: Apache-2.0
//
// MappedFile is the read-only content of one file, mapped into memory: pages are loaded when they
// are read and dropped when memory is short. Thread rule: a value; reading from any thread.
#pragma once

#include <string>
#include <string_view>
#include "base/status.h"

namespace sherd {

class MappedFile {
 public:
  // Maps the file as long as it is now; an empty one as no bytes. Returns kUnavailable, with the
  // path and the system's reason, when the file is missing, not regular, or cannot be read, and
  // kFailedPrecondition, with the same, when too many files are open.
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Valid while this object lives. If somebody shortens the file meanwhile, an access ends the
  // process (SIGBUS).
  std::string_view bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::string_view bytes) : bytes_(bytes) {}
  void close();

  std::string_view bytes_;
};

}  // namespace sherd
