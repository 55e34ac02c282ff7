// SPDX-License-Identifier: Apache-2.0
//
// MappedFile is the read-only content of one file, mapped into memory: pages are loaded when they
// are read and dropped when memory is short. Thread rule: a value; reading from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include "base/status.h"

namespace sherd {

class MappedFile {
 public:
  // Maps the file as long as it is now; an empty one as no bytes. Returns kUnavailable, with the
  // path and the system's reason, when the file is missing, not regular, or cannot be read, and
  // kFailedPrecondition, with the same, when too many files are open.
  [[nodiscard]] static Result<MappedFile> open(const std::string& path);

  MappedFile() = default;

  // Valid while this object lives. If somebody shortens the file meanwhile, an access ends the
  // process (SIGBUS).
  std::string_view bytes() const {
    return at_ ? std::string_view(at_.get(), at_.get_deleter().bytes)
               : std::string_view();
  }

 private:
  struct Unmap {
    std::size_t bytes;  // Unused without a mapping.
    void operator()(char* at) const;
  };
  explicit MappedFile(std::unique_ptr<char, Unmap> at) : at_(std::move(at)) {}

  std::unique_ptr<char, Unmap> at_;
};

}  // namespace sherd
