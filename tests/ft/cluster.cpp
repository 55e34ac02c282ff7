// SPDX-License-Identifier: Apache-2.0
//
// The script and the processes; cluster_run.cpp runs them.
#include "ft/cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <fstream>
#include <sstream>
#include <utility>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/process.h"
#include "ft/shifted_clock.h"

namespace sherd::ft::test {

using sherd::test::FaultProxy;
using sherd::test::FaultProxyOptions;
using std::chrono::milliseconds;

namespace {

// The last clock is the coordinator's.
constexpr int kCoordinatorsClock = kWallClocks - 1;
int wall_clock_of(ReplicaId replica) {
  return static_cast<int>(replica) % kCoordinatorsClock;
}

}  // namespace

Cluster::Cluster(const ClusterOptions& options)
    : segments_before_(segments()), options_(options), steps_(options.steps) {
  auto& coordinator = options_.coordinator;
  const auto& log_folder = options_.log_folder;
  coordinator.log = (log_folder.empty() ? memory_folder_.path() : log_folder) +
      "/coordinator.db";
  buckets_ = options_.buckets;
  coordinator.ready_file = folder_.path() + "/ready";
  coordinator.replicas_start = options_.replicas;
  coordinator.samples_per_replica = options_.samples;
  for (int clock = 0; clock < kWallClocks; ++clock) {
    shift_wall_clock(clock, Duration(0));
  }
  start_coordinator();
  make_links();
}

Cluster::~Cluster() {
  for (const auto& process : processes_) {
    if (!process->gone) {
      ::kill(process->life.pid, SIGKILL);
      ::waitpid(process->life.pid, nullptr, 0);
    }
  }
  for (const auto pid : coordinators_) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

void Cluster::make_links() {
  const auto replicas = static_cast<ReplicaId>(options_.replicas);
  const auto port = net::parse_host_address(options_.coordinator.bind).port;
  for (ReplicaId to = 0; to < replicas; ++to) {
    if (options_.links) {
      to_coordinator_[to] = std::make_unique<FaultProxy>(FaultProxyOptions{
          .target_port = port,
          .segments_lost_per_mille = options_.segments_lost_per_mille});
    }
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (options_.fetch_links) {
        fetch_links_[{to, rank}] =
            std::make_unique<FaultProxy>(FaultProxyOptions{});
      }
      for (ReplicaId from = 0; options_.links && from < replicas; ++from) {
        links_[{from, to, rank}] =
            std::make_unique<FaultProxy>(FaultProxyOptions{
                .segments_lost_per_mille = options_.segments_lost_per_mille});
      }
    }
  }
}

FaultProxy& Cluster::link(ReplicaId from, ReplicaId to, int rank) {
  return *links_.at({from, to, rank});
}
FaultProxy& Cluster::coordinator_link(ReplicaId replica) {
  return *to_coordinator_.at(replica);
}
FaultProxy& Cluster::fetch_link(ReplicaId donor, int rank) {
  return *fetch_links_.at({donor, rank});
}

void Cluster::part(ReplicaId one, ReplicaId other) {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    link(one, other, rank).set_both({.paused = true});
    link(other, one, rank).set_both({.paused = true});
  }
}

void Cluster::heal() {
  for (const auto& [key, proxy] : links_) {
    proxy->heal();
  }
  for (const auto& [key, proxy] : to_coordinator_) {
    proxy->heal();
  }
  for (const auto& [key, proxy] : fetch_links_) {
    proxy->heal();
  }
}

// ---- the script ----

void Cluster::at(const Trigger& moment, std::function<std::string()> act) {
  armed_.push_back(std::make_unique<ArmedTrigger>(
      ArmedTrigger{moment, std::move(act), false}));
}

void Cluster::kill_at(const Trigger& moment) {
  at(moment, [this, moment] {
    signal(moment.replica, moment.rank, SIGKILL);
    return std::string();
  });
}

void Cluster::stop_at(const Trigger& moment, milliseconds lasts) {
  at(moment, [this, moment, lasts] {
    signal(moment.replica, moment.rank, SIGSTOP);
    if (lasts > milliseconds(0)) {
      after(lasts, [this, moment] {
        signal(moment.replica, moment.rank, SIGCONT);
      });
    }
    return std::string();
  });
}

void Cluster::order_at(const Trigger& moment, const std::string& order) {
  at(moment, [order] { return order; });
}

