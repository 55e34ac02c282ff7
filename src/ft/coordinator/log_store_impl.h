// SPDX-License-Identifier: Apache-2.0
//
// The inside of LogStore. log_store.cpp opens and reads the file, log_store_append.cpp writes to it.
// Thread rule: one thread.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "ft/coordinator/log_store.h"
#include "ft/coordinator/sqlite_query.h"

namespace sherd::ft {

struct LogStore::Impl {
  std::string path;
  LogStoreOptions options;
  Database database;
  dev_t device = 0;  // Of the file that was opened.
  ino_t inode = 0;
  History history;
  std::vector<Member> members;    // Of the history with all records.
  std::int64_t sequence = 0;      // Of the last record.
  std::uint64_t term = 0;         // Of the last record.
  std::int64_t summarised = 0;    // The last record in the summary.
  std::int64_t past_end = -1;     // The last step in the summary's pieces.
  bool past_has_changed = false;  // By a rollback since then.

  // ---- what goes wrong ----

  Status failure(const char* what, int code) const;
  Status refused(const std::string& why) const;
  Status run(const char* what, const char* text) const;
  Result<std::int64_t> number(const char* text) const;

  // ---- opening ----

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

  // ---- writing ----

  Status check_file() const;
  std::string rescued() const;
  Status check_owner() const;
  // In a transaction that belongs to this store.
  template <typename Write>
  Status transact(const char* what, const Write& write);
  Status insert(const std::vector<Record>& records);
  Status write_summary(const History& folded);
  Status write_past(const History& folded);
  Status put(std::int64_t part, std::string_view bytes) const;
  Status forget(const History& folded) const;
};

// Covers the numbers before the bytes, so that records that were exchanged are noticed, too.
std::uint32_t checksum_of(
    std::int64_t sequence, std::uint64_t term, std::string_view bytes);

}  // namespace sherd::ft
