// SPDX-License-Identifier: Apache-2.0
//
// LogStore is the coordinator's log on a disk: an SQLite file whose write-ahead log
// is synced before append() returns. Two coordinators may have the same file open;
// only the one that began the newest term can append to it. The folder must be on
// a disk of this host: SQLite's write-ahead log needs shared memory. Thread rule:
// one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "base/status.h"
#include "ft/protocol/history.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

class LogStore {
 public:
  // Makes the file when there is none; its folder must exist. Reads all records
  // and folds them. kUnavailable: it cannot be read or written;
  // kFailedPrecondition: it is another program's, or of another version, or
  // damaged, with the number of the record that cannot follow.
  static Result<std::unique_ptr<LogStore>> open(const std::string& path);
  ~LogStore();
  LogStore(const LogStore&) = delete;
  LogStore& operator=(const LogStore&) = delete;

  // What open() found; once, since it may be large.
  History take_history();
  // Records in it, as far as this store has read or written them.
  std::int64_t size() const;

  // All of them, in order, or none. On success they are on the disk.
  // kFailedPrecondition: somebody else has appended since ("the log belongs to
  // term N now"), and this store is of no use any more. kUnavailable: the disk;
  // it may be tried again, but what was derived from these records must be
  // forgotten first. After a sync that failed and a crash they may be there: as
  // if the crash had come before append() returned.
  Status append(const std::vector<Record>& records);
  // What append() would say of that before it writes: for a coordinator that has
  // nothing to write and may have been replaced. kUnavailable: the disk.
  Status check_owner() const;

 private:
  struct Impl;
  explicit LogStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