void Cluster::when_held(std::int64_t step, std::function<void()> act) {
  when_held_.emplace(step, std::move(act));
}

void Cluster::after(Duration time, std::function<void()> act) {
  timers_.emplace(clock_.now() + time, std::move(act));
}

// ---- processes ----

void Cluster::start(ReplicaId replica) {
  to_start_.erase(replica);
  ++lives_[replica];
  const auto incarnation = ++incarnations_;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    fork_rank(replica, rank, incarnation);
  }
}

ToyRankOptions Cluster::rank_options(
    ReplicaId replica, int rank, Incarnation incarnation) const {
  ToyRankOptions options;
  options.replica = replica;
  options.incarnation = incarnation;
  options.rank = rank;
  options.ranks = options_.ranks;
  options.steps = &steps_;
  options.step_time = options_.step_time;
  options.buckets = buckets_;
  options.config = config_;
  options.fetch_bytes_per_s_max = options_.fetch_bytes_per_s_max;
  options.sums_bytes_max = options_.sums_bytes_max;
  options.warms_up = options_.warms_up;
  options.ballast_bytes = options_.ballast_bytes;
  options.digest_every = options_.digest_every;
  options.bad_gradients_stop = options_.bad_gradients_stop;
  options.coordinator = net::parse_host_address(options_.coordinator.bind);
  options.secret_file = options_.coordinator.secret_file;
  if (options_.links) {
    options.coordinator.port =
        static_cast<std::uint16_t>(to_coordinator_.at(replica)->port());
    options.route = [this, replica, rank](ReplicaId to, std::uint16_t port) {
      return to == replica
          ? port
          : static_cast<std::uint16_t>(links_.at({replica, to, rank})->port());
    };
  }
  for (const auto& armed : armed_) {
    const auto& moment = armed->moment;
    if (moment.replica == replica && moment.rank == rank &&
        moment.life == life_of(replica)) {
      options.armed.emplace(moment.point, moment.step);
    }
  }
  return options;
}

void Cluster::fork_rank(ReplicaId replica, int rank, Incarnation incarnation) {
  const auto options = rank_options(replica, rank, incarnation);
  int sockets[2] = {-1, -1};
  SHERD_CHECK(
      ::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0,
      "[cluster] expected a pair of sockets");
  Descriptor mine(sockets[0]);
  Descriptor its(sockets[1]);
  const std::string said =
      str(folder_.path(), "/replica", replica, ".", rank, ".txt");
  const auto ahead = ahead_[replica];
  const bool elsewhere = ahead.count() != 0;
  SHERD_CHECK(
      !elsewhere || set_monotonic_clock_ahead(ahead),
      "[cluster] expected a name space of time");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    use_wall_clock(wall_clock_of(replica));
    const Descriptor output(
        ::open(said.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
    ::dup2(output.get(), 2);
    ::_exit(run_toy_rank(options, its.get()));
  }
  SHERD_CHECK(pid > 0, "[cluster] expected a process");
  SHERD_CHECK(
      !elsewhere || set_monotonic_clock_ahead(std::chrono::seconds(0)),
      "[cluster] expected the usual name space of time");
  auto process = std::make_unique<Process>();
  process->life.replica = replica;
  process->life.rank = rank;
  process->life.life = life_of(replica);
  process->life.incarnation = incarnation;
  process->life.pid = pid;
  process->ahead = ahead;
  process->socket = std::move(mine);
  process->ended = open_pidfd(pid);
  processes_.push_back(std::move(process));
}

// The process of its last incarnation.
Cluster::Process* Cluster::process(ReplicaId replica, int rank) {
  for (auto at = processes_.rbegin(); at != processes_.rend(); ++at) {
    if ((*at)->life.replica == replica && (*at)->life.rank == rank) {
      return (*at)->gone ? nullptr : at->get();
    }
  }
  return nullptr;
}

std::vector<int> Cluster::ports() const {
  std::vector<int> ports = {
      net::parse_host_address(options_.coordinator.bind).port};
  for (const auto& process : processes_) {
    if (process->gone || process->life.trace.empty()) {
      continue;
    }
    std::istringstream in(process->life.trace.front().text);
    std::string host;
    in >> host;
    for (int port = 0; in >> port;) {
      ports.push_back(port);
    }
  }
  std::erase(ports, 0);
  return ports;
}

bool Cluster::lives(ReplicaId replica) const {
  return std::any_of(
      processes_.begin(), processes_.end(), [&](const auto& one) {
        return one->life.replica == replica && !one->gone;
      });
}

int Cluster::life_of(ReplicaId replica) const {
  const auto found = lives_.find(replica);
  return found == lives_.end() ? 0 : found->second;
}

void Cluster::signal(ReplicaId replica, int rank, int number) {
  if (auto* one = process(replica, rank)) {
    one->stopped = number == SIGSTOP || (one->stopped && number != SIGCONT);
    ::kill(one->life.pid, number);
  }
}

pid_t Cluster::pid_of(ReplicaId replica, int rank) {
  const auto* one = process(replica, rank);
  return one == nullptr ? -1 : one->life.pid;
}

void Cluster::wake(pid_t pid) {
  for (const auto& one : processes_) {
    if (one->life.pid == pid && !one->gone) {
      one->stopped = false;
      ::kill(pid, SIGCONT);
    }
  }
}

void Cluster::shift_wall_clock_of(ReplicaId replica, Duration by) {
  shift_wall_clock(wall_clock_of(replica), by);
}

void Cluster::shift_coordinators_wall_clock(Duration by) {
  shift_wall_clock(kCoordinatorsClock, by);
}

void Cluster::signal_all(ReplicaId replica, int number) {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    signal(replica, rank, number);
  }
}

