// SPDX-License-Identifier: Apache-2.0
//
// The events of a simulated world in the order of their times, and its clock: the time is that of
// the running event, and stands still meanwhile. Events with the same time run in the order in
// which they were added. Events from outside the modelled system, such as failures, are
// distinguished from those that follow inside, so that a world can tell how long nothing will
// disturb it. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include "base/clock.h"

namespace sherd::sim {

class EventQueue final : public Clock {
 public:
  using Action = std::function<void()>;

  Instant now() const override { return now_; }

  // Runs the action at that time, or next if the time has passed.
  void add(Instant at, Action action) { insert(at, std::move(action), false); }
  // The same for events from outside.
  void add_outside(Instant at, Action action) {
    insert(at, std::move(action), true);
  }

  // The time of the next event, or nullopt if there is none.
  std::optional<Instant> next() const;
  std::optional<Instant> next_outside() const;

  // Runs the next event. REQUIRES: there is one.
  void run_next();
  // Lets time pass in which nothing happens. REQUIRES: there is no event before that time.
  void wait_until(Instant at);

 private:
  struct Event {
    Action action;
    bool outside = false;
  };
  void insert(Instant at, Action action, bool outside);

  Instant now_{0};
  std::uint64_t added_ = 0;
  std::map<std::pair<Instant, std::uint64_t>, Event> events_;
  std::multiset<Instant> outside_;
};

}  // namespace sherd::sim
