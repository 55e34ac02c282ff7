// SPDX-License-Identifier: Apache-2.0
#include "train/appended_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <sherd/base/error.h>

namespace sherd::tools {

AppendedFile::AppendedFile(const std::string& path) : path_(path) {
  errno = 0;
  file_.open(path, std::ios::binary | std::ios::app);
  if (!file_) {
    throw Error(
        path + ": expected a file that can be written, found " +
            std::strerror(errno),
        ErrorCode::kUnavailable);
  }
  size_ = std::filesystem::file_size(path);
}

std::string AppendedFile::append(std::string_view record) {
  unwritten_ += record;
  errno = 0;
  file_.clear();
  file_ << unwritten_;
  file_.flush();
  if (!file_) {
    const std::string reason = std::strerror(errno);
    std::error_code ignored;  // The next record is tried anyway.
    file_.close();
    std::filesystem::resize_file(path_, size_, ignored);
    file_.open(path_, std::ios::binary | std::ios::app);
    return reason;
  }
  size_ += unwritten_.size();
  unwritten_.clear();
  return "";
}

}  // namespace sherd::tools
