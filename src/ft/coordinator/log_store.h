// SPDX-License-Identifier: Apache-2.0
//
// LogStore is the coordinator's log on disk: an SQLite file whose write-ahead log is synced before
// append() returns. From time to time it writes a summary of all records, so that a start reads
// only the summary and the few records after it, and deletes old records. Several coordinators may
// have the file open; only the one that began the newest term can append to it. The folder must be
// on a disk of this host, because SQLite's write-ahead log needs shared memory. Thread rule: one
// thread.
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

  // How many committed states are kept at least; see history.h.
  std::size_t past_min = kPastMin;
  // How many records are kept for people and tests; a start does not read them.
  std::int64_t records_kept = std::int64_t{1} << 14U;

  // ---- performance ----

  // A start reads at most this many records. Each summary costs as much as some tens of records.
  std::int64_t summary_every = 1024;
};

class LogStore {
 public:
  // Opens the log, and creates it if the file does not exist; its folder must. Reads the last
  // summary and the records after it, but only once a write has succeeded. kUnavailable: the file
  // cannot be read or written. kFailedPrecondition: it belongs to another program, has a version
  // that this one does not read, or is damaged; then the reason has the number of the record that
  // cannot follow.
  static Result<std::unique_ptr<LogStore>> open(
      const std::string& path, const LogStoreOptions& options = {});
  LogStore(const LogStore&) = delete;
  LogStore& operator=(const LogStore&) = delete;

  // The history that open() has read. It is moved out, so this may be called only once.
  History take_history() { return std::move(history_); }
  // How many records were ever written, as far as this store knows.
  std::int64_t size() const { return sequence_; }

  // Appends all of them in order, or none. On success they are on disk. kFailedPrecondition:
  // another store has appended since ("the log belongs to term N now"), or the file was deleted or
  // replaced. This store is then of no further use; what it had is in a file next to the log, which
  // the reason names. kUnavailable: the disk failed; the caller may try again, but must first
  // forget what it derived from these records. After a failed sync followed by a crash they may be
  // in the log, as if the crash had come before append() returned.
  Status append(const std::vector<Record>& records);
  // Writes a summary if one is due. kUnavailable: it cannot be written, which does no harm: a start
  // reads more records, and the next summary is due some records later. kFailedPrecondition: as in
  // append(). REQUIRES: `history` is that of all records.
  Status summarise(const History& history);
  // Checks the owner and the file as append() does, but without a record, for a coordinator that
  // has nothing to write and may have been replaced. kUnavailable: the disk failed.
  Status check_owner() const;

 private:
  LogStore(std::string path, const LogStoreOptions& options);

  // ---- errors ----

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
  // Runs `write` in a transaction that belongs to this store.
  template <typename Write>
  Status transact(const char* what, const Write& write);
  Status insert(const std::vector<Record>& records);
  Status write_summary(const History& folded);
  Status write_past(const History& folded);
  Status put(std::int64_t part, std::string_view bytes) const;
  Status forget(const History& folded) const;

  const std::string path_;
  const LogStoreOptions options_;
  Database database_{nullptr, sqlite3_close_v2};
  dev_t device_ = 0;  // Identifies the file that was opened.
  ino_t inode_ = 0;
  History history_;
  std::vector<Member> members_;  // Those of the history with all records.
  std::int64_t sequence_ = 0;    // The number of the last record.
  std::uint64_t term_ = 0;       // The term of the last record.
  std::int64_t summarised_ = 0;  // The last record that the summary covers.
  // The last record when a summary could not be written; 0 if the last one was.
  std::int64_t not_summarised_ = 0;
  // The last step that the summary's pieces cover.
  std::int64_t past_end_ = -1;
  bool past_has_changed_ = false;  // By a rollback since the last summary.
};

// The file next to the log that has what a coordinator could rescue when the log was deleted or
// replaced for the `number`-th time, from 1 on.
std::string rescued_path(const std::string& path, int number);
// The number of the newest such file; 0 if there is none.
int rescues_of(const std::string& path);
inline constexpr int kRescuesMax = 100;

// The checksum covers the number of a record as well as its bytes, so that swapped records are
// noticed, too.
std::uint32_t checksum_of(
    std::int64_t sequence, std::uint64_t term, std::string_view bytes);

}  // namespace sherd::ft
