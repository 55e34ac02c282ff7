// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>
#include "base/check.h"
#include "ft/protocol/reduce_shape.h"
#include "ft/ring/ring_loop.h"

namespace sherd::ft {

namespace {

RingOptions checked(RingOptions options) {
  constexpr std::size_t kChunkMax = std::size_t{64} << 20U;
  SHERD_CHECK(
      options.chunk_bytes >= sizeof(float) &&
          options.chunk_bytes <= kChunkMax &&
          options.chunk_bytes % sizeof(float) == 0,
      "[ft] expected a chunk of 4 to ", kChunkMax,
      " bytes, a multiple of 4, found ", options.chunk_bytes);
  SHERD_CHECK(
      options.slots > 0 && options.slots <= 1024,
      "[ft] expected 1 to 1024 slots, found ", options.slots);
  SHERD_CHECK(
      options.shard_rank >= 0, "[ft] expected a shard rank, found ",
      options.shard_rank);
  return options;
}

ring::ListeningSocket listening(const std::string& host) {
  auto result = ring::listen_on(host);
  SHERD_CHECK_AS(kUnavailable, result.ok(), "[ft] ", result.status().message());
  return std::move(result).value();
}

}  // namespace

// Arguments are checked on the caller's thread, against a copy of what was set before; RingLoop
// does the rest.
class Ring::Impl {
 public:
  Impl(RingOptions options, RingEvents events)
      : options_(checked(std::move(options))),
        loop_(options_, listening(options_.bind_host), std::move(events)) {}

  const RingOptions options_;
  mutable std::mutex mu_;
  // Guarded by mu_, which also keeps calls in one order.
  std::uint64_t run_ = 0;
  std::vector<std::int64_t> elements_;
  std::vector<bool> given_;
  std::optional<Epoch> newest_;
  std::map<Epoch, std::size_t> members_;  // Epochs that may be begun.

  ring::RingLoop loop_;
};

Ring::Ring(RingOptions options, RingEvents events)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(events))) {}
Ring::~Ring() = default;

std::uint16_t Ring::port() const { return impl_->loop_.port(); }

void Ring::set_run(std::uint64_t run, const RingKey& key) {
  const std::lock_guard lock(impl_->mu_);
  SHERD_CHECK(run != 0, "[ft] expected a run, found 0");
  SHERD_CHECK(
      !impl_->newest_ || run == impl_->run_,
      "[ft] expected the run before the first epoch, found it after");
  impl_->run_ = run;
  impl_->loop_.set_run(run, key);
}

void Ring::set_layout(std::vector<std::int64_t> elements) {
  const std::lock_guard lock(impl_->mu_);
  for (const auto count : elements) {
    SHERD_CHECK(count >= 0, "[ft] expected sizes of buckets, found ", count);
  }
  SHERD_CHECK(
      !impl_->newest_ || elements == impl_->elements_,
      "[ft] expected the layout before the first epoch, found it after");
  impl_->elements_ = elements;
  impl_->given_.assign(elements.size(), false);
  impl_->loop_.set_layout(std::move(elements));
}

void Ring::join(RingMembership epoch) {
  const auto& members = epoch.members;
  const auto own = std::ranges::find_if(members, [&](const RingMember& member) {
    return member.replica == impl_->options_.replica &&
        member.incarnation == impl_->options_.incarnation;
  });
  SHERD_CHECK(
      own != members.end(), "[ft] expected replica ", impl_->options_.replica,
      " among the members of ", text_of(epoch.epoch), ", found ",
      members.size(), " others");
  std::set<ReplicaId> names;
  for (const auto& member : members) {
    SHERD_CHECK(
        names.insert(member.replica).second,
        "[ft] expected each replica once in ", text_of(epoch.epoch),
        ", found replica ", member.replica, " twice");
  }
  ring::Route route;
  route.position = static_cast<int>(own - members.begin());
  // Outside the lock: a name lookup may take a while.
  for (const int position :
       receivers_of(static_cast<int>(members.size()), route.position)) {
    const auto& receiver = members[static_cast<std::size_t>(position)];
    auto& found = route.receivers.emplace_back();
    auto address = ring::resolve(receiver.host, receiver.port);
    if (address.ok()) {
      found.address = address.value();
    } else {
      found.problem = address.status().message();
    }
  }
  const std::lock_guard lock(impl_->mu_);
  SHERD_CHECK(
      impl_->run_ != 0,
      "[ft] expected the run to be set before an epoch is joined");
  SHERD_CHECK(
      !impl_->newest_ || epoch.epoch > *impl_->newest_,
      "[ft] expected an epoch after ", text_of(*impl_->newest_), ", found ",
      text_of(epoch.epoch));
  impl_->newest_ = epoch.epoch;
  impl_->members_[epoch.epoch] = members.size();
  route.epoch = std::move(epoch);
  impl_->loop_.join(std::move(route));
}

void Ring::begin(const Attempt& attempt, std::vector<double> weights) {
  const std::lock_guard lock(impl_->mu_);
  const auto known = impl_->members_.find(attempt.epoch);
  SHERD_CHECK(
      known != impl_->members_.end(),
      "[ft] expected an epoch that was joined, ",
      "and none later begun, found ", text_of(attempt));
  SHERD_CHECK(
      weights.size() == known->second, "[ft] expected ", known->second,
      " weights for ", text_of(attempt), ", found ", weights.size());
  for (const double weight : weights) {
    SHERD_CHECK(
        std::isfinite(weight) && weight >= 0,
        "[ft] expected weights of 0 and more, found ", weight);
  }
  impl_->members_.erase(impl_->members_.begin(), known);
  impl_->loop_.begin(attempt, std::move(weights));
}

void Ring::give(int bucket, const float* in, float* out) {
  const std::lock_guard lock(impl_->mu_);
  const auto b = static_cast<std::size_t>(bucket);
  SHERD_CHECK(
      bucket >= 0 && b < impl_->elements_.size(), "[ft] expected a bucket of ",
      impl_->elements_.size(), ", found ", bucket);
  SHERD_CHECK(
      !impl_->given_[b], "[ft] expected bucket ", bucket,
      " once until it is forgotten, found it twice");
  SHERD_CHECK(
      out != nullptr || impl_->elements_[b] == 0,
      "[ft] expected a place for the sum of bucket ", bucket, ", found none");
  impl_->given_[b] = true;
  impl_->loop_.give(bucket, in, out);
}

void Ring::stop(const Epoch& epoch) { impl_->loop_.stop(epoch); }

void Ring::forget() {
  // Posted under the lock, for one order with give(), which an event may call while this waits.
  std::uint64_t request = 0;
  {
    const std::lock_guard lock(impl_->mu_);
    impl_->given_.assign(impl_->given_.size(), false);
    request = impl_->loop_.ask_to_forget();
  }
  impl_->loop_.wait(request);
}

RingCounters Ring::counters() const { return impl_->loop_.counters(); }
RingProgress Ring::progress() const { return impl_->loop_.progress(); }

}  // namespace sherd::ft
