// SPDX-License-Identifier: Apache-2.0
//
// OutputForwarder copies one stream (stdout or stderr) of one rank from its pipe to a LineWriter,
// line by line, so that lines of different ranks do not mix, and keeps the last lines for the
// report about a failure. Its LineSplitter and OutputTail limit their memory whatever a rank
// writes. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>
#include "base/descriptor.h"
#include "launch/line_writer.h"

namespace sherd::launch {

// A line ends at \n, \r or \r\n: each state of a progress bar is a line, because several ranks
// cannot redraw one line of the terminal. Lines longer than kLineBytesMax are cut.
class LineSplitter {
 public:
  static constexpr std::size_t kLineBytesMax = std::size_t{64} << 10U;

  // The lines that `bytes` completes, without their ends.
  std::vector<std::string> add(std::string_view bytes);
  // The unfinished last line; nothing if the text ended with a line end.
  std::vector<std::string> finish();

 private:
  std::string begun_;
  bool after_return_ = false;  // A \n now belongs to the preceding \r.
};

// The end of a rank's output.
class OutputTail {
 public:
  static constexpr std::size_t kCount = 20;
  static constexpr std::size_t kLineBytesMax = 1000;

  void add(const std::string& line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  std::deque<std::string> lines_;
};

class OutputForwarder {
 public:
  // `to` and `last` must outlive the stream.
  OutputForwarder(
      Descriptor pipe, std::string prefix, LineWriter* to, OutputTail* last);

  // Lines from now on begin with this prefix.
  void set_prefix(const std::string& prefix) { prefix_ = prefix; }

  // The descriptor to poll; -1 while there is nothing to wait for: at the end of the stream, or
  // while the writer is full.
  int poll_fd() const;
  // Passes on one buffer of what the pipe holds. REQUIRES: poll() said it is readable or hung up.
  void read_some();
  // Forwards what the pipe holds now, including a last line without an end, and closes it. Does not
  // wait for writers that outlive the rank, nor for what they write meanwhile.
  void drain();
  // Closes the pipe if the writer's reader is gone, so that the rank meets the closed pipe that it
  // would have met without a launcher.
  void close_if_sink_closed();

 private:
  // Returns how many bytes it has passed on.
  std::size_t read_up_to(std::size_t bytes);
  void pass_on(const std::vector<std::string>& lines);

  Descriptor pipe_;
  std::string prefix_;
  LineWriter* to_;
  OutputTail* last_;
  LineSplitter splitter_;
};

// The last lines of a log file; empty if it cannot be read.
OutputTail tail_of_file(const std::string& path);

}  // namespace sherd::launch
