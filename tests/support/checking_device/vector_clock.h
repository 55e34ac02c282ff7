// SPDX-License-Identifier: Apache-2.0
//
// VectorClock says which work of which queues is known to be done before a moment: for each queue,
// how many of its pieces of work. Thread rule: a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace sherd::test {

using QueueId = std::int64_t;
// The number of a capture, from 1; 0 if there is none.
using CaptureId = std::int64_t;

class VectorClock {
 public:
  // Adds one piece of work of the queue; returns its number, from 1.
  std::uint64_t tick(QueueId queue) { return ++done_[queue]; }

  // Everything done before that other moment was done before this one, too.
  void merge(const VectorClock& other) {
    for (const auto& [queue, count] : other.done_) {
      auto& here = done_[queue];
      here = std::max(here, count);
    }
  }

  // Whether the queue's piece of work with that number was done before.
  bool covers(QueueId queue, std::uint64_t number) const {
    const auto found = done_.find(queue);
    return found != done_.end() && found->second >= number;
  }

  bool covers(const VectorClock& other) const {
    return std::ranges::all_of(other.done_, [&](const auto& entry) {
      return covers(entry.first, entry.second);
    });
  }

 private:
  std::map<QueueId, std::uint64_t> done_;
};

}  // namespace sherd::test
