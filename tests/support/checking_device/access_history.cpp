// SPDX-License-Identifier: Apache-2.0
#include "support/checking_device/access_history.h"

#include <algorithm>

namespace sherd::test {

AccessHistory::Pieces::iterator AccessHistory::cut_at(std::uintptr_t address) {
  const auto next = pieces_.upper_bound(address);
  if (next == pieces_.begin()) {
    return pieces_.try_emplace(address).first;
  }
  const auto before = std::prev(next);
  return before->first == address
      ? before
      : pieces_.emplace(address, before->second).first;
}

std::optional<Access> AccessHistory::conflict(
    const Uses& uses, const Access& access, const VectorClock& now) {
  const auto unordered = [&](const Access& earlier) {
    return !now.covers(earlier.queue, earlier.number);
  };
  if (uses.write &&
      (uses.write->kind == AccessKind::kFree || unordered(*uses.write))) {
    return uses.write;
  }
  if (access.kind == AccessKind::kRead) {
    return std::nullopt;
  }
  const auto read = std::ranges::find_if(uses.reads, unordered);
  return read == uses.reads.end() ? std::nullopt : std::optional(*read);
}

std::optional<Access> AccessHistory::note(
    const ByteRange& range, const Access& access, const VectorClock& now) {
  if (range.begin == range.end) {
    return std::nullopt;
  }
  const auto first = cut_at(range.begin);
  cut_at(range.end);
  std::optional<Access> found;
  for (auto it = first; it->first < range.end; ++it) {
    auto& uses = it->second;
    if (!found) {
      found = conflict(uses, access, now);
    }
    if (access.kind == AccessKind::kRead) {
      std::erase_if(uses.reads, [&](const Access& earlier) {
        return earlier.queue == access.queue;
      });
      uses.reads.push_back(access);
    } else {
      uses = {.write = access, .reads = {}};
    }
  }
  return found;
}

void AccessHistory::forget(const ByteRange& range) {
  if (range.begin == range.end) {
    return;
  }
  const auto first = cut_at(range.begin);
  const auto last = cut_at(range.end);
  pieces_.erase(std::next(first), last);
  first->second = {};
}

}  // namespace sherd::test
