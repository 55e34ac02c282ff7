// SPDX-License-Identifier: Apache-2.0
//
// How a ring's callers are served: what they pass is checked and becomes requests to its thread.
#include "ft/ring/ring.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <exception>
#include <set>
#include <utility>
#include "base/check.h"
#include "ft/protocol/reduce_shape.h"

namespace sherd::ft {
namespace {

// The thread is never busy for this long. Several waits are counted, because one may pass in no
// time in a process that was stopped meanwhile.
constexpr Duration kAnswerTime = std::chrono::seconds(1);
constexpr int kAnswerWaits = 30;

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
  for (const auto count : options.elements) {
    SHERD_CHECK(count >= 0, "[ft] expected sizes of buckets, found ", count);
  }
  return options;
}

net::ListeningSocket listening(const std::string& host) {
  auto result = net::listen_on(host);
  SHERD_CHECK_AS(kUnavailable, result.ok(), "[ft] ", result.status().message());
  return std::move(result).value();
}

Descriptor make_wake() {
  Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  SHERD_CHECK_AS(
      kUnavailable, wake.open(), "[ft] expected an eventfd, found none");
  return wake;
}

}  // namespace

Ring::Ring(RingOptions options, RingEvents events)
    : events_(std::move(events)),
      wake_(make_wake()),
      context_{.options = checked(std::move(options))},
      listening_(listening(context_.options.bind_host)),
      handshakes_(context_.options, context_.counters),
      given_(context_.options.elements.size()),
      thread_([this] { run(); }) {}

Ring::~Ring() {
  {
    Lock lock(mu_);
    post(lock, [this] { quits_ = true; });
  }
  thread_.join();
}

// ---- requests ----

std::uint64_t Ring::post(Lock& lock, std::function<void()> request) {
  SHERD_ASSERT(lock.owns_lock());
  requests_.push_back(std::move(request));
  const std::uint64_t one = 1;
  // The write fails only if the counter is full, and then the thread is awake.
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  return ++asked_;
}

void Ring::wait(Lock& lock, std::uint64_t request) {
  bool answered = false;
  for (int i = 0; i < kAnswerWaits && !answered; ++i) {
    answered = changed_.wait_for(
        lock, kAnswerTime, [&] { return done_ >= request || in_event_; });
  }
  SHERD_ASSERT(answered, "the thread of a ring does not answer");
  if (done_ < request) {
    carry_out(lock);
  }
}

void Ring::carry_out(Lock& lock) {
  SHERD_ASSERT(lock.owns_lock());
  while (!requests_.empty()) {
    const auto request = std::move(requests_.front());
    requests_.pop_front();
    try {
      request();
    } catch (const std::exception& error) {
      fail_all(error.what());
    }
    ++done_;
  }
  publish(lock);
  changed_.notify_all();
}

void Ring::publish(Lock& lock) {
  SHERD_ASSERT(lock.owns_lock());
  counters_ = context_.counters;
  progress_ = {};
  for (const auto& [epoch, communicator] : communicators_) {
    if (communicator->begun()) {
      progress_ = communicator->progress();
      return;
    }
    if (!progress_.place) {
      progress_ = communicator->progress();
    }
  }
}

// ---- calls ----

void Ring::set_run(std::uint64_t run, const RingKey& key) {
  Lock lock(mu_);
  SHERD_CHECK(run != 0, "[ft] expected a run, found 0");
  SHERD_CHECK(
      !last_joined_ || run == run_,
      "[ft] expected the run before the first epoch, found it after");
  run_ = run;
  post(lock, [this, run, key] {
    context_.run = run;
    context_.key = key;
  });
}

void Ring::join(RingMembership epoch) {
  const auto& members = epoch.members;
  const auto own = std::ranges::find_if(members, [&](const RingMember& member) {
    return member.replica == context_.options.replica &&
        member.incarnation == context_.options.incarnation;
  });
  SHERD_CHECK(
      own != members.end(), "[ft] expected replica ", context_.options.replica,
      " among the members of ", text_of(epoch.epoch), ", found ",
      members.size(), " others");
  std::set<ReplicaId> names;
  for (const auto& member : members) {
    SHERD_CHECK(
        names.insert(member.replica).second,
        "[ft] expected each replica once in ", text_of(epoch.epoch),
        ", found replica ", member.replica, " twice");
  }
  ring::RingCommunicator::Route route;
  route.position = static_cast<int>(own - members.begin());
  // Done without the lock, since a name look-up may take a while.
  for (const int position :
       receivers_of(static_cast<int>(members.size()), route.position)) {
    const auto& receiver = members[static_cast<std::size_t>(position)];
    route.receivers.push_back(net::resolve(receiver.host, receiver.port));
  }
  Lock lock(mu_);
  SHERD_CHECK(
      run_ != 0, "[ft] expected the run to be set before an epoch is joined");
  SHERD_CHECK(
      !last_joined_ || epoch.epoch > *last_joined_,
      "[ft] expected an epoch after ", text_of(*last_joined_), ", found ",
      text_of(epoch.epoch));
  last_joined_ = epoch.epoch;
  members_[epoch.epoch] = members.size();
  route.epoch = std::move(epoch);
  post(lock, [this, route = std::move(route)] { do_join(route); });
}

void Ring::begin(const Attempt& attempt, std::vector<double> weights) {
  Lock lock(mu_);
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
  post(lock, [this, task = ReduceTask{attempt, std::move(weights)}] {
    do_begin(task);
  });
}

void Ring::give(int bucket, const float* in, float* out) {
  Lock lock(mu_);
  const auto& elements = context_.options.elements;
  const auto b = static_cast<std::size_t>(bucket);
  SHERD_CHECK(
      bucket >= 0 && b < elements.size(), "[ft] expected a bucket of ",
      elements.size(), ", found ", bucket);
  SHERD_CHECK(
      !given_[b], "[ft] expected bucket ", bucket,
      " once until it is forgotten, found it twice");
  SHERD_CHECK(
      out != nullptr || elements[b] == 0,
      "[ft] expected a place for the sum of bucket ", bucket, ", found none");
  given_[b] = true;
  post(lock, [this, b, in, out] { context_.buckets[b] = {true, in, out}; });
}

void Ring::stop(const Epoch& epoch) {
  Lock lock(mu_);
  wait(lock, post(lock, [this, epoch] { do_stop(epoch); }));
}

void Ring::forget() {
  Lock lock(mu_);
  given_.assign(given_.size(), false);
  wait(lock, post(lock, [this] { do_forget(); }));
}

RingCounters Ring::counters() const {
  const std::lock_guard lock(mu_);
  return counters_;
}

RingProgress Ring::progress() const {
  const std::lock_guard lock(mu_);
  return progress_;
}

}  // namespace sherd::ft