void Cluster::start_coordinator() {
  ::unlink(options_.coordinator.ready_file.c_str());
  const std::string said = folder_.path() + "/coordinator.txt";
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Descriptor output(
        ::open(said.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
    ::dup2(output.get(), 2);
    use_wall_clock(kCoordinatorsClock);
    int status = 1;
    try {
      status = coordinate(options_.coordinator);
    } catch (const std::exception&) {
    }
    ::_exit(status);
  }
  coordinators_.push_back(pid);
  const Instant until = clock_.now() + std::chrono::seconds(10);
  while (::access(options_.coordinator.ready_file.c_str(), R_OK) != 0) {
    SHERD_CHECK(
        clock_.now() < until, "[cluster] expected a coordinator in time");
    ::poll(nullptr, 0, 1);
  }
  std::ifstream(options_.coordinator.ready_file) >> options_.coordinator.bind;
}

void Cluster::signal_coordinator(int number) {
  const pid_t pid = coordinators_.back();
  ::kill(pid, number);
  if (number == SIGKILL) {
    ::waitpid(pid, nullptr, 0);
    coordinators_.pop_back();
  }
}

bool Cluster::coordinator_lives() const {
  siginfo_t ended = {};
  const int looked = ::waitid(
      P_PID, static_cast<id_t>(coordinators_.back()), &ended,
      WEXITED | WNOHANG | WNOWAIT);
  SHERD_CHECK(looked == 0, "[cluster] expected a coordinator");
  return ended.si_pid == 0;
}

void Cluster::start_successor() {
  signal_coordinator(SIGSTOP);
  former_port_ = net::parse_host_address(options_.coordinator.bind).port;
  options_.coordinator.bind = "127.0.0.1:0";
  start_coordinator();
  const auto port = net::parse_host_address(options_.coordinator.bind).port;
  for (const auto& [replica, proxy] : to_coordinator_) {
    proxy->set_target_port(port);
    proxy->reset_connections();
  }
}

void Cluster::wake_former(ReplicaId replica) {
  ::kill(coordinators_.front(), SIGCONT);
  coordinator_link(replica).set_target_port(former_port_);
  coordinator_link(replica).reset_connections();
}

void Cluster::forget_former(ReplicaId replica) {
  coordinator_link(replica).set_target_port(
      net::parse_host_address(options_.coordinator.bind).port);
  coordinator_link(replica).reset_connections();
}

// Ends it in order, so that its log is complete.
void Cluster::end_coordinator() {
  for (const auto pid : coordinators_) {
    ::kill(pid, SIGCONT);
    ::kill(pid, SIGTERM);
    const Descriptor ended = open_pidfd(pid);
    pollfd polled{ended.get(), POLLIN, 0};
    if (::poll(&polled, 1, 5000) != 1) {
      ADD_FAILURE() << "the coordinator did not end";
      ::kill(pid, SIGKILL);
    }
    ::waitpid(pid, nullptr, 0);
  }
  coordinators_.clear();
}

}  // namespace sherd::ft::test
