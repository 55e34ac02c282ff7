// SPDX-License-Identifier: Apache-2.0
//
// SendSchedule is the sliding window of one all-reduce: which slice a member sends next, and what it
// may receive. Older slices go first, so that buckets finish in order. The window bounds what is in
// flight, and what a member must hold that is late with a bucket. Thread rule: a value; pure.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>
#include "ft/ring/reduce_schedule.h"

namespace sherd::ft::ring {

class SendSchedule {
 public:
  // REQUIRES: more than one member; window > 0. `schedule` outlives it.
  SendSchedule(const ReduceSchedule& schedule, int window);

  // What to send now, from buckets below `given`, to one of the receivers that are `free`; none:
  // nothing is ready.
  std::optional<SliceStep> next_to_send(
      int given, const std::vector<bool>& free) const;
  // REQUIRES: the item of next_to_send().
  void sent(const SliceStep& item);

  // Why this frame must not arrive now from this sender; empty: it may.
  std::string refusal(const SliceStep& item, int sender) const;
  // REQUIRES: no refusal. Its bytes are here.
  void arrived(const SliceStep& item);
  // It has arrived, and the earlier steps of its slice were taken.
  bool may_take(const SliceStep& item) const;
  // It is summed or copied, and may be sent on. REQUIRES: may_take().
  void taken(const SliceStep& item);

  // Everything is received, taken and sent.
  bool finished() const { return first_ == schedule_->slices(); }
  // Everything is received and taken, whatever is still to be sent.
  bool has_taken() const;
  bool has_arrived() const { return arrived_whole_ == schedule_->slices(); }
  // Everything that this sender sends has come.
  bool has_arrived_from(int sender) const;
  // Whose frame the oldest slices wait for; none: all has arrived.
  std::optional<int> waits_for() const;
  std::int64_t slices_done() const { return first_; }
  // The first slice of which nothing was sent.
  std::int64_t next_slice() const;

 private:
  struct Slice {
    int sent = 0;
    int taken = 0;
    int arrived_count = 0;
    std::vector<bool> arrived;  // By step; empty: none.
  };
  Slice& at(std::int64_t slice);
  const Slice& look(std::int64_t slice) const;
  static bool has_come(const Slice& slice, int step);
  int next_from(std::int64_t slice, int sender) const;
  bool is_whole(std::int64_t slice) const;
  void drop_ended();

  const ReduceSchedule* schedule_;
  int window_;
  // Slices from first_ on; earlier ones are done.
  std::deque<Slice> slices_;
  std::int64_t first_ = 0;
  std::int64_t arrived_whole_ = 0;          // All slices before have arrived.
  std::vector<std::int64_t> arrived_from_;  // Frames, by sender.
  Slice untouched_;
};

}  // namespace sherd::ft::ring
