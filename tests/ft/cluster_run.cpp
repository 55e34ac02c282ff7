// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>
#include <gtest/gtest.h>

#include "base/check.h"
#include "ft/cluster.h"

namespace sherd::ft::test {

using std::chrono::milliseconds;

Outcome Cluster::run() {
  for (ReplicaId one = 0; one < static_cast<ReplicaId>(options_.replicas);
       ++one) {
    if (life_of(one) == 0) {
      start(one);
    }
  }
  const Instant until = clock_.now() + options_.limit;
  while (!over() && clock_.now() < until) {
    turn(until);
  }
  return outcome(over());
}

bool Cluster::over() const {
  if (options_.ends_after_done > milliseconds(0) && done_at_ > Instant(0) &&
      clock_.now() > done_at_ + options_.ends_after_done) {
    return true;
  }
  return to_start_.empty() &&
      std::all_of(processes_.begin(), processes_.end(), [](const auto& one) {
           return one->gone || one->stopped;
         });
}

// Checks once what has happened.
void Cluster::turn(Instant until) {
  std::vector<pollfd> polled;
  std::vector<Process*> whose;
  for (const auto& one : processes_) {
    if (!one->gone) {
      whose.push_back(one.get());
      polled.push_back({one->socket.get(), POLLIN, 0});
      polled.push_back({one->ended.get(), POLLIN, 0});
    }
  }
  if (!timers_.empty()) {
    until = std::min(until, timers_.begin()->first);
  }
  const auto wait = std::chrono::ceil<milliseconds>(until - clock_.now());
  const int count = ::poll(
      polled.data(), polled.size(),
      static_cast<int>(std::clamp<milliseconds::rep>(wait.count(), 0, 60000)));
  for (std::size_t i = 0; count > 0 && i < whose.size(); ++i) {
    if (polled[2 * i].revents != 0) {
      listen_to(*whose[i]);
    }
    if (polled[2 * i + 1].revents != 0 && !whose[i]->gone) {
      reap(*whose[i]);
    }
  }
  run_timers();
}

void Cluster::run_timers() {
  while (!timers_.empty() && timers_.begin()->first <= clock_.now()) {
    const auto act = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    act();
  }
}

// ---- reports of ranks ----

void Cluster::listen_to(Process& process) {
  std::array<char, kTraceEventBytesMax> bytes{};
  for (;;) {
    const auto count =
        ::recv(process.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count <= 0) {
      return;
    }
    heard(
        process,
        trace_event_of({bytes.data(), static_cast<std::size_t>(count)}));
  }
}

void Cluster::heard(Process& process, const TraceEvent& event) {
  process.life.trace.push_back(event);
  process.life.trace.back().at -= process.ahead;
  switch (event.kind) {
    case TraceEvent::Kind::kAddress:
      introduce(process.life.replica);
      return;
    case TraceEvent::Kind::kHolds:
      while (last_held_ < event.state.step) {
        ++last_held_;
        const auto [begin, end] = when_held_.equal_range(last_held_);
        for (auto at = begin; at != end; ++at) {
          struck_at_ = clock_.now();
          at->second();
        }
      }
      return;
    case TraceEvent::Kind::kComputes:
      computes(process.life, event.state.step + 1);
      return;
    case TraceEvent::Kind::kReached:
      reached(process, event);
      return;
    case TraceEvent::Kind::kFailed:
      process.life.failure = event.text;
      return;
    case TraceEvent::Kind::kDone:
      process.life.done = true;
      if (done_at_ == Instant(0) && last_held_ >= steps_.get()) {
        done_at_ = clock_.now();
        after(options_.ends_after_done, [] {});
      }
      return;
  }
}

void Cluster::end_behind(const Rejoin& awaited) {
  awaited_.push_back(awaited);
  steps_.set(std::int64_t{1} << 40);
}

void Cluster::computes(const Life& life, std::int64_t step) {
  std::int64_t more = 0;
  std::erase_if(awaited_, [&](const Rejoin& one) {
    const bool is_back = one.replica == life.replica && one.life <= life.life &&
        one.above < step;
    more = is_back ? one.more : more;
    return is_back;
  });
  if (more > 0 && awaited_.empty()) {
    steps_.set(last_held_ + more);
  }
}

// The address under which other replicas reach it, possibly that of proxies.
std::string Cluster::published(const Process& process) {
  std::istringstream in(process.life.trace.front().text);
  std::string host;
  int reduce = 0;
  int fetch = 0;
  int control = 0;
  in >> host >> reduce >> fetch >> control;
  const auto& life = process.life;
  for (const auto& [key, proxy] : links_) {
    const auto& [from, to, rank] = key;
    if (to == life.replica && rank == life.rank) {
      proxy->set_target_port(reduce);
    }
  }
  const auto found = fetch_links_.find({life.replica, life.rank});
  if (found != fetch_links_.end()) {
    found->second->set_target_port(fetch);
    fetch = found->second->port();
  }
  return str(host, ' ', reduce, ' ', fetch, ' ', control);
}

// Called when all ranks of a replica have reported their address.
void Cluster::introduce(ReplicaId replica) {
  std::vector<Process*> ranks;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    auto* one = process(replica, rank);
    if (one == nullptr || one->life.trace.empty()) {
      return;
    }
    ranks.push_back(one);
  }
  std::string all;
  for (const auto* one : ranks) {
    all += published(*one) + "\n";
  }
  for (const auto* one : ranks) {
    (void)::send(one->socket.get(), all.data(), all.size(), MSG_NOSIGNAL);
  }
}

