// SPDX-License-Identifier: Apache-2.0
//
// How many ranks one leader bears: the leader of a replica in a process of its own,
// and as many ranks without models that make a step a second, over real connections.
// Prints how long decisions take, bytes a step, the leader's memory and processor
// time, and how soon training goes on after the coordinator was killed.
//
//   leader_load [ranks [steps [milliseconds of a step]]]
#include <sherd/ft/coordinator.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/backoff.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "decision_times.h"
#include "ft/coordinator/fake_replica_testing.h"
#include "ft/replica/leader_thread.h"
#include "ft/replica/rank_messages.h"
#include "load_process.h"
#include "net/authentication.h"
#include "net/connector.h"
#include "net/loop.h"

namespace sherd::ft {
namespace {

namespace fs = std::filesystem;

constexpr Incarnation kIncarnation = 7;

// It joins, reduces and applies when it is told to; a reduction takes a step's time.
class ScriptedRank {
 public:
  using Tell = std::function<void(const RankEvent& event)>;

  ScriptedRank(net::Loop& loop, int ranks, Duration step, Tell tell)
      : loop_(loop),
        beat_every_(rank_heartbeat_interval(ranks)),
        step_(step),
        tell_(std::move(tell)) {
    beat();
  }

  void take(const RankTask& task) {
    if (const auto* ring = std::get_if<RingMembership>(&task)) {
      tell_(JoinedEvent{ring->epoch});
    } else if (const auto* reduce = std::get_if<ReduceTask>(&task)) {
      progress_.activity = Activity::kReducing;
      reduction_ = loop_.after(step_, [this, attempt = reduce->attempt] {
        tell_(ReducedEvent{
            attempt, mix64(static_cast<std::uint64_t>(attempt.step))});
      });
    } else if (const auto* apply = std::get_if<ApplyTask>(&task)) {
      ++progress_.serial;
      tell_(WrittenEvent{0, apply->commit.result});
    }
  }

 private:
  void beat() {
    tell_(progress_);
    beats_ = loop_.after(beat_every_, [this] { beat(); });
  }

  net::Loop& loop_;
  const Duration beat_every_;
  const Duration step_;
  const Tell tell_;
  TrainingProgress progress_;
  net::Timer beats_;
  net::Timer reduction_;
};

// ---- the process of rank 0 ----

int lead(
    const std::string& ready_file,
    const std::string& coordinator,
    int ranks,
    Duration step) {
  ReplicaAgentOptions options;
  options.rank.incarnation = kIncarnation;
  options.held = {0, first_lineage(1, 2)};
  options.coordinator = net::parse_host_address(coordinator);
  options.ranks = ranks;
  net::Loop loop;
  std::unique_ptr<ScriptedRank> first;
  LeaderThread leader(std::move(options), [&](const RankTask& task) {
    loop.post([&first, task] { first->take(task); });
  });
  first = std::make_unique<ScriptedRank>(
      loop, ranks, step, [&](const RankEvent& event) { leader.tell(event); });
  leader.start(std::vector<RankAddress>(
      static_cast<std::size_t>(ranks), {"127.0.0.1", 20000, 40000}));
  std::ofstream(ready_file + ".new") << leader.port() << "\n";
  fs::rename(ready_file + ".new", ready_file);
  loop.run();
  return 0;
}

int coordinate_in(const fs::path& folder, const std::string& bind) {
  CoordinateOptions options;
  options.log = (folder / "coordinator.db").string();
  options.ready_file = (folder / "coordinator").string();
  options.bind = bind;
  return coordinate(options);
}

// ---- the process of the others ----

// Ranks that share a thread. Thread rule: its loop.
class Ranks {
 public:
  Ranks(net::Loop& loop, int ranks, Duration step)
      : loop_(loop), ranks_(ranks), step_(step) {}

