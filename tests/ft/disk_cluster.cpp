// SPDX-License-Identifier: Apache-2.0
#include "ft/disk_cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>
#include <gtest/gtest.h>

#include "base/check.h"
#include "ft/outcome.h"
#include "ft/protocol/identity.h"
#include "support/ranks.h"

namespace sherd::ft::test {
namespace {

constexpr Duration kPatience = std::chrono::seconds(60);

std::pair<Descriptor, Descriptor> make_pipe() {
  int ends[2] = {-1, -1};
  SHERD_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "[disk] expected a pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

void redirect(const std::string& path) {
  const Descriptor output(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  ::dup2(output.get(), STDERR_FILENO);
}

}  // namespace

DiskCluster::DiskCluster(const DiskClusterOptions& options)
    : options_(options),
      folder_(
          options.folder.empty() ? scratch_.emplace().path() : options.folder),
      kills_left_(options.kills_max) {
  std::tie(told_, tell_) = make_pipe();
  std::tie(waits_, release_) = make_pipe();
  std::filesystem::create_directories(folder_);
  checkpoints = folder_ + "/run/checkpoints";
  coordinator.log = folder_ + "/coordinator.db";
  coordinator.ready_file = folder_ + "/ready";
  coordinator.replicas_start = options_.replicas;
  coordinator.samples_per_replica = options_.ranks;
  // The connections of dead processes are closed.
  coordinator.dead_after = std::chrono::seconds(10);
  steps = options_.steps;
  start_coordinator();
}

DiskCluster::~DiskCluster() {
  kill_all();
  kill_coordinator();
}

// ---- processes ----

void DiskCluster::start_coordinator() {
  ::unlink(coordinator.ready_file.c_str());
  coordinator_ = ::fork();
  if (coordinator_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    redirect(folder_ + "/said.txt");
    release_.close();
    ::_exit(coordinate(coordinator));
  }
  const SteadyClock clock;
  const Instant until = clock.now() + kPatience;
  while (::access(coordinator.ready_file.c_str(), R_OK) != 0) {
    SHERD_CHECK(clock.now() < until, "[disk] expected a coordinator in time");
    ::poll(nullptr, 0, 1);
  }
  std::ifstream(coordinator.ready_file) >> coordinator.bind;
}

void DiskCluster::kill_coordinator() {
  if (coordinator_ > 0) {
    ::kill(coordinator_, SIGKILL);
    ::waitpid(std::exchange(coordinator_, -1), nullptr, 0);
  }
}

void DiskCluster::start(int replica) {
  DiskRankOptions options;
  options.replica = replica;
  options.replicas = options_.replicas;
  options.ranks = options_.ranks;
  options.port = sherd::test::free_port();
  options.life = ++lives_[replica];
  options.steps = steps;
  options.save_every = options_.save_every;
  options.keep = options_.keep;
  options.coordinator = coordinator.bind;
  const auto own = checkpoints_of.find(replica);
  options.folder = own == checkpoints_of.end() ? checkpoints : own->second;
  options.width = width;
  options.nan_at = replica == 1 ? options_.nan_at : 0;
  options.flip_at = replica == 1 ? options_.flip_at : 0;
  if (options.life == 1) {
    options.fault = options_.fault;
    options.fault_at = options_.fault_at;
    options.kills_left = &kills_left_;
  }
  options.on_devices = options_.on_devices;
  const int processes = options_.on_devices ? 1 : options_.ranks;
  for (options.rank = 0; options.rank < processes; ++options.rank) {
    fork_rank(options);
  }
}

void DiskCluster::kill(int replica) {
  std::erase_if(processes_, [&](const Process& one) {
    if (one.replica == replica) {
      ::kill(one.pid, SIGKILL);
      ::waitpid(one.pid, nullptr, 0);
    }
    return one.replica == replica;
  });
}

void DiskCluster::fork_rank(const DiskRankOptions& given) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    redirect(folder_ + "/said.txt");
    release_.close();
    auto options = given;
    options.tell = tell_.get();
    options.release = waits_.get();
    ::_exit(run_disk_rank(options));
  }
  SHERD_CHECK(pid > 0, "[disk] expected a process");
  processes_.push_back({given.replica, given.rank, given.life, pid});
}

void DiskCluster::start_all() {
  for (int replica = 0; replica < options_.replicas; ++replica) {
    start(replica);
  }
}

void DiskCluster::kill_all() {
  for (const auto& one : processes_) {
    ::kill(one.pid, SIGKILL);
  }
  for (const auto& one : std::exchange(processes_, {})) {
    ::waitpid(one.pid, nullptr, 0);
  }
  hear();
}

void DiskCluster::reap() {
  std::set<std::pair<int, int>> lost;  // Replicas and their lives.
  for (auto one = processes_.begin(); one != processes_.end();) {
    if (::waitpid(one->pid, nullptr, WNOHANG) == one->pid) {
      hear();
      if (!done_.contains({one->replica, one->rank})) {
        lost.emplace(one->replica, one->life);
      }
      one = processes_.erase(one);
    } else {
      ++one;
    }
  }
  for (auto one = processes_.begin(); one != processes_.end();) {
    if (lost.contains({one->replica, one->life})) {
      ::kill(one->pid, SIGKILL);
      ::waitpid(one->pid, nullptr, 0);
      one = processes_.erase(one);
    } else {
      ++one;
    }
  }
  for (const auto& [replica, life] : lost) {
    if (restarts_) {
      start(replica);
    }
  }
}

// ---- reports of processes ----

void DiskCluster::hear() {
  ::fcntl(told_.get(), F_SETFL, O_NONBLOCK);
  char bytes[65536];
  for (;;) {
    const auto count = ::read(told_.get(), bytes, sizeof bytes);
    if (count <= 0) {
      return;
    }
    heard_.append(bytes, static_cast<std::size_t>(count));
    for (auto end = heard_.find('\n'); end != std::string::npos;
         end = heard_.find('\n')) {
      heard(heard_.substr(0, end));
      heard_.erase(0, end + 1);
    }
  }
}

void DiskCluster::heard(const std::string& line) {
  std::istringstream in(line);
  int replica = 0;
  int rank = 0;
  int life = 0;
  std::string what;
  in >> replica >> rank >> life >> what >> std::ws;
  std::string rest;
  std::getline(in, rest);
  if (what == "made") {
    made_ = std::max<std::int64_t>(made_, std::stoll(rest));
  } else if (what == "done") {
    done_.insert({replica, rank});
  } else if (what == "failed") {
    failures_[replica] = rest;
  } else {
    const auto space = rest.find(' ');
    const auto name = rest.substr(space + 1);
    const auto hash = rest.substr(0, space);
    const auto [known, added] = hashes_.emplace(str(rank, ' ', name), hash);
    // Equal names must mean equal bits.
    EXPECT_EQ(known->second, hash) << line;
    if (what == "holds" && rank == 0) {
      held_[{replica, life}] = state_named(name).step;
    }
    if (what == "loaded" && rank == 0) {
      loaded_.push_back(name);
    }
  }
}

bool DiskCluster::run_until(const std::function<bool()>& enough) {
  const SteadyClock clock;
  const Instant until = clock.now() + kPatience;
  for (;;) {
    hear();
    reap();
    if (enough()) {
      return true;
    }
    if (clock.now() > until) {
      ADD_FAILURE() << "not in time, at step " << made_ << ":\n"
                    << said() << failure_of_any();
      return false;
    }
    pollfd polled = {told_.get(), POLLIN, 0};
    ::poll(&polled, 1, 10);
  }
}

bool DiskCluster::run_until_made(std::int64_t step) {
  return run_until([&] { return made_ >= step; });
}

bool DiskCluster::run_until_done() {
  return run_until([&] {
    return done_.size() ==
        static_cast<std::size_t>(options_.replicas * options_.ranks) &&
        processes_.empty();
  });
}

bool DiskCluster::run_until_failed(int replica) {
  return run_until([&] { return failures_.contains(replica); });
}

// ---- questions ----

std::string DiskCluster::failure_of_any() const {
  std::string all;
  for (const auto& [replica, why] : failures_) {
    all += str("replica ", replica, ": ", why, '\n');
  }
  return all;
}

std::string DiskCluster::failure_of(int replica) const {
  const auto found = failures_.find(replica);
  return found == failures_.end() ? "" : found->second;
}

std::int64_t DiskCluster::held_by(int replica) const {
  const auto found = held_.find({replica, lives_.at(replica)});
  return found == held_.end() ? -1 : found->second;
}

std::string DiskCluster::hash_at(std::int64_t step, int rank) const {
  const auto begin = str(rank, " step ", step, " of ");
  const auto found = hashes_.lower_bound(begin);
  return found != hashes_.end() && found->first.starts_with(begin)
      ? found->second
      : "";
}

int DiskCluster::life_of(int replica) const { return lives_.at(replica); }

std::string DiskCluster::path_of(std::int64_t step) const {
  return str(checkpoints, "/step-", step);
}

bool DiskCluster::saved(std::int64_t step) const {
  return std::filesystem::exists(path_of(step));
}

std::string DiskCluster::said() const {
  std::ifstream in(folder_ + "/said.txt");
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<Record> DiskCluster::log() {
  kill_coordinator();
  return records_of(coordinator.log);
}

}  // namespace sherd::ft::test
