// SPDX-License-Identifier: Apache-2.0
//
// The program that a command names, found as shells find it, and why it cannot be started, in the
// words and with the exit status of shells. Thread rule: any thread.
#pragma once

#include <cerrno>
#include <string>
#include <utility>
#include "base/status.h"

namespace sherd::launch {

// Success, or why there is no process and the exit status that shells use for it: 127 not found,
// 126 found but not executable, 1 no resources.
class StartStatus {
 public:
  StartStatus() = default;
  StartStatus(int exit_status, std::string message)
      : exit_status_(exit_status), message_(std::move(message)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a failure is one of resources.
  StartStatus(const Status& status)
      : message_(status.ok() ? std::string() : status.message()) {}

  bool ok() const { return message_.empty(); }
  int exit_status() const { return exit_status_; }  // REQUIRES: !ok().
  const std::string& message() const { return message_; }

 private:
  int exit_status_ = 1;
  std::string message_;  // Empty on success.
};

// A failure of the system: "cannot open 'a': No such file or directory".
Status cannot(const std::string& what, int error = errno);

// Finds the file that `name` means: the name itself if it has a slash, otherwise the first
// executable of that name in the folders of `search_path`.
StartStatus find_program(
    const std::string& name, const std::string& search_path, std::string* path);

// The failure of execve() with this errno, saying what may be wrong with the file.
StartStatus exec_failure(const std::string& path, int error);

}  // namespace sherd::launch
