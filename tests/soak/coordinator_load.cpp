// SPDX-License-Identifier: Apache-2.0
//
// How much one coordinator bears: a coordinator in a process of its own, and many
// replicas without models that make a step a second, over real connections. Prints
// how long decisions take, bytes a step, the coordinator's memory, processor time
// and log, and how soon training goes on after it was killed.
//
//   coordinator_load [replicas [ranks of each [steps [milliseconds of a step]]]]
//
// How long a log takes to read: writes one of that many steps.
//
//   coordinator_load log [steps [replicas]]
#include <sherd/ft/coordinator.h>

#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "decision_times.h"
#include "ft/coordinator/fake_replica_testing.h"
#include "ft/coordinator/log_store.h"
#include "ft/coordinator/sqlite_query.h"
#include "load_process.h"
#include "net/loop.h"

namespace sherd::ft {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using test::FakeReplica;

struct LoadOptions {
  ReplicaId replicas = 1000;
  std::size_t ranks = 8;
  std::int64_t steps = 20;
  Duration step = std::chrono::seconds(1);
};

CoordinateOptions coordinate_options(
    const fs::path& folder, ReplicaId replicas, const std::string& bind) {
  CoordinateOptions options;
  options.log = (folder / "coordinator.db").string();
  options.ready_file = (folder / "ready").string();
  options.bind = bind;
  options.replicas_start = static_cast<int>(replicas);
  options.samples_per_replica = 8;
  // What is measured is how long decisions take, not who is late.
  options.dead_after = std::chrono::seconds(10);
  options.join_timeout = std::chrono::seconds(10);
  return options;
}

// Replicas that share a thread. Thread rule: its loop.
class Replicas {
 public:
  explicit Replicas(net::Loop& loop) : loop_(loop) {}

  void add(
      ReplicaId replica, const LoadOptions& options, const std::string& to) {
    replicas_.push_back(std::make_unique<FakeReplica>(
        loop_,
        test::FakeReplicaOptions{
            .address = net::parse_host_address(to),
            .replica = replica,
            .incarnation = 1000 + replica,
            .beat = milliseconds(250),
            .step = options.step,
            .ranks = options.ranks,
            .on_task = [this](const Task& task) { on_task(task); }}));
  }
  const DecisionTimes& times() const { return times_; }
  std::int64_t furthest() const { return furthest_; }
  std::uint64_t bytes() const {
    std::uint64_t all = 0;
    for (const auto& one : replicas_) {
      all += one->bytes();
    }
    return all;
  }

 private:
  // A decision takes from the last vote to where a replica hears of it.
  void on_task(const Task& task) {
    if (const auto* report = std::get_if<ReportTask>(&task)) {
      if (const auto& vote = report->report.vote) {
        times_.asked[vote->attempt.step] = loop_.now();
      }
    } else if (const auto* apply = std::get_if<ApplyTask>(&task)) {
      times_.heard.emplace_back(apply->commit.attempt.step, loop_.now());
      furthest_ = std::max(furthest_, apply->commit.attempt.step);
    }
  }

