// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/log_store.h"

#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/crc32c.h"
#include "ft/wire/record_codec.h"
#include "net/bytes.h"

namespace sherd::ft {
namespace {

constexpr int kApplicationId = 0x73687264;  // "shrd".
// How long to wait for another coordinator's transaction; one that was stopped in a transaction
// holds the lock for longer.
constexpr int kBusyMs = 1000;

}  // namespace

std::uint32_t checksum_of(
    std::int64_t sequence, std::uint64_t term, std::string_view bytes) {
  net::ByteWriter head;
  head.i64(sequence);
  head.u64(term);
  return crc32c(bytes, crc32c(head.bytes()));
}

std::string rescued_path(const std::string& path, int number) {
  return number == 1 ? path + ".rescued" : str(path, ".rescued.", number);
}

// Files between them may have been deleted.
int rescues_of(const std::string& path) {
  std::error_code none;
  int last = 0;
  for (int number = 1; number <= kRescuesMax; ++number) {
    if (std::filesystem::exists(rescued_path(path, number), none)) {
      last = number;
    }
  }
  return last;
}

// "[ft] log '/x/log.db': cannot append: database or disk is full (No space ...)".
Status LogStore::failure(const char* what, int code) const {
  std::string cause = sqlite3_errstr(code);
  if (database_ && sqlite3_errcode(database_.get()) == code) {
    cause = sqlite3_errmsg(database_.get());
    if (const int error = sqlite3_system_errno(database_.get()); error != 0) {
      cause += str(" (", std::strerror(error), ")");
    }
  }
  // SQLite tries to read what it cannot write, and then reports only that.
  const auto folder = std::filesystem::path(path_).parent_path();
  if (::access(folder.c_str(), W_OK) != 0) {
    cause += str("; its folder: ", std::strerror(errno));
  }
  return {
      ErrorCode::kUnavailable,
      str("[ft] log '", path_, "': cannot ", what, ": ", cause)};
}

Status LogStore::refused(const std::string& why) const {
  return {ErrorCode::kFailedPrecondition, str("[ft] log '", path_, "': ", why)};
}

Status LogStore::run(const char* what, const char* text) const {
  const int code =
      sqlite3_exec(database_.get(), text, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? Status() : failure(what, code);
}

Result<std::int64_t> LogStore::number(const char* text) const {
  Query query(database_.get(), text);
  if (!query.step()) {
    if (query.code() == SQLITE_NOTADB) {
      return refused("expected an SQLite file, found something else");
    }
    return failure("read", query.code());
  }
  return query.number(0);
}

// ---- opening ----

Status LogStore::prepare() {
  std::error_code none;
  const int rescues = rescues_of(path_);
  if (!std::filesystem::exists(path_, none) && rescues > 0) {
    return refused(str(
        "it is not there, but what a coordinator could rescue of it is in '",
        rescued_path(path_, rescues), "': move that to '", path_,
        "', or delete ", rescues == 1 ? "it" : "it and the older ones",
        " to begin a new run"));
  }
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(
      path_.c_str(), &opened,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX |
          SQLITE_OPEN_EXRESCODE,
      nullptr);
  database_.reset(opened);
  if (code != SQLITE_OK) {
    return failure("open", code);
  }
  sqlite3_busy_timeout(opened, kBusyMs);
  return recognise();
}

// Nothing is written to the file of another program.
Status LogStore::recognise() {
  SHERD_ASSIGN_OR_RETURN(const auto id, number("PRAGMA application_id"));
  SHERD_ASSIGN_OR_RETURN(const auto version, number("PRAGMA user_version"));
  SHERD_ASSIGN_OR_RETURN(
      const auto tables, number("SELECT count(*) FROM sqlite_master"));
  const bool fresh = id == 0 && version == 0 && tables == 0;
  if (!fresh && id != kApplicationId) {
    return refused(
        str("expected a log of sherd (application id ", kApplicationId,
            "), found another program's database (", id, ")"));
  }
  if (!fresh && (version < kLogVersionMin || version > kLogVersion)) {
    return refused(
        str("expected version ", kLogVersionMin, " to ", kLogVersion,
            ", found ", version));
  }
  if (sqlite3_db_readonly(database_.get(), "main") == 1) {
    return {
        ErrorCode::kUnavailable,
        str("[ft] log '", path_, "': cannot write: it is read-only")};
  }
  for (const auto& [pragma, value, found] :
       {std::tuple("journal_mode", "WAL", "wal"),
        std::tuple("synchronous", "FULL", "2"),
        std::tuple("trusted_schema", "OFF", "0")}) {
    SHERD_RETURN_IF_FAILED(set(pragma, value, found));
  }
  return make();
}

// SQLite goes on without a setting that it cannot apply. `found` is what it reports if it could.
Status LogStore::set(
    const char* pragma, const char* value, const char* found) const {
  SHERD_RETURN_IF_FAILED(
      run("open", str("PRAGMA ", pragma, " = ", value).c_str()));
  Query query(database_.get(), str("PRAGMA ", pragma).c_str());
  const std::string is(query.step() ? query.bytes(0) : "nothing");
  if (query.failed()) {
    return failure("open", query.code());
  }
  return is == found
      ? Status()
      : Status(
            ErrorCode::kUnavailable,
            str("[ft] log '", path_, "': cannot open: expected ", pragma, " ",
                found, ", found ", is, ": is it on a disk of this host?"));
}

// Creates missing tables. Every start writes, so that it does not read a long log in vain while the
// disk fails.
Status LogStore::make() const {
  const std::string text =
      str("BEGIN IMMEDIATE;"
          "CREATE TABLE IF NOT EXISTS records (sequence INTEGER PRIMARY KEY,"
          " term INTEGER NOT NULL, crc32c INTEGER NOT NULL,"
          " bytes BLOB NOT NULL);"
          "CREATE TABLE IF NOT EXISTS summary (part INTEGER PRIMARY KEY,"
          " sequence INTEGER NOT NULL, term INTEGER NOT NULL,"
          " crc32c INTEGER NOT NULL, bytes BLOB NOT NULL);"
          "PRAGMA application_id = ",
          kApplicationId, "; PRAGMA user_version = ", kLogVersion, "; COMMIT");
  auto status = run("write", text.c_str());
  if (!status.ok() && sqlite3_get_autocommit(database_.get()) == 0) {
    (void)run("undo", "ROLLBACK");
  }
  return status;
}

Status LogStore::note_file() {
  struct stat file = {};
  if (::stat(path_.c_str(), &file) != 0) {
    return refused(str("it is gone: ", std::strerror(errno)));
  }
  device_ = file.st_dev;
  inode_ = file.st_ino;
  return {};
}

// In one transaction: another coordinator may write a summary meanwhile and delete what it covers.
Status LogStore::read() {
  auto status = run("read", "BEGIN");
  for (const auto step :
       {&LogStore::read_summary, &LogStore::read_past,
        &LogStore::read_records}) {
    if (status.ok()) {
      status = (this->*step)();
    }
  }
  if (status.ok()) {
    status = run("read", "COMMIT");
  }
  members_ = history_.members;
  return status;
}

Status LogStore::read_summary() {
  Query query(
      database_.get(),
      "SELECT sequence, term, crc32c, bytes FROM summary WHERE part = 0");
  if (!query.step()) {
    return query.failed() ? failure("read", query.code()) : Status();
  }
  sequence_ = query.number(0);
  term_ = static_cast<std::uint64_t>(query.number(1));
  const auto bytes = query.bytes(3);
  if (query.number(2) != checksum_of(sequence_, term_, bytes)) {
    return refused("the checksum of its summary is wrong");
  }
  auto summary = summary_of(bytes);
  if (!summary.ok()) {
    return refused(str("its summary: ", summary.status().message()));
  }
  history_ = std::move(summary).value();
  summarised_ = sequence_;
  return {};
}

// Reads the committed states that the summary covers, in pieces.
Status LogStore::read_past() {
  Query query(
      database_.get(),
      "SELECT part, sequence, term, crc32c, bytes FROM summary WHERE part > 0 "
      "ORDER BY part");
  bool is_first = true;
  while (query.step()) {
    const auto bytes = query.bytes(4);
    auto piece = past_piece_of(bytes);
    if (query.number(3) !=
            checksum_of(
                query.number(1), static_cast<std::uint64_t>(query.number(2)),
                bytes) ||
        !piece.ok() || piece.value().states.empty()) {
      return refused(
          str("piece ", query.number(0), " of its summary is damaged"));
    }
    if (std::exchange(is_first, false)) {
      history_.before_past = piece.value().before;
    }
    for (auto& one : piece.value().states) {
      if (!history_.past.empty() &&
          (!one.commit || one.commit->base != history_.past.back().state)) {
        return refused(
            str(text_of(one.state), " of its summary cannot follow ",
                text_of(history_.past.back().state)));
      }
      history_.past.push_back(std::move(one));
    }
  }
  if (query.failed()) {
    return failure("read", query.code());
  }
  const auto last = history_.past.empty()
      ? std::nullopt
      : std::optional(history_.past.back().state);
  if (last != history_.canonical) {
    return refused(
        str("expected its summary to end with ",
            history_.canonical ? text_of(*history_.canonical) : "nothing",
            ", found ", last ? text_of(*last) : "nothing"));
  }
  past_end_ = history_.past.empty() ? -1 : history_.past.back().state.step;
  // The pieces may be fewer than the history had when it was summarised.
  forget_detached(history_);
  return {};
}

Status LogStore::read_records() {
  Query query(
      database_.get(),
      "SELECT sequence, term, crc32c, bytes FROM records WHERE sequence > ?1 "
      "ORDER BY sequence");
  query.bind(1, summarised_);
  while (query.step()) {
    const auto found = query.number(0);
    const auto bytes = query.bytes(3);
    const auto its_term = static_cast<std::uint64_t>(query.number(1));
    if (found != sequence_ + 1) {
      return refused(str("expected record ", sequence_ + 1, ", found ", found));
    }
    if (query.number(2) != checksum_of(found, its_term, bytes)) {
      return refused(str("the checksum of record ", found, " is wrong"));
    }
    SHERD_RETURN_IF_FAILED(take_record(found, its_term, bytes));
  }
  return query.failed() ? failure("read", query.code()) : Status();
}

Status LogStore::take_record(
    std::int64_t number, std::uint64_t its_term, std::string_view bytes) {
  const auto record = record_of(bytes, history_.members);
  if (!record.ok()) {
    return refused(str("record ", number, ": ", record.status().message()));
  }
  try {
    ft::append(history_, record.value());
  } catch (const Error& error) {
    return refused(str("record ", number, " cannot follow: ", error.what()));
  }
  if (its_term != history_.term) {
    return refused(
        str("record ", number, ": expected term ", history_.term, ", found ",
            its_term));
  }
  past_has_changed_ = past_has_changed_ ||
      std::holds_alternative<RollbackRecord>(record.value());
  sequence_ = number;
  term_ = its_term;
  return {};
}

// ---- the store ----

LogStore::LogStore(std::string path, const LogStoreOptions& options)
    : path_(std::move(path)), options_(options) {}

Result<std::unique_ptr<LogStore>> LogStore::open(
    const std::string& path, const LogStoreOptions& options) {
  SHERD_CHECK(!path.empty(), "[ft] expected the path of a log, found none");
  SHERD_CHECK(
      options.records_kept >= 1 && options.summary_every >= 1 &&
          options.past_min >= 1,
      "[ft] expected to keep 1 record or more of a log, found ",
      options.records_kept);
  // An absolute path also keeps SQLite from giving ":memory:" a special meaning.
  std::unique_ptr<LogStore> store(
      new LogStore(std::filesystem::absolute(path).string(), options));
  for (const auto step :
       {&LogStore::prepare, &LogStore::note_file, &LogStore::read}) {
    SHERD_RETURN_IF_FAILED((store.get()->*step)());
  }
  return store;
}

}  // namespace sherd::ft
