// SPDX-License-Identifier: Apache-2.0
//
// LineSplitter cuts a stream of bytes into lines; OutputTail remembers the end
// of a rank's output for the report about its failure. Both bound their memory
// whatever a rank writes. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::launch {

// A line ends at \n, \r or \r\n: each state of a progress bar is a line,
// because several ranks cannot redraw one line of the terminal. Longer lines
// than kLineBytesMax are cut.
class LineSplitter {
 public:
  static constexpr std::size_t kLineBytesMax = std::size_t{64} << 10U;

  // Lines that `bytes` completes, without their ends.
  std::vector<std::string> add(std::string_view bytes);
  // What was begun and never ended; nothing after a line end.
  std::vector<std::string> finish();

 private:
  std::string begun_;
  bool after_return_ = false;  // A \n now belongs to the \r before it.
};

class OutputTail {
 public:
  static constexpr std::size_t kCount = 20;
  static constexpr std::size_t kLineBytesMax = 1000;

  void add(const std::string& line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace sherd::launch
