// SPDX-License-Identifier: Apache-2.0
//
// SendSchedule is the sliding window of one ring all-reduce: which slice a member sends next, and
// what it may receive. Older slices go first, so that buckets finish in order. The window bounds
// what is in flight, and what a member must hold that is late with a bucket. Thread rule: a value;
// pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include "ft/ring/ring_schedule.h"

namespace sherd::ft::ring {

class SendSchedule {
 public:
  // REQUIRES: more than one member; window > 0. `schedule` outlives it.
  SendSchedule(const RingSchedule& schedule, int window);

  // What to send now, from buckets below `given`; none: nothing is ready.
  std::optional<SliceStep> next_to_send(int given) const;
  // REQUIRES: the item of next_to_send().
  void sent(const SliceStep& item);

  // Why this frame must not arrive now; empty: it may.
  std::string refusal(const SliceStep& item) const;
  // REQUIRES: no refusal. Its bytes are here.
  void arrived(const SliceStep& item);
  // It is summed or copied, and may be sent on. REQUIRES: it has arrived, and the earlier steps of
  // its slice were taken.
  void taken(const SliceStep& item);

  // Everything is received, taken and sent.
  bool finished() const { return first_ == schedule_->slices(); }
  // Everything is received and taken, whatever is still to be sent.
  bool has_taken() const;
  bool has_arrived() const { return arrived_whole_ == schedule_->slices(); }
  std::int64_t slices_done() const { return first_; }
  // The oldest slice of which this member has sent nothing.
  std::int64_t next_slice() const;

 private:
  struct Slice {
    int sent = 0;
    int arrived = 0;
    int taken = 0;
  };
  Slice& at(std::int64_t slice);
  Slice look(std::int64_t slice) const;
  void drop_ended();

  const RingSchedule* schedule_;
  int window_;
  // Slices from first_ on; earlier ones are done.
  std::deque<Slice> slices_;
  std::int64_t first_ = 0;
  std::int64_t arrived_whole_ = 0;  // All slices before have arrived.
};

}  // namespace sherd::ft::ring
