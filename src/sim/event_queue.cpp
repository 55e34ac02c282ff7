// SPDX-License-Identifier: Apache-2.0
#include "sim/event_queue.h"

#include <algorithm>

#include "base/check.h"

namespace sherd::sim {

void EventQueue::insert(Instant at, Action action, bool outside) {
  at = std::max(at, now_);
  events_.emplace(
      std::make_pair(at, added_++), Event{std::move(action), outside});
  if (outside) {
    outside_.insert(at);
  }
}

std::optional<Instant> EventQueue::next() const {
  return events_.empty() ? std::nullopt
                         : std::optional(events_.begin()->first.first);
}

std::optional<Instant> EventQueue::next_outside() const {
  return outside_.empty() ? std::nullopt : std::optional(*outside_.begin());
}

void EventQueue::run_next() {
  SHERD_ASSERT(!events_.empty(), "there is no event to run");
  auto node = events_.extract(events_.begin());
  now_ = node.key().first;
  if (node.mapped().outside) {
    outside_.erase(outside_.find(now_));
  }
  node.mapped().action();
}

void EventQueue::wait_until(Instant at) {
  SHERD_ASSERT(!next() || *next() >= at, "an event comes first");
  now_ = std::max(now_, at);
}

}  // namespace sherd::sim