  net::Loop& loop_;
  std::vector<std::unique_ptr<FakeReplica>> replicas_;
  DecisionTimes times_;
  std::int64_t furthest_ = 0;
};

class Load {
 public:
  explicit Load(const LoadOptions& options) : options_(options) {
    folder_ = fs::temp_directory_path() / str("coordinator_load_", ::getpid());
    fs::create_directories(folder_);
  }
  ~Load() {
    thread_.stop();
    fs::remove_all(folder_);
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  void run() {
    start();
    const Instant from = loop_.now();
    add_replicas();
    if (!reach(2)) {
      std::printf("no step was committed within two minutes\n");
      return;
    }
    std::printf("first steps after %.1f s\n", seconds(loop_.now() - from));
    measure_steps();
    measure_restart();
  }

 private:
  void start() {
    const auto ready = folder_ / "ready";
    fs::remove(ready);
    process_ = std::make_unique<LoadProcess>(std::vector<std::string>{
        "coordinate", folder_.string(), str(options_.replicas), address_});
    (void)test::run_until(loop_, [&] { return fs::exists(ready); });
    std::ifstream(ready) >> address_;
  }

  void add_replicas() {
    for (ReplicaId replica = 0; replica < options_.replicas; ++replica) {
      auto& its = replica % kPeersOfOneThatMeasures == 1 ? measuring_ : others_;
      its.add(replica, options_, address_);
    }
    thread_.start();
  }

  bool reach(std::int64_t step) {
    return test::run_until(
        loop_, [&] { return others_.furthest() >= step; },
        std::chrono::minutes(2));
  }

  std::uint64_t bytes() {
    return others_.bytes() + thread_.ask([&] { return measuring_.bytes(); });
  }
  // The mean size of the last records.
  std::int64_t record_bytes() const {
    sqlite3* opened = nullptr;
    sqlite3_open_v2(
        (folder_ / "coordinator.db").c_str(), &opened, SQLITE_OPEN_READWRITE,
        nullptr);
    const Database database(opened, sqlite3_close_v2);
    Query query(
        opened,
        "SELECT avg(length(bytes)) FROM (SELECT bytes FROM records ORDER BY "
        "sequence DESC LIMIT 5)");
    return query.step() ? query.number(0) : -1;
  }

  void measure_steps() {
    const auto first = others_.furthest();
    const auto bytes_before = bytes();
    const double cpu_before = process_->cpu_s();
    const Instant from = loop_.now();
    (void)reach(first + options_.steps);
    const auto last = others_.furthest();  // Not all have heard of it.
    const auto steps = static_cast<double>(last - first);
    const double time_s = seconds(loop_.now() - from);
    const auto times = thread_.ask([&] { return measuring_.times(); });
    const auto measured = times.latencies_ms(others_.times(), first, last);
    std::printf(
        "%u replicas x %zu ranks, %.0f steps in %.1f s\n"
        "decision: %s\n"
        "read by all others on one thread: %s\n"
        "bytes a step: %.3f MB\n"
        "coordinator: %.0f %% of a core, %.0f MB (most: %.0f MB), log %lld "
        "bytes a step\n",
        options_.replicas, options_.ranks, steps, time_s,
        text_of_latencies(measured).c_str(),
        text_of_latencies(others_.times().latencies_ms(times, first, last))
            .c_str(),
        static_cast<double>(bytes() - bytes_before) / steps / 1e6,
        100 * (process_->cpu_s() - cpu_before) / time_s,
        process_->memory_mb("VmRSS"), process_->memory_mb("VmHWM"),
        static_cast<long long>(record_bytes()));
  }

  void measure_restart() {
    const auto before = others_.furthest();
    const Instant from = loop_.now();
    process_->kill();
    start();
    const double up_s = seconds(loop_.now() - from);
    (void)reach(before + 1);
    std::printf(
        "killed: it listens again after %.2f s, the next step is committed "
        "after %.2f s, for which it has worked %.2f s\n",
        up_s, seconds(loop_.now() - from), process_->cpu_s());
  }

  const LoadOptions options_;
  fs::path folder_;
  std::string address_ = CoordinateOptions().bind;  // The coordinator's.
  net::Loop loop_;
  std::unique_ptr<LoadProcess> process_;
  LoopThread thread_;
  Replicas others_{loop_};
  Replicas measuring_{thread_.loop()};
};

std::vector<Member> members_after(SampleSet taken, ReplicaId replicas) {
  std::vector<Member> all;
  for (ReplicaId replica = 0; replica < replicas; ++replica) {
    all.push_back({replica, 1000 + replica, taken.lowest_free(8)});
    taken.add(all.back().samples);
  }
  return all;
}

CommitRecord next_commit(const History& history) {
  CommitRecord record;
  record.participants = history.members;
  auto taken = history.consumed;
  auto& commit = record.commit;
  commit = {
      {history.epoch, history.canonical->step + 1},
      *history.canonical,
      {},
      5,
      0};
  for (const auto& one : record.participants) {
    taken.add(one.samples);
    commit.samples += count_of(one.samples);
  }
  commit.result = result_of(record);
  record.next =
      members_after(taken, static_cast<ReplicaId>(record.participants.size()));
  return record;
}

void measure_log(std::int64_t steps, ReplicaId replicas) {
  constexpr std::int64_t kTogether = 1000;
  const fs::path folder =
      fs::temp_directory_path() / str("coordinator_log_", ::getpid());
  fs::create_directories(folder);
  const std::string path = (folder / "coordinator.db").string();
  const SteadyClock clock;
  {
    const auto store = LogStore::open(path).value();
    History history;
    const auto write = [&](const std::vector<Record>& records) {
      SHERD_CHECK(store->append(records).ok(), "[ft] cannot append");
      SHERD_CHECK(store->summarise(history).ok(), "[ft] cannot summarise");
    };
    const std::vector<Record> first = {
        TermRecord{1, 77},
        EpochRecord{
            {1, 1}, {0, first_lineage(1, 2)}, 9, members_after({}, replicas)}};
    for (const auto& one : first) {
      append(history, one);
    }
    write(first);
    for (std::int64_t step = 0; step < steps; step += kTogether) {
      std::vector<Record> records;
      for (std::int64_t i = 0; i < kTogether; ++i) {
        records.emplace_back(next_commit(history));
        append(history, records.back());
      }
      write(records);
    }
  }
  const Instant from = clock.now();
  const auto store = LogStore::open(path).value();
  const double read_s = seconds(clock.now() - from);
  const History history = store->take_history();
  std::printf(
      "%lld steps of %u replicas: %.2f MB, read in %.3f s, %zu states known\n",
      static_cast<long long>(history.canonical->step), replicas,
      static_cast<double>(fs::file_size(path)) / 1e6, read_s,
      history.past.size());
  fs::remove_all(folder);
}

}  // namespace
}  // namespace sherd::ft

int main(int count, char** words) {
  (void)std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const auto number = [&](int at, long otherwise) {
    return count > at ? std::atol(words[at]) : otherwise;
  };
  if (count == 5 && std::string(words[1]) == "coordinate") {
    return sherd::ft::coordinate(sherd::ft::coordinate_options(
        words[2], static_cast<sherd::ft::ReplicaId>(number(3, 0)), words[4]));
  }
  if (count > 1 && std::string(words[1]) == "log") {
    sherd::ft::measure_log(
        number(2, 10000000), static_cast<sherd::ft::ReplicaId>(number(3, 8)));
    return 0;
  }
  sherd::ft::raise_file_limit();
  sherd::ft::Load(
      {.replicas = static_cast<sherd::ft::ReplicaId>(number(1, 1000)),
       .ranks = static_cast<std::size_t>(number(2, 8)),
       .steps = number(3, 20),
       .step = std::chrono::milliseconds(number(4, 1000))})
      .run();
  return 0;
}
