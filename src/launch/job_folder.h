// SPDX-License-Identifier: Apache-2.0
//
// JobFolder is the folder of a fault-tolerant run: the coordinator's log and address, the lock that
// keeps a second launcher out, and the secret of the run's processes. Thread rule: one thread.
#pragma once

#include <string>
#include <utility>
#include "base/descriptor.h"
#include "base/status.h"

namespace sherd::launch {

class JobFolder {
 public:
  // Creates the folder and locks it until destruction. Fails, naming the process that holds the
  // lock, if another launcher runs there.
  static Result<JobFolder> open(const std::string& path);
  // A new folder below `parent`, which is locked until its removal at destruction. Removes those
  // that killed launchers of this user and host have left there.
  static Result<JobFolder> make_temporary(const std::string& parent);
  ~JobFolder();
  JobFolder(JobFolder&& other) noexcept
      : path_(std::exchange(other.path_, {})),
        lock_(std::move(other.lock_)),
        is_temporary_(other.is_temporary_) {}
  JobFolder& operator=(JobFolder&&) = delete;

  const std::string& path() const { return path_; }
  // Writes a new random secret that only this user may read, replacing an existing one, and returns
  // the absolute path of its file.
  Result<std::string> make_secret() const;

 private:
  JobFolder(std::string path, Descriptor lock, bool is_temporary)
      : path_(std::move(path)),
        lock_(std::move(lock)),
        is_temporary_(is_temporary) {}

  std::string path_;  // Empty once moved from.
  Descriptor lock_;
  bool is_temporary_;
};

}  // namespace sherd::launch
