// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/log_store.h"

#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <sqlite3.h>

#include "base/check.h"
#include "base/crc32c.h"
#include "ft/wire/codec.h"
#include "net/bytes.h"

namespace sherd::ft {
namespace {

constexpr int kApplicationId = 0x73687264;  // "shrd".
constexpr int kVersion = 2;
// For another coordinator that is in a transaction; one that was stopped there
// holds the lock for longer.
constexpr int kBusyMs = 1000;

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close_v2(database); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;

// Before its bytes: so that records that were exchanged are noticed too.
std::uint32_t checksum_of(
    std::int64_t sequence, std::uint64_t term, std::string_view bytes) {
  net::ByteWriter head;
  head.i64(sequence);
  head.u64(term);
  return crc32c(bytes, crc32c(head.bytes()));
}

// One prepared statement; the arguments of bind() outlive the next step().
class Query {
 public:
  Query(sqlite3* database, const char* text) {
    code_ = sqlite3_prepare_v2(database, text, -1, &statement_, nullptr);
  }
  ~Query() { sqlite3_finalize(statement_); }
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  void bind(int at, std::int64_t value) {
    note(sqlite3_bind_int64(statement_, at, value));
  }
  void bind(int at, std::string_view bytes) {
    note(sqlite3_bind_blob64(
        statement_, at, bytes.data(), bytes.size(), SQLITE_STATIC));
  }
  // Whether there is a row; failed() tells an error from the end.
  bool step() {
    if (code_ == SQLITE_OK || code_ == SQLITE_ROW) {
      code_ = sqlite3_step(statement_);
    }
    return code_ == SQLITE_ROW;
  }
  bool failed() const {
    return code_ != SQLITE_OK && code_ != SQLITE_ROW && code_ != SQLITE_DONE;
  }
  int code() const { return code_; }
  void reset() {
    sqlite3_reset(statement_);
    code_ = SQLITE_OK;
  }

  std::int64_t number(int column) const {
    return sqlite3_column_int64(statement_, column);
  }
  std::string_view bytes(int column) const {
    const void* data = sqlite3_column_blob(statement_, column);
    const auto size = sqlite3_column_bytes(statement_, column);
    return {static_cast<const char*>(data), static_cast<std::size_t>(size)};
  }

 private:
  void note(int code) {
    if (code_ == SQLITE_OK) {
      code_ = code;
    }
  }

  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
};

}  // namespace

struct LogStore::Impl {
  std::string path;
  Database database;
  History history;
  std::int64_t sequence = 0;  // Of the last record.
  std::uint64_t term = 0;     // Of the last record.

  Status failure(const char* what, int code) const;
  Status refused(const std::string& why) const;
  Status run(const char* what, const char* text) const;
  Result<std::int64_t> number(const char* text) const;
  Status prepare();
  Status recognise();
  Status make();
  Status read();
  Status check_owner() const;
  Status insert(const std::vector<Record>& records);
};

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
  if (!fresh && version.value() != kVersion) {
    return refused(
        str("expected version ", kVersion, ", found ", version.value()));
  }
  if (sqlite3_db_readonly(database.get(), "main") == 1) {
    return {
        ErrorCode::kUnavailable,
        str("[ft] log '", path, "': cannot write: it is read-only")};
  }
  if (auto status =
          run("open",
              "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"
              "PRAGMA trusted_schema = OFF");
      !status.ok()) {
    return status;
  }
  return fresh ? make() : Status();
}

Status LogStore::Impl::make() {
  const std::string text =
      str("BEGIN IMMEDIATE;"
          "CREATE TABLE IF NOT EXISTS records (sequence INTEGER PRIMARY KEY,"
          " term INTEGER NOT NULL, crc32c INTEGER NOT NULL,"
          " bytes BLOB NOT NULL);"
          "PRAGMA application_id = ",
          kApplicationId, "; PRAGMA user_version = ", kVersion, "; COMMIT");
  auto status = run("make the file", text.c_str());
  if (!status.ok() && sqlite3_get_autocommit(database.get()) == 0) {
    (void)run("undo", "ROLLBACK");
  }
  return status;
}

