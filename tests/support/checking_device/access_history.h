// SPDX-License-Identifier: Apache-2.0
//
// AccessHistory records, by range of bytes, who wrote it last and who has read it since, and finds
// accesses that nothing orders. It only computes with numbers and moves no memory. Thread rule: one
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "support/checking_device/vector_clock.h"

namespace sherd::test {

// [begin, end).
struct ByteRange {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};

enum class AccessKind { kRead, kWrite, kFree };

// One operator's access.
struct Access {
  AccessKind kind = AccessKind::kRead;
  std::string operation;
  QueueId queue = 0;
  std::uint64_t number = 0;  // Its number in its queue.
};

class AccessHistory {
 public:
  // Records an access at the moment `now`, and returns an earlier one that it conflicts with: at
  // least one of them is no read, and `now` does not cover the earlier one, or it has freed the
  // memory.
  std::optional<Access> note(
      const ByteRange& range, const Access& access, const VectorClock& now);

  // The memory has a new owner, and nobody has used it yet.
  void forget(const ByteRange& range);

 private:
  struct Uses {
    std::optional<Access> write;  // Or a free.
    std::vector<Access> reads;    // Since the write, one per queue.
  };
  using Pieces = std::map<std::uintptr_t, Uses>;

  Pieces::iterator cut_at(std::uintptr_t address);
  static std::optional<Access> conflict(
      const Uses& uses, const Access& access, const VectorClock& now);

  // From this address up to the next key.
  Pieces pieces_;
};

}  // namespace sherd::test
