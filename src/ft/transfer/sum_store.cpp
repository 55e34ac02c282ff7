// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/sum_store.h"

#include <algorithm>
#include <utility>
#include "base/check.h"

namespace sherd::ft::transfer {

SumStore::SumStore(const Limits& limits) : limits_(limits) {}

void SumStore::keep(
    const Commit& commit, std::shared_ptr<const std::string> bytes) {
  SHERD_ASSERT(bytes != nullptr);
  while (!sums_.empty() && sums_.back().commit.base.step >= commit.base.step) {
    bytes_ -= sums_.back().bytes->size();
    sums_.pop_back();
  }
  bytes_ += bytes->size();
  sums_.push_back({commit, std::move(bytes)});
}

void SumStore::hold(std::int64_t step, Instant until) {
  Instant& its = held_[step];
  its = std::max(its, until);
}

void SumStore::trim(Instant now, std::optional<std::int64_t> step_in_use) {
  std::erase_if(held_, [&](const auto& one) { return one.second <= now; });
  std::optional<std::int64_t> from = step_in_use;
  if (!held_.empty()) {
    const std::int64_t held = held_.begin()->first;
    from = std::min(from.value_or(held), held);
  }
  const auto is_needed = [&](const CommittedSum& sum) {
    return from.has_value() && sum.commit.base.step >= *from;
  };
  while (sums_.size() > limits_.kept &&
         (bytes_ > limits_.bytes_max || !is_needed(sums_.front()))) {
    bytes_ -= sums_.front().bytes->size();
    sums_.pop_front();
  }
}

const CommittedSum* SumStore::find(const StateId& base) const {
  const auto at = std::ranges::find_if(
      sums_, [&](const CommittedSum& sum) { return sum.commit.base == base; });
  return at == sums_.end() ? nullptr : &*at;
}

bool SumStore::may_come(const StateId& base) const {
  return sums_.empty() || base == sums_.back().commit.result ||
      base.step > sums_.back().commit.result.step;
}

std::string SumStore::text() const {
  if (sums_.empty()) {
    return "no sums";
  }
  return str(
      "the sums that made steps ", sums_.front().commit.result.step, " to ",
      sums_.back().commit.result.step);
}

}  // namespace sherd::ft::transfer
