// SPDX-License-Identifier: Apache-2.0
//
// CommandLines is the output of a shell command, line by line. Neither copies nor moves. Thread rule:
// one thread.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <sherd/base/error.h>

namespace sherd::tools {

class CommandLines {
 public:
  // Throws Error if the system has no process or memory left.
  explicit CommandLines(const std::string& command)
      : pipe_(::popen(command.c_str(), "re")) {
    if (pipe_ == nullptr) {
      throw Error(
          "expected to start a program, found no memory or process left",
          ErrorCode::kUnavailable);
    }
  }
  ~CommandLines() {
    if (pipe_ != nullptr) {
      ::pclose(pipe_);
    }
    std::free(line_);
  }
  CommandLines(const CommandLines&) = delete;
  CommandLines& operator=(const CommandLines&) = delete;

  // The next line, without its end; nothing after the last one.
  std::optional<std::string> next() {
    const auto size = ::getline(&line_, &capacity_, pipe_);
    if (size <= 0) {
      return std::nullopt;
    }
    std::string line(line_, static_cast<std::size_t>(size));
    if (line.back() == '\n') {
      line.pop_back();
    }
    return line;
  }

  // Waits for the end of the command and returns its status, as wait() does.
  int close() { return ::pclose(std::exchange(pipe_, nullptr)); }

 private:
  FILE* pipe_;
  char* line_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace sherd::tools
