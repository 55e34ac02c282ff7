// SPDX-License-Identifier: Apache-2.0
//
// AppendedFile is a file to which whole records are appended: a record that the disk refuses is
// kept and written with the next one, and readers never see part of a record. It owns the open file
// and neither copies nor moves. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

namespace sherd::tools {

class AppendedFile {
 public:
  // Opens the file for writing at its end, and creates it if it does not exist. Throws Error,
  // naming the path, if that fails.
  explicit AppendedFile(const std::string& path);
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  // Returns why the disk refuses the record; empty if everything is in the file.
  std::string append(std::string_view record);

  // Whether the path still leads to this file: it, or its folder, may have been moved or removed.
  bool in_place() const;

  // What the disk has refused so far.
  const std::string& unwritten() const { return unwritten_; }

 private:
  void open();

  const std::string path_;
  std::ofstream file_;
  std::pair<std::uintmax_t, std::uintmax_t> identity_;  // Device and inode.
  std::uintmax_t size_ = 0;  // The size of the records in the file.
  std::string unwritten_;
};

}  // namespace sherd::tools
