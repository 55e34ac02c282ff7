// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/send_schedule.h"

#include <algorithm>
#include "base/check.h"

namespace sherd::ft::ring {

SendSchedule::SendSchedule(const RingSchedule& schedule, int window)
    : schedule_(&schedule), window_(window) {
  SHERD_ASSERT(schedule.steps() > 0 && window > 0);
}

SendSchedule::Slice SendSchedule::look(std::int64_t slice) const {
  const auto i = static_cast<std::size_t>(slice - first_);
  return i < slices_.size() ? slices_[i] : Slice{};
}

SendSchedule::Slice& SendSchedule::at(std::int64_t slice) {
  SHERD_ASSERT(slice >= first_ && slice < schedule_->slices());
  const auto i = static_cast<std::size_t>(slice - first_);
  if (i >= slices_.size()) {
    slices_.resize(i + 1);
  }
  return slices_[i];
}

std::optional<SliceStep> SendSchedule::next_to_send(int given) const {
  const auto end = std::min(first_ + window_, schedule_->slices());
  for (auto slice = first_; slice < end; ++slice) {
    const Slice state = look(slice);
    if (state.sent == 0) {
      // Slices begin in order: a late bucket holds up those after it.
      if (schedule_->bucket_of(slice) >= given) {
        return std::nullopt;
      }
      return SliceStep{slice, 0};
    }
    if (state.sent < schedule_->steps() && state.taken >= state.sent) {
      return SliceStep{slice, state.sent};
    }
  }
  return std::nullopt;
}

bool SendSchedule::has_taken() const {
  // All from first_ on are listed once anything of them was sent or has come.
  return first_ + static_cast<std::int64_t>(slices_.size()) ==
      schedule_->slices() &&
      std::all_of(slices_.begin(), slices_.end(), [&](const Slice& slice) {
           return slice.taken == schedule_->steps();
         });
}

std::int64_t SendSchedule::next_slice() const {
  const auto begun = std::find_if(
      slices_.begin(), slices_.end(),
      [](const Slice& slice) { return slice.sent == 0; });
  return first_ + (begun - slices_.begin());
}

void SendSchedule::sent(const SliceStep& item) {
  Slice& state = at(item.slice);
  SHERD_ASSERT(item.step == state.sent && item.step < schedule_->steps());
  ++state.sent;
  drop_ended();
}

std::string SendSchedule::refusal(const SliceStep& item) const {
  if (item.slice < 0 || item.slice >= schedule_->slices() || item.step < 0 ||
      item.step >= schedule_->steps()) {
    return str(
        "expected slices below ", schedule_->slices(), " and steps below ",
        schedule_->steps(), ", found slice ", item.slice, ", step ", item.step);
  }
  // The sender begins a slice only when the one a window before has gone all the way, past this
  // member too, and a connection keeps its order.
  if (item.slice >= arrived_whole_ + window_) {
    return str(
        "expected at most ", window_, " slices under way from slice ",
        arrived_whole_, " on, found slice ", item.slice);
  }
  const int expected =
      item.slice < first_ ? schedule_->steps() : look(item.slice).arrived;
  if (item.step != expected) {
    return str(
        "expected step ", expected, " of slice ", item.slice, ", found step ",
        item.step);
  }
  return {};
}

void SendSchedule::arrived(const SliceStep& item) {
  SHERD_ASSERT(refusal(item).empty());
  ++at(item.slice).arrived;
  const int steps = schedule_->steps();
  while (arrived_whole_ < schedule_->slices() &&
         (arrived_whole_ < first_ || look(arrived_whole_).arrived == steps)) {
    ++arrived_whole_;
  }
}

void SendSchedule::taken(const SliceStep& item) {
  Slice& state = at(item.slice);
  SHERD_ASSERT(item.step == state.taken && state.taken < state.arrived);
  ++state.taken;
  drop_ended();
}

void SendSchedule::drop_ended() {
  const int steps = schedule_->steps();
  while (!slices_.empty() && slices_.front().sent == steps &&
         slices_.front().taken == steps) {
    slices_.pop_front();
    ++first_;
  }
}

}  // namespace sherd::ft::ring