  // As ranks do, it comes again when the listener has no room.
  void add(int rank, std::uint16_t port) {
    port_ = port;
    dial(rank);
  }
  const DecisionTimes& times() const { return times_; }
  std::int64_t furthest() const { return furthest_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  struct Sibling {
    std::unique_ptr<net::Connector> dialled;
    net::ConnectionHandle connection;
    std::unique_ptr<ScriptedRank> rank;
    net::Timer again;
    Backoff backoff{
        {.first = std::chrono::milliseconds(100),
         .longest = std::chrono::seconds(2)}};
  };

  void dial(int rank) {
    auto& one = siblings_[rank];
    one.dialled = std::make_unique<net::Connector>(
        loop_, net::HostAddress{"127.0.0.1", port_}, net::ConnectorOptions(),
        [this, rank](Result<net::ConnectionHandle> made) {
          if (made.ok()) {
            greet(rank, std::move(made).value());
          } else {
            dial_again(rank);
          }
        });
  }

  void dial_again(int rank) {
    auto& one = siblings_[rank];
    one.again = loop_.after(
        one.backoff.next_jittered(net::random_number()),
        [this, rank] { dial(rank); });
  }

  void greet(int rank, net::ConnectionHandle made) {
    auto& one = siblings_[rank];
    one.connection = std::move(made);
    one.connection->start(
        {[this, rank](const net::Frame& frame) { heard(rank, frame); },
         [this, rank](const Status&) { dial_again(rank); }});
    send(rank, RankFrame::kHello, str(rank, ' ', kIncarnation));
    one.rank = std::make_unique<ScriptedRank>(
        loop_, ranks_, step_,
        [this, rank](const RankEvent& event) { tell(rank, event); });
  }

  void send(int rank, RankFrame type, const std::string& payload) {
    bytes_ += net::kFrameHeaderBytes + payload.size();
    siblings_[rank].connection->send(type_of(type), payload);
  }

  void tell(int rank, const RankEvent& event) {
    if (const auto* reduced = std::get_if<ReducedEvent>(&event)) {
      times_.asked[reduced->attempt.step] = loop_.now();
    }
    send(rank, RankFrame::kEvent, bytes_of(event));
  }

  // A decision takes from the last rank's sum to where a rank hears of it.
  void heard(int rank, const net::Frame& frame) {
    bytes_ += net::kFrameHeaderBytes + frame.payload.size();
    if (frame.type != type_of(RankFrame::kTask)) {
      return;
    }
    const auto task = rank_task_of(frame.payload).value();
    if (const auto* apply = std::get_if<ApplyTask>(&task)) {
      times_.heard.emplace_back(apply->commit.attempt.step, loop_.now());
      furthest_ = std::max(furthest_, apply->commit.attempt.step);
    }
    siblings_[rank].rank->take(task);
  }

  net::Loop& loop_;
  const int ranks_;
  const Duration step_;
  std::uint16_t port_ = 0;  // The leader's.
  std::map<int, Sibling> siblings_;
  DecisionTimes times_;
  std::int64_t furthest_ = 0;
  std::uint64_t bytes_ = 0;
};

class Load {
 public:
  Load(int ranks, std::int64_t steps, int step_ms)
      : ranks_(ranks),
        steps_(steps),
        step_ms_(step_ms),
        others_(loop_, ranks, std::chrono::milliseconds(step_ms)),
        measuring_(thread_.loop(), ranks, std::chrono::milliseconds(step_ms)) {
    fs::create_directories(folder_);
  }
  ~Load() {
    thread_.stop();
    fs::remove_all(folder_);
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  void run() {
    start_coordinator();
    leader_ = std::make_unique<LoadProcess>(std::vector<std::string>{
        "lead", file("leader"), coordinator_address_, str(ranks_),
        str(step_ms_)});
    const auto port = read_when_ready("leader");
    const Instant from = loop_.now();
    for (int rank = 1; rank < ranks_; ++rank) {
      auto& its = rank % kPeersOfOneThatMeasures == 2 ? measuring_ : others_;
      its.add(rank, static_cast<std::uint16_t>(std::stoi(port)));
    }
    thread_.start();
    if (!reach(2)) {
      std::printf("no step was committed within two minutes\n");
      return;
    }
    std::printf("first steps after %.1f s\n", seconds(loop_.now() - from));
    measure_steps();
    measure_restart();
  }

 private:
  std::string file(const std::string& name) const {
    return (folder_ / name).string();
  }

  std::string read_when_ready(const std::string& name) {
    std::string text;
    (void)test::run_until(loop_, [&] {
      std::ifstream in(file(name));
      return static_cast<bool>(std::getline(in, text));
    });
    return text;
  }

  bool reach(std::int64_t step) {
    return test::run_until(
        loop_, [&] { return others_.furthest() >= step; },
        std::chrono::minutes(2));
  }

  void start_coordinator() {
    fs::remove(file("coordinator"));
    coordinator_ = std::make_unique<LoadProcess>(std::vector<std::string>{
        "coordinate", folder_.string(), coordinator_address_});
    coordinator_address_ = read_when_ready("coordinator");
  }

  std::uint64_t bytes() {
    return others_.bytes() + thread_.ask([&] { return measuring_.bytes(); });
  }

  void measure_steps() {
    const auto first = others_.furthest();
    const auto bytes_before = bytes();
    const double cpu_before = leader_->cpu_s();
    const Instant from = loop_.now();
    (void)reach(first + steps_);
    const auto last = others_.furthest();  // Not all have heard of it.
    const auto steps = static_cast<double>(last - first);
    const double time_s = seconds(loop_.now() - from);
    const auto times = thread_.ask([&] { return measuring_.times(); });
    const auto measured = times.latencies_ms(others_.times(), first, last);
    std::printf(
        "one leader of %d ranks, %.0f steps in %.1f s\n"
        "decision: %s\n"
        "read by all others on one thread: %s\n"
        "bytes a step: %.3f MB\n"
        "leader: %.0f %% of a core, %.0f MB (most: %.0f MB)\n",
        ranks_, steps, time_s, text_of_latencies(measured).c_str(),
        text_of_latencies(others_.times().latencies_ms(times, first, last))
            .c_str(),
        static_cast<double>(bytes() - bytes_before) / steps / 1e6,
        100 * (leader_->cpu_s() - cpu_before) / time_s,
        leader_->memory_mb("VmRSS"), leader_->memory_mb("VmHWM"));
  }

  void measure_restart() {
    const auto before = others_.furthest();
    const Instant from = loop_.now();
    coordinator_->kill();
    start_coordinator();
    (void)reach(before + 1);
    std::printf(
        "coordinator killed: the next step is committed after %.2f s\n",
        seconds(loop_.now() - from));
  }

  const int ranks_;
  const std::int64_t steps_;
  const int step_ms_;
  const fs::path folder_ =
      fs::temp_directory_path() / str("leader_load_", ::getpid());
  net::Loop loop_;
  std::string coordinator_address_ = CoordinateOptions().bind;
  std::unique_ptr<LoadProcess> coordinator_;
  std::unique_ptr<LoadProcess> leader_;
  LoopThread thread_;
  Ranks others_;
  Ranks measuring_;
};

}  // namespace
}  // namespace sherd::ft

int main(int count, char** words) {
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  sherd::ft::raise_file_limit();
  const auto number = [&](int at, int otherwise) {
    return count > at ? std::atoi(words[at]) : otherwise;
  };
  if (count == 4 && std::string(words[1]) == "coordinate") {
    return sherd::ft::coordinate_in(words[2], words[3]);
  }
  if (count == 6 && std::string(words[1]) == "lead") {
    return sherd::ft::lead(
        words[2], words[3], number(4, 0),
        std::chrono::milliseconds(number(5, 0)));
  }
  sherd::ft::Load(number(1, 2048), number(2, 20), number(3, 1000)).run();
  return 0;
}
