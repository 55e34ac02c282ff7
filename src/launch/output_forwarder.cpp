// SPDX-License-Identifier: Apache-2.0
#include "launch/output_forwarder.h"

#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace sherd::launch {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10U;

}  // namespace

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

OutputForwarder::OutputForwarder(
    Descriptor pipe, std::string prefix, LineWriter* to, OutputTail* last)
    : pipe_(std::move(pipe)),
      prefix_(std::move(prefix)),
      to_(to),
      last_(last) {}

int OutputForwarder::poll_fd() const { return to_->full() ? -1 : pipe_.get(); }

void OutputForwarder::read_some() { read_up_to(kReadBytes); }

std::size_t OutputForwarder::read_up_to(std::size_t bytes) {
  std::array<char, kReadBytes> buffer;  // NOLINT: read() fills it.
  const ssize_t count =
      ::read(pipe_.get(), buffer.data(), std::min(bytes, buffer.size()));
  if (count > 0) {
    const auto read = static_cast<std::size_t>(count);
    pass_on(splitter_.add({buffer.data(), read}));
    return read;
  }
  if (count == 0 || errno != EINTR) {
    pass_on(splitter_.finish());
    pipe_.close();
  }
  return 0;
}

void OutputForwarder::drain() {
  int held = 0;
  if (!pipe_.open() || ::ioctl(pipe_.get(), FIONREAD, &held) != 0) {
    held = 0;
  }
  // Asking again would never end if a writer is faster than this loop.
  auto left = static_cast<std::size_t>(held);
  while (pipe_.open() && left > 0) {
    left -= read_up_to(left);
  }
  pass_on(splitter_.finish());
  pipe_.close();
}

void OutputForwarder::close_if_sink_closed() {
  if (to_->closed()) {
    pipe_.close();
  }
}

void OutputForwarder::pass_on(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    to_->add_line(prefix_, line);
    last_->add(line);
  }
}

OutputTail tail_of_file(const std::string& path) {
  OutputTail last;
  std::error_code none;
  // Opening a pipe would wait for a writer.
  if (!std::filesystem::is_regular_file(path, none)) {
    return last;
  }
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) {
    return last;
  }
  const auto end = static_cast<std::streamoff>(in.tellg());
  const auto begin =
      std::max<std::streamoff>(0, end - static_cast<int>(kReadBytes));
  in.seekg(begin);
  std::string tail(static_cast<std::size_t>(end - begin), '\0');
  in.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  LineSplitter splitter;
  for (const auto& lines : {splitter.add(tail), splitter.finish()}) {
    for (const std::string& line : lines) {
      last.add(line);
    }
  }
  return last;
}

}  // namespace sherd::launch
