// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring.h"

#include <algorithm>
#include <cmath>
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

net::ListeningSocket listening(const std::string& host) {
  auto result = net::listen_on(host);
  SHERD_CHECK_AS(kUnavailable, result.ok(), "[ft] ", result.status().message());
  return std::move(result).value();
}

}  // namespace

Ring::Ring(RingOptions options, RingEvents events)
    : options_(checked(std::move(options))),
      loop_(std::make_unique<ring::RingLoop>(
          options_, listening(options_.bind_host), std::move(events))) {}
Ring::~Ring() = default;

std::uint16_t Ring::port() const { return loop_->port(); }

void Ring::set_run(std::uint64_t run, const RingKey& key) {
  const std::lock_guard lock(mu_);
  SHERD_CHECK(run != 0, "[ft] expected a run, found 0");
  SHERD_CHECK(
      !newest_ || run == run_,
      "[ft] expected the run before the first epoch, found it after");
  run_ = run;
  loop_->set_run(run, key);
}

void Ring::set_layout(std::vector<std::int64_t> elements) {
  const std::lock_guard lock(mu_);
  for (const auto count : elements) {
    SHERD_CHECK(count >= 0, "[ft] expected sizes of buckets, found ", count);
  }
  SHERD_CHECK(
      !newest_ || elements == elements_,
      "[ft] expected the layout before the first epoch, found it after");
  elements_ = elements;
  given_.assign(elements.size(), false);
  loop_->set_layout(std::move(elements));
}

void Ring::join(RingMembership epoch) {
  const auto& members = epoch.members;
  const auto own = std::ranges::find_if(members, [&](const RingMember& member) {
    return member.replica == options_.replica &&
        member.incarnation == options_.incarnation;
  });
  SHERD_CHECK(
      own != members.end(), "[ft] expected replica ", options_.replica,
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
  // Done without the lock, since a name look-up may take a while.
  for (const int position :
       receivers_of(static_cast<int>(members.size()), route.position)) {
    const auto& receiver = members[static_cast<std::size_t>(position)];
    auto& found = route.receivers.emplace_back();
    auto address = net::resolve(receiver.host, receiver.port);
    if (address.ok()) {
      found.address = address.value();
    } else {
      found.problem = address.status().message();
    }
  }
  const std::lock_guard lock(mu_);
  SHERD_CHECK(
      run_ != 0, "[ft] expected the run to be set before an epoch is joined");
  SHERD_CHECK(
      !newest_ || epoch.epoch > *newest_, "[ft] expected an epoch after ",
      text_of(*newest_), ", found ", text_of(epoch.epoch));
  newest_ = epoch.epoch;
  members_[epoch.epoch] = members.size();
  route.epoch = std::move(epoch);
  loop_->join(std::move(route));
}

void Ring::begin(const Attempt& attempt, std::vector<double> weights) {
  const std::lock_guard lock(mu_);
  const auto known = members_.find(attempt.epoch);
  SHERD_CHECK(
      known != members_.end(), "[ft] expected an epoch that was joined, ",
      "and none later begun, found ", text_of(attempt));
  SHERD_CHECK(
      weights.size() == known->second, "[ft] expected ", known->second,
      " weights for ", text_of(attempt), ", found ", weights.size());
  for (const double weight : weights) {
    SHERD_CHECK(
        std::isfinite(weight) && weight >= 0,
        "[ft] expected weights of 0 and more, found ", weight);
  }
  members_.erase(members_.begin(), known);
  loop_->begin({attempt, std::move(weights)});
}

void Ring::give(int bucket, const float* in, float* out) {
  const std::lock_guard lock(mu_);
  const auto b = static_cast<std::size_t>(bucket);
  SHERD_CHECK(
      bucket >= 0 && b < elements_.size(), "[ft] expected a bucket of ",
      elements_.size(), ", found ", bucket);
  SHERD_CHECK(
      !given_[b], "[ft] expected bucket ", bucket,
      " once until it is forgotten, found it twice");
  SHERD_CHECK(
      out != nullptr || elements_[b] == 0,
      "[ft] expected a place for the sum of bucket ", bucket, ", found none");
  given_[b] = true;
  loop_->give(bucket, in, out);
}

void Ring::stop(const Epoch& epoch) { loop_->stop(epoch); }

void Ring::forget() {
  // Posted under the lock, to keep its order with give(), which an event may call while this waits.
  std::uint64_t request = 0;
  {
    const std::lock_guard lock(mu_);
    given_.assign(given_.size(), false);
    request = loop_->ask_to_forget();
  }
  loop_->wait(request);
}

RingCounters Ring::counters() const { return loop_->counters(); }
RingProgress Ring::progress() const { return loop_->progress(); }

}  // namespace sherd::ft
