// SPDX-License-Identifier: Apache-2.0
//
// LineWriter writes whole lines to a descriptor that may be slow (a terminal, a pager) without
// blocking the launcher: lines are queued here and written when poll() says that there is room. It
// does not own the descriptor and does not change its flags, because other processes share them: it
// opens a terminal or pipe once more and writes without blocking there. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include "base/descriptor.h"

namespace sherd::launch {

class LineWriter {
 public:
  // Above this the launcher stops reading from ranks, so that a slow reader slows them down, as it
  // would without a launcher.
  static constexpr std::size_t kPendingBytesMax = std::size_t{1} << 20U;

  explicit LineWriter(int fd);
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // The descriptor to poll.
  int fd() const { return own_.open() ? own_.get() : fd_; }
  // Queues prefix, line and an end of line; does nothing once the writer is closed.
  void add_line(std::string_view prefix, std::string_view line);
  bool pending() const { return written_ < pending_.size(); }
  bool full() const { return pending_.size() - written_ > kPendingBytesMax; }
  // Writes some of what is pending. REQUIRES: poll() found room.
  void write_some();
  // Drops what is pending and all that is added later.
  void abandon();

  // Whether the reader is gone (EPIPE).
  bool closed() const { return closed_; }
  // Any other error: lines are lost, but the ranks should go on.
  int error() const { return error_; }

 private:
  const int fd_;
  Descriptor own_;  // Not open if the system does not open the file again.
  bool is_file_;    // Writing to a file never blocks.
  bool closed_ = false;
  bool abandoned_ = false;
  int error_ = 0;
  std::string pending_;
  std::size_t written_ = 0;  // Bytes of pending_ already written.
};

// Whether both descriptors lead to the same terminal, pipe or file.
bool same_file(int a, int b);

}  // namespace sherd::launch
