// SPDX-License-Identifier: Apache-2.0
//
// How the log is written. Each transaction checks that the file is still the one that was opened
// and that no other coordinator has begun a term, so the content of the log is never in doubt.
#include <sys/stat.h>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <variant>

#include "base/check.h"
#include "base/status.h"
#include "ft/coordinator/log_store.h"
#include "ft/wire/record_codec.h"

namespace sherd::ft {
namespace {

// A piece of the past that no start has to read again is deleted as a whole.
constexpr std::size_t kPieceStates = 4096;
// A summary that could not be written is tried again after this share of the records between two.
constexpr std::int64_t kTriesPerSummary = 16;

}  // namespace

// ---- who owns the log ----

// What is written to a deleted file is lost when this process ends.
Status LogStore::check_file() const {
  struct stat file = {};
  const bool there = ::stat(path_.c_str(), &file) == 0;
  if (there && file.st_dev == device_ && file.st_ino == inode_) {
    return {};
  }
  if (!there && errno != ENOENT && errno != ENOTDIR) {
    return {
        ErrorCode::kUnavailable,
        str("[ft] log '", path_, "': cannot find it: ", std::strerror(errno))};
  }
  return refused(
      str("it was ", there ? "replaced" : "deleted",
          " while the coordinator used it; ", rescued()));
}

// The file that was opened still has all records. SQLite writes to no file that exists, and what was
// rescued before may still be needed.
std::string LogStore::rescued() const {
  const int number = rescues_of(path_) + 1;
  const std::string to = rescued_path(path_, number);
  if (number > kRescuesMax) {
    return str("what it had is lost: there are too many files like '", to, "'");
  }
  Query query(database_.get(), "VACUUM INTO ?1");
  query.bind_text(1, to);
  (void)query.step();
  if (query.failed()) {
    const auto why = failure(str("write '", to, "'").c_str(), query.code());
    std::error_code none;
    std::filesystem::remove(to, none);  // A part of it would be taken for all.
    return "what it had is lost: " + why.message();
  }
  return str(
      "what it had is in '", to, "': move that to '", path_,
      "' and start the coordinator again");
}

// Runs in the transaction: a coordinator that was stopped and woken finds here that it has a
// successor, whatever it still believes.
Status LogStore::check_owner() const {
  SHERD_RETURN_IF_FAILED(check_file());
  Query query(
      database_.get(),
      "SELECT sequence, term FROM records ORDER BY sequence DESC LIMIT 1");
  const bool any = query.step();
  if (query.failed()) {
    return failure("read", query.code());
  }
  const std::int64_t last = any ? query.number(0) : 0;
  const auto owner = any ? static_cast<std::uint64_t>(query.number(1)) : 0;
  if (last == sequence_ && owner == term_) {
    return {};
  }
  return refused(
      str("the log belongs to term ", owner, " now; this coordinator is of ",
          "term ", term_, " and knows ", sequence_, " of ", last, " records"));
}

template <typename Write>
Status LogStore::transact(const char* what, const Write& write) {
  // VACUUM, which rescues the records, cannot run in a transaction.
  SHERD_RETURN_IF_FAILED(check_file());
  SHERD_RETURN_IF_FAILED(run(what, "BEGIN IMMEDIATE"));
  auto status = check_owner();
  if (status.ok()) {
    status = write();
  }
  if (status.ok()) {
    status = run(what, "COMMIT");
  }
  // A failed COMMIT may already have ended the transaction.
  if (!status.ok() && sqlite3_get_autocommit(database_.get()) == 0) {
    (void)run("undo", "ROLLBACK");
  }
  return status;
}

// ---- records ----

Status LogStore::insert(const std::vector<Record>& records) {
  Query query(
      database_.get(),
      "INSERT INTO records (sequence, term, crc32c, bytes) "
      "VALUES (?1, ?2, ?3, ?4)");
  std::int64_t at = sequence_;
  std::uint64_t its_term = term_;
  const auto* before = &members_;
  for (const auto& record : records) {
    ++at;
    if (const auto* begins = std::get_if<TermRecord>(&record)) {
      its_term = begins->term;
    }
    const std::string bytes = bytes_of(record, *before);
    before = &members_after(record, *before);
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
  return {};
}

Status LogStore::append(const std::vector<Record>& records) {
  if (records.empty()) {
    return {};
  }
  auto status = transact("append", [&] { return insert(records); });
  if (!status.ok()) {
    return status;
  }
  for (const auto& record : records) {
    if (const auto* begins = std::get_if<TermRecord>(&record)) {
      term_ = begins->term;
    }
    past_has_changed_ =
        past_has_changed_ || std::holds_alternative<RollbackRecord>(record);
    const auto& after = members_after(record, members_);
    if (&after != &members_) {
      members_ = after;
    }
  }
  sequence_ += static_cast<std::int64_t>(records.size());
  return {};
}

// ---- the summary ----

Status LogStore::put(std::int64_t part, std::string_view bytes) const {
  Query query(
      database_.get(),
      "INSERT OR REPLACE INTO summary (part, sequence, term, crc32c, bytes) "
      "VALUES (?1, ?2, ?3, ?4, ?5)");
  query.bind(1, part);
  query.bind(2, sequence_);
  query.bind(3, static_cast<std::int64_t>(term_));
  query.bind(4, checksum_of(sequence_, term_, bytes));
  query.bind(5, bytes);
  (void)query.step();
  return query.failed() ? failure("summarise", query.code()) : Status();
}

// Writes the states since the last summary, or all states after a rollback, which changes earlier
// ones.
Status LogStore::write_past(const History& folded) {
  auto written = past_end_;
  if (past_has_changed_) {
    written = -1;
    SHERD_RETURN_IF_FAILED(
        run("summarise", "DELETE FROM summary WHERE part > 0"));
  }
  PastPiece piece{folded.before_past, {}};
  auto before = folded.before_past;
  const auto write = [&] {
    const auto part = piece.states.front().state.step + 1;
    auto status = put(part, bytes_of(piece));
    piece = {before, {}};
    return status;
  };
  for (const auto& one : folded.past) {
    before.add(one.samples);
    if (one.state.step <= written) {
      piece.before = before;
      continue;
    }
    piece.states.push_back(one);
    if (piece.states.size() >= kPieceStates) {
      SHERD_RETURN_IF_FAILED(write());
    }
  }
  return piece.states.empty() ? Status() : write();
}

// Deletes the pieces before those that must be kept, and the oldest records.
Status LogStore::forget(const History& folded) const {
  const auto step = folded.canonical ? folded.canonical->step : 0;
  const auto first = step - static_cast<std::int64_t>(options_.past_min) + 1;
  SHERD_RETURN_IF_FAILED(
      run("summarise",
          str("DELETE FROM summary WHERE part > 0 AND part < (SELECT "
              "max(part) FROM summary WHERE part > 0 AND part <= ",
              first, ")")
              .c_str()));
  return run(
      "summarise",
      str("DELETE FROM records WHERE sequence <= ",
          sequence_ - options_.records_kept)
          .c_str());
}

Status LogStore::write_summary(const History& folded) {
  SHERD_RETURN_IF_FAILED(write_past(folded));
  SHERD_RETURN_IF_FAILED(put(0, bytes_of_summary(folded)));
  return forget(folded);
}

Status LogStore::summarise(const History& history) {
  const auto wait = options_.summary_every / kTriesPerSummary + 1;
  if (sequence_ - summarised_ < options_.summary_every ||
      (not_summarised_ > 0 && sequence_ - not_summarised_ < wait)) {
    return {};
  }
  auto status = transact("summarise", [&] { return write_summary(history); });
  not_summarised_ = status.ok() ? 0 : sequence_;
  if (status.ok()) {
    summarised_ = sequence_;
    past_end_ = history.past.empty() ? -1 : history.past.back().state.step;
    past_has_changed_ = false;
  }
  return status;
}

}  // namespace sherd::ft
