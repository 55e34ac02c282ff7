// SPDX-License-Identifier: Apache-2.0
//
// LogStore is the coordinator's log on a disk: an SQLite file whose write-ahead log is synced before
// append() returns. From time to time it writes a summary of all records, so that a start reads that
// and the few records after it, and old records are deleted. Several coordinators may have the file
// open; only the one that began the newest term can append to it. The folder must be on a disk of
// this host, because SQLite's write-ahead log needs shared memory. Thread rule: one thread.
#pragma once

#include <sys/types.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "base/status.h"
#include "ft/coordinator/sqlite_query.h"
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
  LogStore(const LogStore&) = delete;
  LogStore& operator=(const LogStore&) = delete;

  // The history that open() has read. Call once: it is moved out.
  History take_history() { return std::move(history_); }
  // The number of records that were ever written, as far as this store knows.
  std::int64_t size() const { return sequence_; }

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
  LogStore(std::string path, const LogStoreOptions& options);

  // ---- what goes wrong ----

  Status failure(const char* what, int code) const;
  Status refused(const std::string& why) const;
  Status run(const char* what, const char* text) const;
  Result<std::int64_t> number(const char* text) const;

  // ---- opening and reading: log_store.cpp ----

  Status prepare();
  Status recognise();
  Status set(const char* pragma, const char* value, const char* found) const;
  Status make() const;
  Status note_file();
  Status read();
  Status read_summary();
  Status read_past();
  Status read_records();
  Status take_record(
      std::int64_t number, std::uint64_t its_term, std::string_view bytes);

  // ---- writing: log_store_append.cpp ----

  Status check_file() const;
  std::string rescued() const;
  // In a transaction that belongs to this store.
  template <typename Write>
  Status transact(const char* what, const Write& write);
  Status insert(const std::vector<Record>& records);
  Status write_summary(const History& folded);
  Status write_past(const History& folded);
  Status put(std::int64_t part, std::string_view bytes) const;
  Status forget(const History& folded) const;

  const std::string path_;
  const LogStoreOptions options_;
  Database database_;
  dev_t device_ = 0;  // Of the file that was opened.
  ino_t inode_ = 0;
  History history_;
  std::vector<Member> members_;    // Of the history with all records.
  std::int64_t sequence_ = 0;      // Of the last record.
  std::uint64_t term_ = 0;         // Of the last record.
  std::int64_t summarised_ = 0;    // The last record in the summary.
  std::int64_t past_end_ = -1;     // The last step in the summary's pieces.
  bool past_has_changed_ = false;  // By a rollback since then.
};

// Covers the numbers before the bytes, so that records that were exchanged are noticed, too.
std::uint32_t checksum_of(
    std::int64_t sequence, std::uint64_t term, std::string_view bytes);

}  // namespace sherd::ft
