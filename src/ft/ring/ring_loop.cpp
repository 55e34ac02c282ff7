// SPDX-License-Identifier: Apache-2.0
//
// The thread of a ring: it moves bytes, calls events, and carries out what callers request.
#include "ft/ring/ring.h"

#include <pthread.h>
#include <unistd.h>
#include <algorithm>
#include <exception>
#include <utility>
#include "base/check.h"
#include "base/log.h"
#include "net/tcp_socket.h"

namespace sherd::ft {

using ring::frame_of;
using ring::proof_of;
using ring::RingCommunicator;

namespace {

constexpr std::size_t kPastMax = 16;

}  // namespace

// ---- the thread ----

void Ring::run() {
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

bool Ring::turn() {
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

bool Ring::advance(RingCommunicator& communicator) {
  const bool moved = communicator.advance(clock_.now());
  const Epoch epoch = communicator.epoch();
  std::vector<Event> events;
  if (communicator.take_joined()) {
    events.push_back({epoch, [this, epoch] { events_.joined(epoch); }});
  }
  if (const auto reduced = communicator.take_reduced()) {
    events.push_back({epoch, [this, reduced] {
                        events_.reduced(reduced->attempt, reduced->digest);
                      }});
  }
  if (communicator.ended()) {
    remember(communicator);
    events.push_back({epoch, [this, epoch, ending = communicator.ending()] {
                        events_.failed(epoch, ending);
                      }});
  }
  if (!events.empty()) {
    Lock lock(mu_);
    std::ranges::move(events, std::back_inserter(untold_));
  }
  return moved || !events.empty();
}

void Ring::remember(const RingCommunicator& communicator) {
  past_[communicator.epoch()] = communicator.ending();
  if (past_.size() > kPastMax) {
    past_.erase(past_.begin());
  }
}

void Ring::tell_events() {
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

void Ring::sleep(bool moved) {
  polls_.clear();
  polls_.push_back({wake_.get(), POLLIN, 0});
  const bool accepts = handshakes_.accepts(clock_.now());
  polls_.push_back({accepts ? listening_.socket.get() : -1, POLLIN, 0});
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
    handshakes_.accept_waiting(listening_.socket.get(), clock_.now());
  }
}

void Ring::fail_all(const std::string& reason) {
  for (auto& [epoch, communicator] : communicators_) {
    communicator->end(RingFault::kResources, context_.options.replica, reason);
  }
}

// ---- epochs ----

RingCommunicator* Ring::communicator_of(const Epoch& epoch) {
  const auto found = communicators_.find(epoch);
  return found == communicators_.end() ? nullptr : found->second.get();
}

void Ring::do_join(RingCommunicator::Route route) {
  newest_ = route.epoch.epoch;
  // The oldest may still reduce; of the waiting ones only the newest matters.
  while (communicators_.size() > 1) {
    do_stop(std::prev(communicators_.end())->first);
  }
  communicators_[newest_] = std::make_unique<RingCommunicator>(
      context_, std::move(route), clock_.now());
}

void Ring::do_begin(const ReduceTask& task) {
  const Attempt& attempt = task.attempt;
  while (!communicators_.empty() &&
         communicators_.begin()->first < attempt.epoch) {
    do_stop(communicators_.begin()->first);
  }
  if (RingCommunicator* communicator = communicator_of(attempt.epoch)) {
    communicator->begin(task);
  }
}

void Ring::do_stop(const Epoch& epoch) {
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

void Ring::do_forget() {
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

void Ring::end_lease() {
  if (context_.options.memory != nullptr) {
    context_.options.memory->end_lease();
  }
}

// ---- incoming connections ----

Ring::Disposition Ring::refuse(
    IncomingPeer& caller, std::uint64_t& counter, const std::string& reason) {
  ++counter;
  context_.closing.add(
      caller.link.detach(ring::refusal_frame(caller.epoch, reason)));
  return Disposition::kDone;
}

Ring::Disposition Ring::decide(IncomingPeer& caller) {
  auto& counters = context_.counters;
  const auto& options = context_.options;
  const ring::Handshake& handshake = caller.handshake;
  if (context_.run == 0) {
    return Disposition::kWait;
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
    return Disposition::kWait;
  }
  RingCommunicator* communicator = communicator_of(caller.epoch);
  if (const auto past = past_.find(caller.epoch); past != past_.end()) {
    // The peer gets the ending, so that it accuses the right member.
    ++counters.stale_connections;
    context_.closing.add(
        caller.link.detach(frame_of(caller.epoch, past->second)));
    return Disposition::kDone;
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
  return Disposition::kDone;
}

}  // namespace sherd::ft
