// SPDX-License-Identifier: Apache-2.0
//
// SendSchedule is the sliding window of one all-reduce: which slice a member sends next, and what
// it may receive. Older slices go first, so that buckets finish in order. The window limits what is
// in flight, and what a member that is late with a bucket must hold. Thread rule: a value.
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
  // REQUIRES: window > 0. `schedule` outlives it.
  SendSchedule(const ReduceSchedule& schedule, int window);

  // What to send now from the buckets below `given` to one of the `free` receivers; nullopt if
  // nothing is ready.
  std::optional<SliceStep> next_to_send(
      int given, const std::vector<bool>& free) const;
  // REQUIRES: `item` was returned by next_to_send().
  void sent(const SliceStep& item);

  // Why this frame must not arrive now from this sender; empty if it may.
  std::string refusal(const SliceStep& item, int sender) const;
  // The bytes of the frame have arrived. REQUIRES: there is no refusal.
  void arrived(const SliceStep& item);
  // Whether it has arrived and the earlier steps of its slice were taken.
  bool may_take(const SliceStep& item) const;
  // The frame has been summed or copied, and may be sent on. REQUIRES: may_take().
  void taken(const SliceStep& item);

  // The oldest slice is done. REQUIRES: this is the only member, which sends and receives nothing.
  void done_alone() { ++first_; }

  // Whether everything is received, taken and sent.
  bool finished() const { return first_ == schedule_->slices(); }
  // Whether everything is received and taken, even if something is still to be sent.
  bool has_taken() const;
  // Whether all frames of this sender have arrived.
  bool has_arrived_from(int sender) const;
  // The sender whose frame the oldest slices wait for; nullopt if all have arrived.
  std::optional<int> waits_for() const;
  std::int64_t slices_done() const { return first_; }
  // The first slice of which nothing was sent.
  std::int64_t next_slice() const;

 private:
  struct Slice {
    int sent = 0;
    int taken = 0;
    int arrived_count = 0;
    std::vector<bool> arrived;  // By step; empty if none has arrived.
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
  // All slices before this one have arrived.
  std::int64_t arrived_whole_;
  // The number of frames, by sender.
  std::vector<std::int64_t> arrived_from_;
  Slice untouched_;
};

}  // namespace sherd::ft::ring
