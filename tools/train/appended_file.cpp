// SPDX-License-Identifier: Apache-2.0
#include "train/appended_file.h"

#include <sys/stat.h>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <sherd/base/error.h>

namespace sherd::tools {

namespace {

std::pair<std::uintmax_t, std::uintmax_t> identity_of(const std::string& path) {
  struct stat found = {};
  return ::stat(path.c_str(), &found) == 0
      ? std::pair<std::uintmax_t, std::uintmax_t>(found.st_dev, found.st_ino)
      : std::pair<std::uintmax_t, std::uintmax_t>();
}

}  // namespace

AppendedFile::AppendedFile(const std::string& path) : path_(path) {
  errno = 0;
  open();
  if (!file_) {
    throw Error(
        path + ": expected a file that can be written, found " +
            std::strerror(errno),
        ErrorCode::kUnavailable);
  }
  size_ = std::filesystem::file_size(path);
}

void AppendedFile::open() {
  file_.open(path_, std::ios::binary | std::ios::app);
  if (file_) {
    identity_ = identity_of(path_);
  }
}

bool AppendedFile::in_place() const { return identity_of(path_) == identity_; }

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
    open();
    return reason;
  }
  size_ += unwritten_.size();
  unwritten_.clear();
  return "";
}

}  // namespace sherd::tools
