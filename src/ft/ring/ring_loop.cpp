// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring_loop.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <algorithm>
#include <exception>
#include <utility>
#include "base/check.h"
#include "base/log.h"
#include "net/tcp_socket.h"

namespace sherd::ft::ring {
namespace {

// The thread is never busy for this long. Several waits are counted, because one may pass in no
// time in a process that was stopped meanwhile.
constexpr Duration kAnswerTime = std::chrono::seconds(1);
constexpr int kAnswerWaits = 30;

constexpr std::size_t kPastMax = 16;

Descriptor make_wake() {
  Descriptor wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  SHERD_CHECK_AS(
      kUnavailable, wake.open(), "[ft] expected an eventfd, found none");
  return wake;
}

}  // namespace

RingLoop::RingLoop(
    RingOptions options, net::ListeningSocket listening, RingEvents events)
    : events_(std::move(events)),
      listener_(std::move(listening.socket)),
      port_(listening.port),
      wake_(make_wake()),
      context_(std::move(options)),
      handshakes_(context_.options, context_.counters),
      thread_([this] { run(); }) {}

RingLoop::~RingLoop() {
  {
    Lock lock(mu_);
    post(lock, [this] { quits_ = true; });
  }
  thread_.join();
}

// ---- requests ----

std::uint64_t RingLoop::post(Lock& lock, std::function<void()> request) {
  SHERD_ASSERT(lock.owns_lock());
  requests_.push_back(std::move(request));
  const std::uint64_t one = 1;
  // The write fails only if the counter is full, and then the thread is awake.
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
  return ++asked_;
}

void RingLoop::post(std::function<void()> request) {
  Lock lock(mu_);
  post(lock, std::move(request));
}

void RingLoop::wait(Lock& lock, std::uint64_t request) {
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

void RingLoop::wait(std::uint64_t request) {
  Lock lock(mu_);
  wait(lock, request);
}

void RingLoop::carry_out(Lock& lock) {
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

void RingLoop::set_run(std::uint64_t run, const RingKey& key) {
  post([this, run, key] {
    context_.run = run;
    context_.key = key;
  });
}

void RingLoop::set_layout(std::vector<std::int64_t> elements) {
  post([this, elements = std::move(elements)] {
    context_.buckets.assign(elements.size(), {});
    context_.elements = elements;
  });
}

void RingLoop::join(Route route) {
  post([this, route = std::move(route)] { do_join(route); });
}

void RingLoop::begin(ReduceTask task) {
  post([this, task = std::move(task)] { do_begin(task); });
}

void RingLoop::give(int bucket, const float* in, float* out) {
  post([this, bucket, in, out] {
    context_.buckets[static_cast<std::size_t>(bucket)] = {true, in, out};
  });
}

void RingLoop::stop(const Epoch& epoch) {
  Lock lock(mu_);
  wait(lock, post(lock, [this, epoch] { do_stop(epoch); }));
  ++stops_;
}

std::uint64_t RingLoop::ask_to_forget() {
  Lock lock(mu_);
  return post(lock, [this] { do_forget(); });
}

RingCounters RingLoop::counters() const {
  const std::lock_guard lock(mu_);
  RingCounters counters = counters_;
  counters.stops = stops_;
  return counters;
}

RingProgress RingLoop::progress() const {
  const std::lock_guard lock(mu_);
  return progress_;
}

// ---- the thread ----

void RingLoop::run() {
  ::pthread_setname_np(::pthread_self(), "sherd-ring");
  for (;;) {
    {
      Lock lock(mu_);
      carry_out(lock);
      if (quits_) {
        break;
      }
    }
    bool moved = true;
    try {
      moved = turn();
    } catch (const std::exception& error) {
      fail_all(error.what());
    }
    tell_events();
    sleep(moved);
  }
  for (auto& [epoch, communicator] : communicators_) {
    communicator->end(
        RingFault::kStopped, context_.options.replica,
        str("replica ", context_.options.replica, " has left"));
  }
  end_lease();
}

bool RingLoop::turn() {
  const Instant now = clock_.now();
  handshakes_.advance(now);
  handshakes_.decide_ready(
      [this](IncomingPeer& caller) { return decide(caller); });
  context_.closing.advance(now);
  bool moved = false;
  for (auto it = communicators_.begin(); it != communicators_.end();) {
    moved = advance(*it->second) || moved;
    it = it->second->ended() ? communicators_.erase(it) : std::next(it);
  }
  return moved;
}

bool RingLoop::advance(RingCommunicator& communicator) {
  const bool moved = communicator.advance(clock_.now());
  const Epoch epoch = communicator.epoch();
  std::vector<Event> events;
  if (communicator.take_joined()) {
    events.push_back({epoch, [this, epoch] {
                        if (events_.joined) {
                          events_.joined(epoch);
                        }
                      }});
  }
  if (const auto reduced = communicator.take_reduced()) {
    events.push_back({epoch, [this, reduced] {
                        if (events_.reduced) {
                          events_.reduced(reduced->attempt, reduced->digest);
                        }
                      }});
  }
  if (communicator.ended()) {
    remember(communicator);
    events.push_back({epoch, [this, epoch, ending = communicator.ending()] {
                        if (events_.failed) {
                          events_.failed(epoch, ending);
                        }
                      }});
  }
  if (!events.empty()) {
    Lock lock(mu_);
    std::ranges::move(events, std::back_inserter(untold_));
  }
  return moved || !events.empty();
}

void RingLoop::remember(const RingCommunicator& communicator) {
  past_[communicator.epoch()] = communicator.ending();
  if (past_.size() > kPastMax) {
    past_.erase(past_.begin());
  }
}

void RingLoop::publish(Lock& lock) {
  SHERD_ASSERT(lock.owns_lock());
  counters_ = context_.counters;
  progress_ = {};
  for (const auto& [epoch, communicator] : communicators_) {
    if (communicator->begun()) {
      progress_ = communicator->progress();
      return;
    }
    if (!progress_.neighbours) {
      progress_ = communicator->progress();
    }
  }
}

void RingLoop::tell_events() {
  Lock lock(mu_);
  publish(lock);
  if (untold_.empty()) {
    return;
  }
  in_event_ = true;
  changed_.notify_all();
  while (!untold_.empty()) {
    const Event event = std::move(untold_.front());
    untold_.pop_front();
    lock.unlock();
    try {
      event.tell();
    } catch (const std::exception& error) {
      log_error(str("an event of a ring threw: ", error.what()));
    }
    lock.lock();
  }
  in_event_ = false;
}

void RingLoop::sleep(bool moved) {
  polls_.clear();
  polls_.push_back({wake_.get(), POLLIN, 0});
  const bool accepts = handshakes_.accepts(clock_.now());
  polls_.push_back({accepts ? listener_.get() : -1, POLLIN, 0});
  handshakes_.polls(polls_);
  context_.closing.polls(polls_);
  std::optional<Instant> until =
      earlier(handshakes_.next_instant(), context_.closing.next_instant());
  for (const auto& [epoch, communicator] : communicators_) {
    communicator->polls(polls_);
    until = earlier(until, communicator->next_instant());
  }
  ::poll(
      polls_.data(), polls_.size(), moved ? 0 : poll_ms(clock_.now(), until));
  if ((polls_[0].revents & POLLIN) != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
  }
  if ((polls_[1].revents & POLLIN) != 0) {
    handshakes_.accept_waiting(listener_.get(), clock_.now());
  }
}

void RingLoop::fail_all(const std::string& reason) {
  for (auto& [epoch, communicator] : communicators_) {
    communicator->end(RingFault::kResources, context_.options.replica, reason);
  }
}

// ---- epochs ----

RingCommunicator* RingLoop::communicator_of(const Epoch& epoch) {
  const auto found = communicators_.find(epoch);
  return found == communicators_.end() ? nullptr : found->second.get();
}

void RingLoop::do_join(Route route) {
  newest_ = route.epoch.epoch;
  // The oldest may still reduce; of the waiting ones only the newest matters.
  while (communicators_.size() > 1) {
    do_stop(std::prev(communicators_.end())->first);
  }
  communicators_[newest_] = std::make_unique<RingCommunicator>(
      context_, std::move(route), clock_.now());
}

void RingLoop::do_begin(const ReduceTask& task) {
  const Attempt& attempt = task.attempt;
  while (!communicators_.empty() &&
         communicators_.begin()->first < attempt.epoch) {
    do_stop(communicators_.begin()->first);
  }
  if (RingCommunicator* communicator = communicator_of(attempt.epoch)) {
    communicator->begin(task);
  }
}

void RingLoop::do_stop(const Epoch& epoch) {
  if (RingCommunicator* communicator = communicator_of(epoch)) {
    communicator->end(
        RingFault::kStopped, context_.options.replica,
        str("replica ", context_.options.replica, " has stopped ",
            text_of(epoch)));
    remember(*communicator);
    communicators_.erase(epoch);
  }
  std::erase_if(
      untold_, [&](const Event& event) { return event.epoch == epoch; });
}

void RingLoop::do_forget() {
  for (auto& [epoch, communicator] : communicators_) {
    if (communicator->begun()) {
      communicator->end(
          RingFault::kStopped, context_.options.replica,
          str("replica ", context_.options.replica, " has decided the step of ",
              text_of(epoch)));
    }
  }
  context_.buckets.assign(context_.buckets.size(), {});
  end_lease();
}

void RingLoop::end_lease() {
  if (context_.options.memory != nullptr) {
    context_.options.memory->end_lease();
  }
}

// ---- incoming connections ----

HandshakeQueue::Disposition RingLoop::refuse(
    IncomingPeer& caller, std::uint64_t& counter, const std::string& reason) {
  ++counter;
  context_.closing.add(caller.link.detach(refusal_frame(caller.epoch, reason)));
  return HandshakeQueue::Disposition::kDone;
}

HandshakeQueue::Disposition RingLoop::decide(IncomingPeer& caller) {
  auto& counters = context_.counters;
  const auto& options = context_.options;
  const Handshake& handshake = caller.handshake;
  if (context_.run == 0) {
    return HandshakeQueue::Disposition::kWait;
  }
  // The proof is checked before anything is answered or read: the connection may be anybody's.
  if (!net::same_code(
          handshake.proof,
          proof_of(caller.epoch, handshake, context_.key, caller.challenge))) {
    log_.warn(
        clock_.now(),
        str("[ft] expected a member of this run at the port of the all-reduce, "
            "found ",
            net::peer_of(caller.link.fd()), ", which does not know the key"));
    return refuse(
        caller, counters.refused_connections, "the key is another one");
  }
  if (handshake.run != context_.run) {
    return refuse(caller, counters.refused_connections, "this is another run");
  }
  if (handshake.to != options.replica ||
      handshake.to_incarnation != options.incarnation ||
      handshake.shard_rank != static_cast<std::uint32_t>(options.shard_rank)) {
    return refuse(
        caller, counters.refused_connections,
        str("this is rank ", options.shard_rank, " of replica ",
            options.replica, " in life ", options.incarnation));
  }
  if (caller.epoch > newest_) {
    return HandshakeQueue::Disposition::kWait;
  }
  RingCommunicator* communicator = communicator_of(caller.epoch);
  if (const auto past = past_.find(caller.epoch); past != past_.end()) {
    // The peer gets the ending, so that it accuses the right member.
    ++counters.stale_connections;
    context_.closing.add(
        caller.link.detach(frame_of(caller.epoch, past->second)));
    return HandshakeQueue::Disposition::kDone;
  }
  if (communicator == nullptr) {
    return refuse(
        caller, counters.stale_connections,
        str(text_of(caller.epoch), " is over here"));
  }
  auto why = communicator->identity_mismatch(handshake);
  if (why.empty() && communicator->is_connected(handshake.from)) {
    why = str("replica ", handshake.from, " is connected already");
  }
  if (!why.empty()) {
    return refuse(caller, counters.refused_connections, why);
  }
  if (why = communicator->configuration_mismatch(handshake); !why.empty()) {
    communicator->end(RingFault::kMismatch, handshake.from, why);
    return refuse(caller, counters.refused_connections, why);
  }
  communicator->accept(std::move(caller.link), handshake);
  return HandshakeQueue::Disposition::kDone;
}

}  // namespace sherd::ft::ring
