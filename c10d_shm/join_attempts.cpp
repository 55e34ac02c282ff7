// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/join_attempts.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <sstream>
#include <thread>
#include <utility>
#include "base/check.h"
#include "base/status.h"

namespace sherd::c10d_shm {
namespace {

// One can wait for a key in a store, but not for a new value.
constexpr Duration kPoll = std::chrono::milliseconds(10);

}  // namespace

std::string JoinAttemptStore::Record::to_text() const {
  return str(attempt, " ", text);
}

std::optional<JoinAttemptStore::Record> JoinAttemptStore::Record::from_text(
    const std::string& text) {
  std::istringstream in(text);
  Record note;
  if (!(in >> note.attempt) || note.attempt < 1 || in.get() != ' ') {
    return std::nullopt;
  }
  std::getline(in, note.text, '\0');
  return note;
}

JoinAttemptStore::JoinAttemptStore(
    c10::intrusive_ptr<c10d::Store> store, int rank, const Clock& clock)
    : store_(std::move(store)),
      taken_part_key_(str(kKey, "/rank ", rank)),
      clock_(clock) {}

shm::StringStore JoinAttemptStore::strings() {
  return {
      .put = [this](const std::string& text) { return put(text); },
      .get = [this](Duration at_most) { return get(at_most); }};
}

void JoinAttemptStore::end() { static_cast<void>(put(Record::kOver)); }

Status JoinAttemptStore::put(const std::string& text) {
  try {
    if (attempt_ == 0) {
      attempt_ = store_->add(str(kKey, "/attempts"), 1);
    }
    store_->set(kKey, Record{.attempt = attempt_, .text = text}.to_text());
  } catch (const std::exception& error) {
    return {
        ErrorCode::kPeerLost,
        "[c10d_shm] the store is lost: " + first_line_of(error)};
  }
  return {};
}

std::optional<JoinAttemptStore::Record> JoinAttemptStore::next_note(
    Duration at_most) {
  store_->wait(
      {kKey},
      std::max(
          std::chrono::milliseconds(1),
          std::chrono::duration_cast<std::chrono::milliseconds>(at_most)));
  return Record::from_text(store_->get_to_str(kKey));
}

Result<std::string> JoinAttemptStore::get(Duration at_most) {
  const Instant until = clock_.now() + at_most;
  try {
    if (!taken_part_) {
      const bool known = store_->check({taken_part_key_});
      taken_part_ = known ? std::stoll(store_->get_to_str(taken_part_key_)) : 0;
    }
    do {
      const auto note = next_note(until - clock_.now());
      if (note && note->concerns(*taken_part_)) {
        if (note->attempt != attempt_) {
          attempt_ = note->attempt;
          store_->set(taken_part_key_, std::to_string(attempt_));
        }
        return note->text;
      }
      std::this_thread::sleep_for(kPoll);
    } while (clock_.now() < until);
  } catch (const std::exception& error) {
    return Status(
        ErrorCode::kDeadlineExceeded,
        str("[c10d_shm] the store has no ", kKey, ": ", first_line_of(error)));
  }
  return Status(
      ErrorCode::kDeadlineExceeded,
      str("[c10d_shm] the store has no ", kKey, " but of an earlier group"));
}

}  // namespace sherd::c10d_shm
