// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/send_schedule.h"

#include <algorithm>
#include "base/check.h"

namespace sherd::ft::ring {

SendSchedule::SendSchedule(const ReduceSchedule& schedule, int window)
    : schedule_(&schedule),
      window_(window),
      arrived_whole_(schedule.senders().empty() ? schedule.slices() : 0),
      arrived_from_(schedule.senders().size(), 0) {
  SHERD_ASSERT(window > 0);
}

const SendSchedule::Slice& SendSchedule::look(std::int64_t slice) const {
  const auto i = static_cast<std::size_t>(slice - first_);
  return i < slices_.size() ? slices_[i] : untouched_;
}

SendSchedule::Slice& SendSchedule::at(std::int64_t slice) {
  SHERD_ASSERT(slice >= first_ && slice < schedule_->slices());
  const auto i = static_cast<std::size_t>(slice - first_);
  if (i >= slices_.size()) {
    slices_.resize(i + 1);
  }
  return slices_[i];
}

bool SendSchedule::has_come(const Slice& slice, int step) {
  const auto i = static_cast<std::size_t>(step);
  return i < slice.arrived.size() && slice.arrived[i];
}

std::optional<SliceStep> SendSchedule::next_to_send(
    int given, const std::vector<bool>& free) const {
  const auto end = std::min(first_ + window_, schedule_->slices());
  for (auto slice = first_; slice < end; ++slice) {
    const Slice& state = look(slice);
    // Slices begin in order: a late bucket holds up those after it.
    if (state.sent == 0 && schedule_->bucket_of(slice) >= given) {
      return std::nullopt;
    }
    const SliceStep item{slice, state.sent};
    if (state.sent < schedule_->sends(slice) &&
        state.taken >= schedule_->send(item).after &&
        free[static_cast<std::size_t>(schedule_->send(item).to)]) {
      return item;
    }
  }
  return std::nullopt;
}

bool SendSchedule::has_taken() const {
  // All slices from first_ on are listed once anything of them was sent or received.
  if (first_ + static_cast<std::int64_t>(slices_.size()) !=
      schedule_->slices()) {
    return false;
  }
  for (auto slice = first_; slice < schedule_->slices(); ++slice) {
    if (look(slice).taken < schedule_->receives(slice)) {
      return false;
    }
  }
  return true;
}

bool SendSchedule::has_arrived_from(int sender) const {
  return arrived_from_[static_cast<std::size_t>(sender)] ==
      schedule_->receives_from(sender);
}

std::optional<int> SendSchedule::waits_for() const {
  for (auto slice = std::max(first_, arrived_whole_);
       slice < schedule_->slices(); ++slice) {
    for (int step = 0; step < schedule_->receives(slice); ++step) {
      if (!has_come(look(slice), step)) {
        return schedule_->receive({slice, step}).from;
      }
    }
  }
  return std::nullopt;
}

std::int64_t SendSchedule::next_slice() const {
  const auto begun = std::ranges::find_if(
      slices_, [](const Slice& slice) { return slice.sent == 0; });
  return first_ + (begun - slices_.begin());
}

void SendSchedule::sent(const SliceStep& item) {
  Slice& state = at(item.slice);
  SHERD_ASSERT(
      item.step == state.sent && item.step < schedule_->sends(item.slice));
  ++state.sent;
  drop_ended();
}

// The step of the first frame of a slice that has not arrived from this sender; the number of steps
// if all have.
int SendSchedule::next_from(std::int64_t slice, int sender) const {
  const int steps = schedule_->receives(slice);
  if (slice < first_) {
    return steps;
  }
  const Slice& state = look(slice);
  int step = 0;
  while (step < steps &&
         (has_come(state, step) ||
          schedule_->receive({slice, step}).from != sender)) {
    ++step;
  }
  return step;
}

std::string SendSchedule::refusal(const SliceStep& item, int sender) const {
  if (item.slice < 0 || item.slice >= schedule_->slices() || item.step < 0) {
    return str(
        "expected slices below ", schedule_->slices(), ", found slice ",
        item.slice, ", step ", item.step);
  }
  const int early = schedule_->early_slices_max(window_);
  if (item.slice >= arrived_whole_ + early) {
    return str(
        "expected at most ", early, " slices under way from slice ",
        arrived_whole_, " on, found slice ", item.slice);
  }
  const int expected = next_from(item.slice, sender);
  if (item.step != expected || expected == schedule_->receives(item.slice)) {
    return str(
        "expected step ", expected, " of slice ", item.slice, ", found step ",
        item.step);
  }
  const Slice& state = look(item.slice);
  if (schedule_->receive(item).use == ReceiveStep::Use::kCopy &&
      state.arrived_count < item.step) {
    return str(
        "expected the sum of slice ", item.slice, " after ", item.step,
        " parts of it, found it after ", state.arrived_count);
  }
  return {};
}

bool SendSchedule::is_whole(std::int64_t slice) const {
  return slice < first_ ||
      look(slice).arrived_count == schedule_->receives(slice);
}

void SendSchedule::arrived(const SliceStep& item) {
  Slice& state = at(item.slice);
  const auto step = static_cast<std::size_t>(item.step);
  const auto sender = static_cast<std::size_t>(schedule_->receive(item).from);
  SHERD_ASSERT(!has_come(state, item.step));
  state.arrived.resize(
      static_cast<std::size_t>(schedule_->receives(item.slice)));
  state.arrived[step] = true;
  ++state.arrived_count;
  ++arrived_from_[sender];
  while (arrived_whole_ < schedule_->slices() && is_whole(arrived_whole_)) {
    ++arrived_whole_;
  }
}

bool SendSchedule::may_take(const SliceStep& item) const {
  const Slice& state = look(item.slice);
  return item.step == state.taken && has_come(state, item.step);
}

void SendSchedule::taken(const SliceStep& item) {
  SHERD_ASSERT(may_take(item));
  ++at(item.slice).taken;
  drop_ended();
}

void SendSchedule::drop_ended() {
  while (!slices_.empty() && slices_.front().sent == schedule_->sends(first_) &&
         slices_.front().taken == schedule_->receives(first_)) {
    slices_.pop_front();
    ++first_;
  }
}

}  // namespace sherd::ft::ring
