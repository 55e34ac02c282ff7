// SPDX-License-Identifier: Apache-2.0
//
// The c10d store through which ranks join, which may hold what earlier groups
// left there: a program may form a group, end it, and form the next one on the
// same store, also after one that could not be formed. Rank 0 counts its
// attempts and puts the number before all that it says of one: where it listens,
// why it failed, that it is over. Each other rank notes in the store the last
// attempt that it took part in, whatever came of it, and has no ears for that
// one and those before. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "base/clock.h"
#include "shm/join.h"

namespace sherd::c10d_shm {

// What rank 0 says of an attempt, as in "3 sherd-5e1f...".
struct JoinAttemptRecord {
  std::int64_t attempt = 0;
  std::string text{};

  std::string to_text() const;
  // Nothing unless `text` is one.
  static std::optional<JoinAttemptRecord> from_text(const std::string& text);
  // Whether a rank whose last attempt was `taken_part` has to hear it.
  bool concerns(std::int64_t taken_part) const;
  // What it says of an attempt that all have joined.
  static const char* over();
};

class JoinAttemptStore {
 public:
  static constexpr const char* kKey = "sherd/segment";

  // `clock` outlives it. One for each attempt of this rank.
  JoinAttemptStore(
      c10::intrusive_ptr<c10d::Store> store, int rank, const Clock& clock);

  // For one join; not beyond this object.
  shm::StringStore strings();
  // Says that all have joined, to ranks that come from elsewhere later on.
  void end();

 private:
  Status put(const std::string& text);
  Result<std::string> get(Duration at_most);
  // Waits until there is a note, whatever it says.
  std::optional<JoinAttemptRecord> next_note(Duration at_most);

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string taken_part_key_;
  const Clock& clock_;
  std::int64_t attempt_ = 0;  // Of rank 0; or that this rank takes part in.
  std::optional<std::int64_t> taken_part_;  // Before; once it is known.
};

}  // namespace sherd::c10d_shm