void Cluster::reached(Process& process, const TraceEvent& event) {
  std::string order;
  // The script may grow meanwhile.
  for (std::size_t i = 0; i < armed_.size(); ++i) {
    auto& armed = *armed_[i];
    const auto& moment = armed.moment;
    const auto& life = process.life;
    if (!armed.done && moment.replica == life.replica &&
        moment.rank == life.rank && moment.life == life.life &&
        moment.point == event.text &&
        (moment.step == event.state.step || moment.step == -1)) {
      armed.done = true;
      struck_at_ = clock_.now();
      order = armed.act();
      break;
    }
  }
  if (order.empty()) {
    order = "go on";
  }
  (void)::send(process.socket.get(), order.data(), order.size(), MSG_NOSIGNAL);
}

// ---- ends ----

void Cluster::reap(Process& process) {
  listen_to(process);
  int status = 0;
  ::waitpid(process.life.pid, &status, 0);
  process.gone = true;
  process.stopped = false;
  process.life.ended_at = clock_.now();
  process.life.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  process.life.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  if (!process.life.done) {
    lost(process);
  } else if (options_.returns && last_held_ < steps_.get()) {
    start_later(process.life.replica);
  }
}

void Cluster::lost(const Process& process) {
  const auto replica = process.life.replica;
  if (process.life.life != life_of(replica)) {
    return;
  }
  if (options_.ends_siblings) {
    signal_all(replica, SIGKILL);
  }
  if (options_.restarts) {
    start_later(replica);
  }
}

// Called when all its ranks are gone.
void Cluster::start_later(ReplicaId replica) {
  if (!lives(replica) && to_start_.insert(replica).second) {
    after(options_.restart_after, [this, replica] {
      if (to_start_.contains(replica)) {
        start(replica);
      }
    });
  }
}

Outcome Cluster::outcome(bool in_time) {
  Outcome outcome;
  outcome.in_time = in_time;
  for (const auto& one : processes_) {
    if (!one->gone) {
      options_.restarts = false;
      ::kill(one->life.pid, SIGKILL);
      reap(*one);
    }
    outcome.lives.push_back(one->life);
  }
  end_coordinator();
  std::ifstream said(folder_.path() + "/coordinator.txt");
  outcome.coordinator.assign(std::istreambuf_iterator<char>(said), {});
  outcome.log = records_of(options_.coordinator.log);
  outcome.segments_left = segments_left();
  outcome.stall = stalls_.longest();
  outcome.struck_at = struck_at_;
  outcome.steps = steps_.get();
  outcome.ranks = options_.ranks;
  outcome.buckets = options_.buckets;
  return outcome;
}

// Files of other programs come and go meanwhile; what is left of this one stays.
std::set<std::string> Cluster::segments_left() const {
  const Instant until = clock_.now() + std::chrono::seconds(10);
  auto left = segments();
  do {
    const auto now = segments();
    std::erase_if(left, [&](const auto& name) {
      return segments_before_.contains(name) || !now.contains(name);
    });
  } while (!left.empty() && clock_.now() < until);
  return left;
}

}  // namespace sherd::ft::test
