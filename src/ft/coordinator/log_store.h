// SPDX-License-Identifier: Apache-2.0
//
// LogStore is the coordinator's log on a disk: an SQLite file whose write-ahead log is synced before
// append() returns. Several coordinators may have the file open; only the one that began the newest
// term can append to it. The folder must be on a disk of this host, because SQLite's write-ahead log
// needs shared memory. Thread rule: one thread.
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

  // The history that open() has read. Call once: it is moved out.
  History take_history();
  // The number of records that this store has read or written.
  std::int64_t size() const;

  // Appends all of them, in order, or none. On success they are on the disk. kFailedPrecondition:
  // another store has appended since ("the log belongs to term N now"), and this one is of no use any
  // more. kUnavailable: the disk failed; the caller may try again, but must first forget what it
  // derived from these records. After a failed sync and a crash they may be in the log, as if the
  // crash had come before append() returned.
  Status append(const std::vector<Record>& records);
  // The same check of the owner without a record, for a coordinator that has nothing to write and may
  // have been replaced. kUnavailable: the disk failed.
  Status check_owner() const;

 private:
  struct Impl;
  explicit LogStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