Status LogStore::Impl::read() {
  Query query(
      database.get(),
      "SELECT sequence, term, crc32c, bytes FROM records ORDER BY sequence");
  while (query.step()) {
    const auto found = query.number(0);
    if (found != sequence + 1) {
      return refused(str("expected record ", sequence + 1, ", found ", found));
    }
    const auto bytes = query.bytes(3);
    const auto its_term = static_cast<std::uint64_t>(query.number(1));
    if (query.number(2) != checksum_of(found, its_term, bytes)) {
      return refused(str("the checksum of record ", found, " is wrong"));
    }
    const auto record = record_of(bytes);
    if (!record.ok()) {
      return refused(str("record ", found, ": ", record.status().message()));
    }
    try {
      ft::append(history, record.value());
    } catch (const Error& error) {
      return refused(str("record ", found, " cannot follow: ", error.what()));
    }
    if (its_term != history.term) {
      return refused(
          str("record ", found, ": expected term ", history.term, ", found ",
              its_term));
    }
    sequence = found;
    term = its_term;
  }
  return query.failed() ? failure("read", query.code()) : Status();
}

// ---- appending ----

// In the transaction: a coordinator that was stopped and woken finds here that
// it has a successor, whatever it still believes.
Status LogStore::Impl::check_owner() const {
  Query query(
      database.get(),
      "SELECT sequence, term FROM records ORDER BY sequence DESC LIMIT 1");
  const bool any = query.step();
  if (query.failed()) {
    return failure("read", query.code());
  }
  const std::int64_t last = any ? query.number(0) : 0;
  const auto owner = any ? static_cast<std::uint64_t>(query.number(1)) : 0;
  if (last == sequence && owner == term) {
    return {};
  }
  return refused(
      str("the log belongs to term ", owner, " now; this coordinator is of ",
          "term ", term, " and knows ", sequence, " of ", last, " records"));
}

Status LogStore::Impl::insert(const std::vector<Record>& records) {
  Query query(
      database.get(),
      "INSERT INTO records (sequence, term, crc32c, bytes) "
      "VALUES (?1, ?2, ?3, ?4)");
  std::int64_t at = sequence;
  std::uint64_t its_term = term;
  for (const auto& record : records) {
    ++at;
    if (const auto* begins = std::get_if<TermRecord>(&record)) {
      its_term = begins->term;
    }
    const std::string bytes = bytes_of(record);
    query.bind(1, at);
    query.bind(2, static_cast<std::int64_t>(its_term));
    query.bind(3, checksum_of(at, its_term, bytes));
    query.bind(4, std::string_view(bytes));
    (void)query.step();
    if (query.failed()) {
      return failure("append", query.code());
    }
    query.reset();
  }
  if (auto status = run("append", "COMMIT"); !status.ok()) {
    return status;
  }
  sequence = at;
  term = its_term;
  return {};
}

LogStore::LogStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LogStore::~LogStore() = default;

Result<std::unique_ptr<LogStore>> LogStore::open(const std::string& path) {
  SHERD_CHECK(!path.empty(), "[ft] expected the path of a log, found none");
  auto impl = std::make_unique<Impl>();
  // Also keeps SQLite from finding a meaning in ":memory:".
  impl->path = std::filesystem::absolute(path).string();
  for (const auto step : {&Impl::prepare, &Impl::read}) {
    if (auto status = (impl.get()->*step)(); !status.ok()) {
      return status;
    }
  }
  return std::unique_ptr<LogStore>(new LogStore(std::move(impl)));
}

History LogStore::take_history() { return std::move(impl_->history); }
std::int64_t LogStore::size() const { return impl_->sequence; }

Status LogStore::check_owner() const { return impl_->check_owner(); }

Status LogStore::append(const std::vector<Record>& records) {
  if (records.empty()) {
    return {};
  }
  if (auto status = impl_->run("append", "BEGIN IMMEDIATE"); !status.ok()) {
    return status;
  }
  auto status = impl_->check_owner();
  if (status.ok()) {
    status = impl_->insert(records);
  }
  // A COMMIT that failed may have ended the transaction by itself.
  if (!status.ok() && sqlite3_get_autocommit(impl_->database.get()) == 0) {
    (void)impl_->run("undo", "ROLLBACK");
  }
  return status;
}

}  // namespace sherd::ft
