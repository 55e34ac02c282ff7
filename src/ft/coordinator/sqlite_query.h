// SPDX-License-Identifier: Apache-2.0
//
// A handle of an SQLite database and one prepared statement. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <sqlite3.h>

namespace sherd::ft {

using Database = std::unique_ptr<sqlite3, decltype(&sqlite3_close_v2)>;

// The arguments of bind() and bind_text() must outlive the next step().
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
  void bind_text(int at, std::string_view text) {
    note(sqlite3_bind_text64(
        statement_, at, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8));
  }
  // Whether there is a row; failed() tells an error from the end of the rows.
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

}  // namespace sherd::ft
