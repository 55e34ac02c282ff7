// SPDX-License-Identifier: Apache-2.0
//
// OpenFiles opens files for reading and keeps as many of them open as leaves the process most of
// its descriptors: a checkpoint may have more files than a process may have open. Thread rule: any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include "base/descriptor.h"

namespace sherd::ckpt {

class OpenFiles {
 public:
  OpenFiles();

  // Opens the file unless it is open; it stays open at least while the caller has it. Throws Error,
  // naming the path: kUnavailable when it cannot be opened, kFailedPrecondition when that is because
  // too many others are open, and kInvalidArgument when it is no regular file of so many bytes.
  std::shared_ptr<const Descriptor> open(
      const std::string& path, std::int64_t bytes);

 private:
  Descriptor opened(const std::string& path);
  void close_oldest();

  const std::size_t kept_max_;
  std::mutex mutex_;
  // Both guarded by mutex_.
  std::map<std::string, std::shared_ptr<const Descriptor>> files_;
  std::deque<std::string>
      order_;  // The names in `files_`, the first that was opened first.
};

}  // namespace sherd::ckpt
