// SPDX-License-Identifier: Apache-2.0
//
// LogStore is the coordinator's log on a disk: an SQLite file whose write-ahead log is synced before
// append() returns. From time to time it writes a summary of all records, so that a start reads that
// and the few records after it, and old records are deleted. Several coordinators may have the file
// open; only the one that began the newest term can append to it. The folder must be on a disk of
// this host, because SQLite's write-ahead log needs shared memory. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include "base/status.h"
#include "ft/protocol/history.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct LogStoreOptions {
  // ---- behaviour ----

  // The committed states that are known at least: see history.h.
  std::size_t past_min = kPastMin;
  // For people and tests; a start does not read them.
  std::int64_t records_kept = std::int64_t{1} << 14U;

  // ---- performance ----

  // A start reads so many records at most. Each summary costs as much as some tens of records.
  std::int64_t summary_every = 1024;
};

class LogStore {
 public:
  // Makes the file when there is none; its folder must exist. Reads the last summary and the records
  // after it, but only once something could be written. kUnavailable: it cannot be read or written;
  // kFailedPrecondition: it is another program's, or of a version that this one does not read, or
  // damaged, with the number of the record that cannot follow.
  static Result<std::unique_ptr<LogStore>> open(
      const std::string& path, const LogStoreOptions& options = {});
  ~LogStore();
  LogStore(const LogStore&) = delete;
  LogStore& operator=(const LogStore&) = delete;

  // The history that open() has read. Call once: it is moved out.
  History take_history();
  // The number of records that were ever written, as far as this store knows.
  std::int64_t size() const;

  // Appends all of them, in order, or none. On success they are on the disk. kFailedPrecondition:
  // another store has appended since ("the log belongs to term N now"), or the file was deleted or
  // replaced, and this one is of no use any more: what it had is in a file beside, which the reason
  // names. kUnavailable: the disk failed; the caller may try again, but must first forget what it
  // derived from these records. After a failed sync and a crash they may be in the log, as if the
  // crash had come before append() returned.
  Status append(const std::vector<Record>& records);
  // Writes a summary, if it is time for one. REQUIRES: the history is that of all records.
  Status summarise(const History& history);
  // The same check of the owner and the file without a record, for a coordinator that has nothing to
  // write and may have been replaced. kUnavailable: the disk failed.
  Status check_owner() const;

 private:
  struct Impl;
  explicit LogStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
