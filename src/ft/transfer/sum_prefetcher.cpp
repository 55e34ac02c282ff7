// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/sum_prefetcher.h"

#include <chrono>
#include <utility>
#include "base/check.h"

namespace sherd::ft {
namespace {

// Longer than any step; meanwhile a live donor keeps saying that it waits.
constexpr Duration kStepMax = std::chrono::minutes(10);

}  // namespace

SumPrefetcher::SumPrefetcher(
    net::Loop& loop,
    std::vector<net::HostAddress> donors,
    const FetchOptions& options,
    std::uint64_t bytes_max,
    const StateId& state)
    : loop_(loop),
      donors_(std::move(donors)),
      options_(options),
      bytes_max_(bytes_max),
      next_(state) {
  SHERD_ASSERT(!donors_.empty());
  collect();
}

bool SumPrefetcher::take(
    const StateId& base, const net::HostAddress& donor, Done done) {
  taker_ = nullptr;
  handing_over_.cancel();
  while (!sums_.empty() && sums_.front().commit.base.step < base.step) {
    (void)pop();
  }
  if (!sums_.empty() && sums_.front().commit.base == base) {
    handing_over_ = loop_.after(
        Duration(0), [done = std::move(done), sum = pop()] { done(sum); });
    return true;
  }
  if (!sums_.empty() || next_ != base) {
    return false;
  }
  taker_ = std::move(done);
  if (!fetch_ || !fetch_->answered()) {
    fetch_from(donor, Duration(0));
  }
  return true;
}

// Stops when all donors have failed; take() then asks again.
void SumPrefetcher::collect() {
  if (bytes_ < bytes_max_ && failures_ < donors_.size()) {
    fetch_from(donors_[donor_], kStepMax);
  }
}

void SumPrefetcher::fetch_from(
    const net::HostAddress& donor, Duration sum_timeout) {
  FetchOptions options = options_;
  options.sum_timeout = sum_timeout;
  fetch_ = fetch_sum(
      loop_, donor, options, next_,
      [this](Result<CommittedSum> result) { came(std::move(result)); });
}

void SumPrefetcher::came(Result<CommittedSum> result) {
  fetch_.reset();
  if (!result.ok()) {
    ++failures_;
    donor_ = (donor_ + 1) % donors_.size();
    collect();
    if (taker_) {
      hand_over(std::move(result));  // The call may destroy this object.
    }
    return;
  }
  failures_ = 0;
  next_ = result.value().commit.result;
  if (taker_) {
    collect();
    hand_over(std::move(result));
    return;
  }
  bytes_ += result.value().bytes->size();
  sums_.push_back(std::move(result).value());
  collect();
}

void SumPrefetcher::hand_over(Result<CommittedSum> result) {
  const Done taker = std::exchange(taker_, nullptr);
  taker(std::move(result));
}

// Afterwards there is room for another sum.
CommittedSum SumPrefetcher::pop() {
  CommittedSum sum = std::move(sums_.front());
  sums_.pop_front();
  bytes_ -= sum.bytes->size();
  if (!fetch_) {
    collect();
  }
  return sum;
}

}  // namespace sherd::ft
