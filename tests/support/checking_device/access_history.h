// SPDX-License-Identifier: Apache-2.0
//
// AccessHistory knows, by range of bytes, who wrote it last and who has read it since, and finds
// the accesses that nothing orders. It computes with numbers only and moves no memory. Thread rule:
// one thread.
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
  std::uint64_t number = 0;  // In its queue.
};

class AccessHistory {
 public:
  // Notes an access that happens at the moment `now`, and returns an earlier one that it conflicts
  // with: one of them is no read, and `now` does not cover it, or it has freed the memory.
  std::optional<Access> note(
      const ByteRange& range, const Access& access, const VectorClock& now);

  // The memory is somebody else's from now on, and nobody has used it yet.
  void forget(const ByteRange& range);

 private:
  struct Uses {
    std::optional<Access> write;  // Or free.
    std::vector<Access> reads;    // Since the write; one a queue.
  };
  using Pieces = std::map<std::uintptr_t, Uses>;

  Pieces::iterator cut_at(std::uintptr_t address);
  static std::optional<Access> conflict(
      const Uses& uses, const Access& access, const VectorClock& now);

  // From this address up to the next key.
  Pieces pieces_;
};

}  // namespace sherd::test
