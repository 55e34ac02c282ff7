// SPDX-License-Identifier: Apache-2.0
#include "launch/lines.h"

#include <utility>

namespace sherd::launch {

std::vector<std::string> LineSplitter::add(std::string_view bytes) {
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t room = kLineBytesMax - begun_.size();
    const std::size_t end = bytes.substr(0, room).find_first_of("\r\n");
    const bool ended = end != std::string_view::npos;
    const std::string_view part = bytes.substr(0, ended ? end : room);
    begun_ += part;
    bytes.remove_prefix(part.size());
    if (ended) {
      after_return_ = bytes.front() == '\r';
      bytes.remove_prefix(1);
    }
    if (ended || begun_.size() == kLineBytesMax) {
      lines.push_back(std::exchange(begun_, {}));
    }
  }
  return lines;
}

std::vector<std::string> LineSplitter::finish() {
  after_return_ = false;
  if (begun_.empty()) {
    return {};
  }
  return {std::exchange(begun_, {})};
}

void OutputTail::add(const std::string& line) {
  if (lines_.size() == kCount) {
    lines_.pop_front();
  }
  lines_.push_back(
      line.size() <= kLineBytesMax ? line
                                   : line.substr(0, kLineBytesMax) + "...");
}

}  // namespace sherd::launch
