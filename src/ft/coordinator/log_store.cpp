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
#include "ft/coordinator/log_store_impl.h"
#include "ft/wire/record_codec.h"
#include "net/bytes.h"

namespace sherd::ft {
namespace {

constexpr int kApplicationId = 0x73687264;  // "shrd".
// For another coordinator that is in a transaction; one that was stopped there
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

// "[ft] log '/x/log.db': cannot append: database or disk is full (No space ...)".
Status LogStore::Impl::failure(const char* what, int code) const {
  std::string cause = sqlite3_errstr(code);
  if (database && sqlite3_errcode(database.get()) == code) {
    cause = sqlite3_errmsg(database.get());
    if (const int error = sqlite3_system_errno(database.get()); error != 0) {
      cause += str(" (", std::strerror(error), ")");
    }
  }
  // SQLite tries to read what it cannot write, and tells of that alone.
  const auto folder = std::filesystem::path(path).parent_path();
  if (::access(folder.c_str(), W_OK) != 0) {
    cause += str("; its folder: ", std::strerror(errno));
  }
  return {
      ErrorCode::kUnavailable,
      str("[ft] log '", path, "': cannot ", what, ": ", cause)};
}

Status LogStore::Impl::refused(const std::string& why) const {
  return {ErrorCode::kFailedPrecondition, str("[ft] log '", path, "': ", why)};
}

Status LogStore::Impl::run(const char* what, const char* text) const {
  const int code =
      sqlite3_exec(database.get(), text, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? Status() : failure(what, code);
}

Result<std::int64_t> LogStore::Impl::number(const char* text) const {
  Query query(database.get(), text);
  if (!query.step()) {
    if (query.code() == SQLITE_NOTADB) {
      return refused("expected an SQLite file, found something else");
    }
    return failure("read", query.code());
  }
  return query.number(0);
}

// ---- opening ----

Status LogStore::Impl::prepare() {
  std::error_code none;
  if (!std::filesystem::exists(path, none) &&
      std::filesystem::exists(path + ".rescued", none)) {
    return refused(str(
        "it is not there, but what a coordinator could rescue of it is in '",
        path, ".rescued': move that to '", path,
        "', or delete it to begin a new run"));
  }
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(
      path.c_str(), &opened,
      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX |
          SQLITE_OPEN_EXRESCODE,
      nullptr);
  database.reset(opened);
  if (code != SQLITE_OK) {
    return failure("open", code);
  }
  sqlite3_busy_timeout(opened, kBusyMs);
  return recognise();
}

// Nothing is written to a file of somebody else.
Status LogStore::Impl::recognise() {
  const auto id = number("PRAGMA application_id");
  const auto version = number("PRAGMA user_version");
  const auto tables = number("SELECT count(*) FROM sqlite_master");
  for (const auto* one : {&id, &version, &tables}) {
    if (!one->ok()) {
      return one->status();
    }
  }
  const bool fresh =
      id.value() == 0 && version.value() == 0 && tables.value() == 0;
  if (!fresh && id.value() != kApplicationId) {
    return refused(
        str("expected a log of sherd (application id ", kApplicationId,
            "), found another program's database (", id.value(), ")"));
  }
  if (!fresh &&
      (version.value() < kLogVersionMin || version.value() > kLogVersion)) {
    return refused(
        str("expected version ", kLogVersionMin, " to ", kLogVersion,
            ", found ", version.value()));
  }
  if (sqlite3_db_readonly(database.get(), "main") == 1) {
    return {
        ErrorCode::kUnavailable,
        str("[ft] log '", path, "': cannot write: it is read-only")};
  }
  for (const auto& [pragma, value, found] :
       {std::tuple("journal_mode", "WAL", "wal"),
        std::tuple("synchronous", "FULL", "2"),
        std::tuple("trusted_schema", "OFF", "0")}) {
    if (auto status = set(pragma, value, found); !status.ok()) {
      return status;
    }
  }
  return make();
}

// SQLite goes on without what it cannot do. `found`: what it says when it could.
Status LogStore::Impl::set(
    const char* pragma, const char* value, const char* found) const {
  if (auto status = run("open", str("PRAGMA ", pragma, " = ", value).c_str());
      !status.ok()) {
    return status;
  }
  Query query(database.get(), str("PRAGMA ", pragma).c_str());
  const std::string is(query.step() ? query.bytes(0) : "nothing");
  if (query.failed()) {
    return failure("open", query.code());
  }
  return is == found
      ? Status()
      : Status(
            ErrorCode::kUnavailable,
            str("[ft] log '", path, "': cannot open: expected ", pragma, " ",
                found, ", found ", is, ": is it on a disk of this host?"));
}

// Makes the tables where they are missing. Each start writes, so that it does not read a long log
// for nothing while the disk fails.
Status LogStore::Impl::make() const {
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
  if (!status.ok() && sqlite3_get_autocommit(database.get()) == 0) {
    (void)run("undo", "ROLLBACK");
  }
  return status;
}

Status LogStore::Impl::note_file() {
  struct stat file = {};
  if (::stat(path.c_str(), &file) != 0) {
    return refused(str("it is gone: ", std::strerror(errno)));
  }
  device = file.st_dev;
  inode = file.st_ino;
  return {};
}

Status LogStore::Impl::read() {
  for (const auto step :
       {&Impl::read_summary, &Impl::read_past, &Impl::read_records}) {
    if (auto status = (this->*step)(); !status.ok()) {
      return status;
    }
  }
  members = history.members;
  return {};
}

Status LogStore::Impl::read_summary() {
  Query query(
      database.get(),
      "SELECT sequence, term, crc32c, bytes FROM summary WHERE part = 0");
  if (!query.step()) {
    return query.failed() ? failure("read", query.code()) : Status();
  }
  sequence = query.number(0);
  term = static_cast<std::uint64_t>(query.number(1));
  const auto bytes = query.bytes(3);
  if (query.number(2) != checksum_of(sequence, term, bytes)) {
    return refused("the checksum of its summary is wrong");
  }
  auto summary = summary_of(bytes);
  if (!summary.ok()) {
    return refused(str("its summary: ", summary.status().message()));
  }
  history = std::move(summary).value();
  summarised = sequence;
  return {};
}

// The committed states that the summary covers, in pieces.
Status LogStore::Impl::read_past() {
  Query query(
      database.get(),
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
      history.before_past = piece.value().before;
    }
    for (auto& one : piece.value().states) {
      if (!history.past.empty() &&
          (!one.commit || one.commit->base != history.past.back().state)) {
        return refused(
            str(text_of(one.state), " of its summary cannot follow ",
                text_of(history.past.back().state)));
      }
      history.past.push_back(std::move(one));
    }
  }
  if (query.failed()) {
    return failure("read", query.code());
  }
  const auto last = history.past.empty()
      ? std::nullopt
      : std::optional(history.past.back().state);
  if (last != history.canonical) {
    return refused(
        str("expected its summary to end with ",
            history.canonical ? text_of(*history.canonical) : "nothing",
            ", found ", last ? text_of(*last) : "nothing"));
  }
  past_end = history.past.empty() ? -1 : history.past.back().state.step;
  return {};
}

Status LogStore::Impl::read_records() {
  Query query(
      database.get(),
      "SELECT sequence, term, crc32c, bytes FROM records WHERE sequence > ?1 "
      "ORDER BY sequence");
  query.bind(1, summarised);
  while (query.step()) {
    const auto found = query.number(0);
    const auto bytes = query.bytes(3);
    const auto its_term = static_cast<std::uint64_t>(query.number(1));
    if (found != sequence + 1) {
      return refused(str("expected record ", sequence + 1, ", found ", found));
    }
    if (query.number(2) != checksum_of(found, its_term, bytes)) {
      return refused(str("the checksum of record ", found, " is wrong"));
    }
    if (auto status = take_record(found, its_term, bytes); !status.ok()) {
      return status;
    }
  }
  return query.failed() ? failure("read", query.code()) : Status();
}

Status LogStore::Impl::take_record(
    std::int64_t number, std::uint64_t its_term, std::string_view bytes) {
  const auto record = record_of(bytes, history.members);
  if (!record.ok()) {
    return refused(str("record ", number, ": ", record.status().message()));
  }
  try {
    ft::append(history, record.value());
  } catch (const Error& error) {
    return refused(str("record ", number, " cannot follow: ", error.what()));
  }
  if (its_term != history.term) {
    return refused(
        str("record ", number, ": expected term ", history.term, ", found ",
            its_term));
  }
  past_has_changed = past_has_changed ||
      std::holds_alternative<RollbackRecord>(record.value());
  sequence = number;
  term = its_term;
  return {};
}

// ---- the store ----

LogStore::LogStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LogStore::~LogStore() = default;

Result<std::unique_ptr<LogStore>> LogStore::open(
    const std::string& path, const LogStoreOptions& options) {
  SHERD_CHECK(!path.empty(), "[ft] expected the path of a log, found none");
  SHERD_CHECK(
      options.records_kept >= 1 && options.summary_every >= 1 &&
          options.past_min >= 1,
      "[ft] expected to keep 1 record or more of a log, found ",
      options.records_kept);
  auto impl = std::make_unique<Impl>();
  // Also keeps SQLite from finding a meaning in ":memory:".
  impl->path = std::filesystem::absolute(path).string();
  impl->options = options;
  for (const auto step : {&Impl::prepare, &Impl::note_file, &Impl::read}) {
    if (auto status = (impl.get()->*step)(); !status.ok()) {
      return status;
    }
  }
  return std::unique_ptr<LogStore>(new LogStore(std::move(impl)));
}

History LogStore::take_history() { return std::move(impl_->history); }
std::int64_t LogStore::size() const { return impl_->sequence; }

}  // namespace sherd::ft
