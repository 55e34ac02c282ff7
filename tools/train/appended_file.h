// SPDX-License-Identifier: Apache-2.0
//
// AppendedFile is a file to which records are appended whole: what the disk
// refuses is kept and written with the next record, and readers never see a part
// of one. It owns the open file and neither copies nor moves. Thread rule: one
// thread.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace sherd::tools {

class AppendedFile {
 public:
  // Opens the file for writing at its end; makes it if it is not there. Throws
  // Error, naming the path, when that cannot be done.
  explicit AppendedFile(const std::string& path);
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  // Returns why the disk refuses it; empty when everything is in the file.
  std::string append(std::string_view record);

 private:
  const std::string path_;
  std::ofstream file_;
  std::uintmax_t size_ = 0;  // The records that are in the file.
  std::string unwritten_;
};

}  // namespace sherd::tools
