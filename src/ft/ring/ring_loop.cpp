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

namespace sherd::ft::ring {
namespace {

// The thread never does anything for so long. Counted in waits: one alone may
// pass in no time for a process that was stopped meanwhile.
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

RingLoop::RingLoop(RingOptions options, Listening listening, RingEvents events)
    : events_(std::move(events)),
      listener_(std::move(listening.socket)),
      port_(listening.port),
      wake_(make_wake()),
      context_(std::move(options)),
      doorman_(context_.options, context_.counters),
      thread_([this] { run(); }) {}

RingLoop::~RingLoop() {
  {
    Lock lock(mu_);
    post(lock, [this] { quits_ = true; });
  }
  thread_.join();
}

// ---- what callers ask for ----

std::uint64_t RingLoop::post(Lock& lock, std::function<void()> request) {
  SHERD_ASSERT(lock.owns_lock());
  requests_.push_back(std::move(request));
  const std::uint64_t one = 1;
  // It fails only when it is awake already, 2^64 times.
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

void RingLoop::set_run(std::uint64_t run) {
  post([this, run] { context_.run = run; });
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

void RingLoop::begin(const Attempt& attempt, std::vector<double> weights) {
  post([this, attempt, weights = std::move(weights)] {
    do_begin(attempt, weights);
  });
}

void RingLoop::give(int bucket, const float* in, float* out) {
  post([this, bucket, in, out] {
    context_.buckets[static_cast<std::size_t>(bucket)] = {true, in, out};
  });
}

void RingLoop::stop(const Epoch& epoch) {
  const Instant begin = clock_.now();
  Lock lock(mu_);
  wait(lock, post(lock, [this, epoch] { do_stop(epoch); }));
  stop_times_[stops_ % stop_times_.size()] = clock_.now() - begin;
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
  const auto known = std::min<std::uint64_t>(stops_, stop_times_.size());
  if (known > 0) {
    std::vector<Duration> times(
        stop_times_.begin(),
        stop_times_.begin() + static_cast<std::ptrdiff_t>(known));
    std::sort(times.begin(), times.end());
    counters.stop_p50 = times[times.size() / 2];
    counters.stop_p99 = times[times.size() * 99 / 100];
  }
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
  for (auto& [epoch, session] : sessions_) {
    session->end(
        RingFault::kStopped, context_.options.replica,
        str("replica ", context_.options.replica, " has left"));
  }
  end_lease();
}

bool RingLoop::turn() {
  const Instant now = clock_.now();
  doorman_.advance(now);
  doorman_.show([this](Caller& caller) { return decide(caller); });
  context_.farewells.advance(now);
  bool moved = false;
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    moved = advance(*it->second) || moved;
    it = it->second->ended() ? sessions_.erase(it) : std::next(it);
  }
  return moved;
}

bool RingLoop::advance(Session& session) {
  const bool moved = session.advance(clock_.now());
  const Epoch epoch = session.epoch();
  std::vector<Event> events;
  if (session.take_joined()) {
    events.push_back({epoch, [this, epoch] {
                        if (events_.joined) {
                          events_.joined(epoch);
                        }
                      }});
  }
  if (const auto reduced = session.take_reduced()) {
    events.push_back({epoch, [this, reduced] {
                        if (events_.reduced) {
                          events_.reduced(reduced->attempt, reduced->digest);
                        }
                      }});
  }
  if (session.ended()) {
    remember(session);
    ++context_.counters.failures;
    const Ending& ending = session.ending();
    const RingFailure failure{
        epoch, ending.fault, ending.accused, ending.reporter, ending.reason};
    events.push_back({epoch, [this, failure] {
                        if (events_.failed) {
                          events_.failed(failure);
                        }
                      }});
  }
  if (!events.empty()) {
    Lock lock(mu_);
    std::move(events.begin(), events.end(), std::back_inserter(untold_));
  }
  return moved || !events.empty();
}

void RingLoop::remember(const Session& session) {
  past_[session.epoch()] = session.ending();
  if (past_.size() > kPastMax) {
    past_.erase(past_.begin());
  }
}

void RingLoop::publish(Lock& lock) {
  SHERD_ASSERT(lock.owns_lock());
  counters_ = context_.counters;
  progress_ = {};
  for (const auto& [epoch, session] : sessions_) {
    if (session->begun()) {
      progress_ = session->progress();
      return;
    }
    if (!progress_.place) {
      progress_ = session->progress();
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
  const bool lets_in = doorman_.lets_in(clock_.now());
  polls_.push_back({lets_in ? listener_.get() : -1, POLLIN, 0});
  doorman_.polls(polls_);
  context_.farewells.polls(polls_);
  std::optional<Instant> until;
  const auto no_later_than = [&](std::optional<Instant> instant) {
    if (instant) {
      until = std::min(until.value_or(*instant), *instant);
    }
  };
  no_later_than(doorman_.next_instant());
  no_later_than(context_.farewells.next_instant());
  for (const auto& [epoch, session] : sessions_) {
    session->polls(polls_);
    no_later_than(session->next_instant());
  }
  int timeout_ms = moved ? 0 : -1;
  if (!moved && until) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::max(*until - clock_.now(), Duration{}));
    timeout_ms = static_cast<int>(left.count());
  }
  ::poll(polls_.data(), polls_.size(), timeout_ms);
  if ((polls_[0].revents & POLLIN) != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
  }
  if ((polls_[1].revents & POLLIN) != 0) {
    doorman_.let_in(listener_.get(), clock_.now());
  }
}

void RingLoop::fail_all(const std::string& reason) {
  for (auto& [epoch, session] : sessions_) {
    session->end(RingFault::kResources, context_.options.replica, reason);
  }
}

// ---- epochs ----

Session* RingLoop::session_of(const Epoch& epoch) {
  const auto found = sessions_.find(epoch);
  return found == sessions_.end() ? nullptr : found->second.get();
}

void RingLoop::do_join(Route route) {
  newest_ = route.epoch.epoch;
  // The oldest may still reduce; of those that wait for it the newest counts.
  while (sessions_.size() > 1) {
    do_stop(std::prev(sessions_.end())->first);
  }
  sessions_[newest_] =
      std::make_unique<Session>(context_, std::move(route), clock_.now());
}

void RingLoop::do_begin(const Attempt& attempt, std::vector<double> weights) {
  while (!sessions_.empty() && sessions_.begin()->first < attempt.epoch) {
    do_stop(sessions_.begin()->first);
  }
  if (Session* session = session_of(attempt.epoch)) {
    session->begin({attempt, std::move(weights), attempt.step == last_step_});
    last_step_ = attempt.step;
  }
}

void RingLoop::do_stop(const Epoch& epoch) {
  if (Session* session = session_of(epoch)) {
    session->end(
        RingFault::kStopped, context_.options.replica,
        str("replica ", context_.options.replica, " has stopped ",
            text_of(epoch)));
    remember(*session);
    sessions_.erase(epoch);
  }
  std::erase_if(
      untold_, [&](const Event& event) { return event.epoch == epoch; });
}

void RingLoop::do_forget() {
  for (auto& [epoch, session] : sessions_) {
    if (session->begun()) {
      session->end(
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

// ---- callers ----

Doorman::Answer RingLoop::refuse(
    Caller& caller, std::uint64_t& counter, const std::string& reason) {
  ++counter;
  context_.farewells.add(
      caller.link.leave(refusal_frame(caller.epoch, reason)));
  return Doorman::Answer::kDone;
}

Doorman::Answer RingLoop::decide(Caller& caller) {
  auto& counters = context_.counters;
  const auto& options = context_.options;
  const Hello& hello = caller.hello;
  if (context_.run == 0) {
    return Doorman::Answer::kWait;
  }
  if (hello.run != context_.run) {
    return refuse(caller, counters.refused_connections, "this is another run");
  }
  if (hello.to != options.replica ||
      hello.to_incarnation != options.incarnation ||
      hello.shard_rank != static_cast<std::uint32_t>(options.shard_rank)) {
    return refuse(
        caller, counters.refused_connections,
        str("this is rank ", options.shard_rank, " of replica ",
            options.replica, " in life ", options.incarnation));
  }
  if (caller.epoch > newest_) {
    return Doorman::Answer::kWait;
  }
  Session* session = session_of(caller.epoch);
  if (const auto past = past_.find(caller.epoch); past != past_.end()) {
    // So that it accuses who is to blame.
    ++counters.stale_connections;
    context_.farewells.add(
        caller.link.leave(frame_of(caller.epoch, past->second)));
    return Doorman::Answer::kDone;
  }
  if (session == nullptr) {
    return refuse(
        caller, counters.stale_connections,
        str(text_of(caller.epoch), " is over here"));
  }
  auto why = session->stranger(hello);
  if (why.empty() && session->has_previous()) {
    why = str("replica ", hello.from, " is connected already");
  }
  if (!why.empty()) {
    return refuse(caller, counters.refused_connections, why);
  }
  if (why = session->disagreement(hello); !why.empty()) {
    session->end(RingFault::kMismatch, hello.from, why);
    return refuse(caller, counters.refused_connections, why);
  }
  session->adopt(std::move(caller.link), hello);
  return Doorman::Answer::kDone;
}

}  // namespace sherd::ft::ring
