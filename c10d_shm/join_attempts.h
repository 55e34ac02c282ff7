// SPDX-License-Identifier: Apache-2.0
//
// The c10d store through which the ranks of a backend join. It may still hold values of earlier
// groups, so rank 0 puts the number of its attempt in front of each value, and every other rank
// ignores those of attempts that it has taken part in (docs/design/shm_backend.md). Thread rule: one
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "base/clock.h"
#include "shm/join.h"

namespace sherd::c10d_shm {

class JoinAttemptStore {
 public:
  static constexpr const char* kKey = "sherd/segment";

  // A value that rank 0 puts for an attempt, such as "3 sherd-5e1f...".
  struct Record {
    std::int64_t attempt = 0;
    std::string text{};

    std::string to_text() const;
    // Nothing if `text` is no record.
    static std::optional<Record> from_text(const std::string& text);
    // Whether it is news for a rank whose last attempt was `taken_part`.
    bool concerns(std::int64_t taken_part) const {
      return attempt > taken_part && text != kOver;
    }
    // The text of an attempt that all ranks have joined.
    static constexpr const char* kOver = "over";
  };

  // Made once for each attempt of this rank. `clock` must outlive it.
  JoinAttemptStore(
      c10::intrusive_ptr<c10d::Store> store, int rank, const Clock& clock);

  // The store for one join. This object must outlive it.
  shm::StringStore strings();
  // Tells ranks that come later that all have joined.
  void end();

 private:
  Status put(const std::string& text);
  Result<std::string> get(Duration at_most);
  // Waits until there is a note, whatever its content.
  std::optional<Record> next_note(Duration at_most);

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string taken_part_key_;
  const Clock& clock_;
  // The attempt that this rank makes or takes part in.
  std::int64_t attempt_ = 0;
  // The last attempt before, once known.
  std::optional<std::int64_t> taken_part_;
};

}  // namespace sherd::c10d_shm
