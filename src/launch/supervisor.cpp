// SPDX-License-Identifier: Apache-2.0
#include "launch/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include "base/check.h"

namespace sherd::launch {
namespace {

constexpr Duration kSweepInterval = std::chrono::milliseconds(10);

// Replaces the variable of that name.
void set_variable(
    const std::string& entry, std::vector<std::string>& environment) {
  const std::string prefix = entry.substr(0, entry.find('=') + 1);
  std::erase_if(environment, [&](const std::string& other) {
    return other.starts_with(prefix);
  });
  environment.push_back(entry);
}

bool ends_jobs(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

}  // namespace

Supervisor::Supervisor(const Clock& clock)
    : clock_(clock),
      one_sink_(same_file(STDOUT_FILENO, STDERR_FILENO)),
      stdout_(STDOUT_FILENO),
      stderr_(STDERR_FILENO),
      nothing_(::open("/dev/null", O_RDWR | O_CLOEXEC)) {}

StartStatus Supervisor::start(SupervisedProcessSpec setup) {
  const auto before = children_.find(setup.slot);
  SHERD_ASSERT(before == children_.end() || before->second.process.pid() < 0);
  Child child = {
      .process = ChildProcess(-1, Descriptor()),
      .name = setup.name,
      .log = setup.log,
      .mark = orphans_.next_mark(),
      .streams = {},
      .last = std::make_unique<OutputTail>()};
  SHERD_ASSIGN_OR_RETURN(
      const ChildEnds until_started, open_streams(&setup, &child));
  set_variable(child.mark, setup.process.environment);
  SpawnResult started = spawn_process(setup.process, signals_.before());
  if (!started.process) {
    return started.exec_failed ? exec_failure(setup.process.path, started.error)
                               : cannot("start " + setup.name, started.error);
  }
  child.process = std::move(*started.process);
  children_.insert_or_assign(setup.slot, std::move(child));
  return {};
}

void Supervisor::rename(int slot, const std::string& prefix) {
  for (OutputForwarder& stream : children_.at(slot).streams) {
    stream.set_prefix(prefix);
  }
}

// Creates the streams of the child, and the launcher's ends of them.
Result<Supervisor::ChildEnds> Supervisor::open_streams(
    SupervisedProcessSpec* setup, Child* child) {
  ChildEnds ends_of_child;
  ProcessSpec& process = setup->process;
  // A background process that reads the terminal would be stopped.
  const bool reads_stdin = setup->reads_stdin && ::isatty(STDIN_FILENO) == 0;
  process.standard[0] = reads_stdin ? STDIN_FILENO : nothing_.get();
  if (!setup->log.empty()) {
    const int start = setup->continues_log ? 0 : O_TRUNC;
    ends_of_child[0] = Descriptor(::open(
        setup->log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | start,
        0666));
    if (!ends_of_child[0].open()) {
      return cannot(str("write '", setup->log, "'"));
    }
    process.standard[1] = process.standard[2] = ends_of_child[0].get();
    return ends_of_child;
  }
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    if (stream == STDOUT_FILENO && setup->owns_stdout) {
      process.standard[stream] = STDOUT_FILENO;
      continue;
    }
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      return cannot("start " + setup->name);
    }
    ends_of_child[stream] = Descriptor(ends[1]);
    process.standard[stream] = ends[1];
    child->streams.emplace_back(
        Descriptor(ends[0]), setup->prefix,
        stream == STDOUT_FILENO ? &stdout_ : &error_sink(), child->last.get());
  }
  return ends_of_child;
}

Supervisor::Events Supervisor::poll_once(
    const std::optional<Instant>& deadline, int also_fd) {
  std::vector<pollfd> polled = {
      {signals_.fd(), POLLIN, 0},
      {stdout_.pending() ? stdout_.fd() : -1, POLLOUT, 0},
      {stderr_.pending() ? stderr_.fd() : -1, POLLOUT, 0},
      {also_fd, POLLIN, 0}};
  for (const auto& [slot, child] : children_) {
    // Reaped processes need no event; their descriptors stay readable forever.
    const bool runs = child.process.pid() > 0;
    polled.push_back({runs ? child.process.exit_fd() : -1, POLLIN, 0});
    for (const OutputForwarder& stream : child.streams) {
      polled.push_back({stream.poll_fd(), POLLIN, 0});
    }
  }
  const int wait_ms = poll_ms(clock_.now(), earlier(deadline, sweep_at_));
  if (::poll(polled.data(), polled.size(), wait_ms) < 0) {
    SHERD_ASSERT(errno == EINTR, "poll: ", std::strerror(errno));
    return {};
  }
  if (polled[1].revents != 0) {
    stdout_.write_some();
  }
  if (polled[2].revents != 0) {
    stderr_.write_some();
  }
  bool ended = false;
  std::size_t next = 4;
  for (auto& [slot, child] : children_) {
    ended |= polled[next++].revents != 0;
    for (OutputForwarder& stream : child.streams) {
      if (polled[next++].revents != 0) {
        stream.read_some();
      }
      stream.close_if_sink_closed();
    }
  }
  Events events;
  events.readable = polled[3].revents != 0;
  if (polled[0].revents != 0) {
    events.signals = take_signals();
  }
  if (ended) {
    events.ends = reap_ended();
    sweep_until_ = clock_.now() + kOrphansTimeout;
  }
  if (ended || (sweep_at_ && clock_.now() >= *sweep_at_)) {
    sweep_orphans();
  }
  return events;
}

std::vector<int> Supervisor::take_signals() {
  std::vector<int> signals = signals_.take();
  if (std::erase(signals, SIGCHLD) > 0) {
    sweep_orphans();
  }
  return signals;
}

std::set<pid_t> Supervisor::own_processes() const {
  std::set<pid_t> own;
  for (const auto& [slot, child] : children_) {
    own.insert(child.process.pid());
  }
  return own;
}

void Supervisor::sweep_orphans() {
  std::set<std::string> living;
  for (const auto& [slot, child] : children_) {
    if (child.process.pid() > 0) {
      living.insert(child.mark);
    }
  }
  const int left = orphans_.sweep(own_processes(), living);
  const Instant now = clock_.now();
  sweep_at_ = left > 0 && now < sweep_until_
      ? std::optional(now + kSweepInterval)
      : std::nullopt;
}

void Supervisor::end_orphans() { orphans_.end_all(own_processes()); }

std::vector<RankExit> Supervisor::reap_ended() {
  std::vector<RankExit> ends;
  for (auto& [slot, child] : children_) {
    const std::optional<ProcessExit> end = child.process.try_reap();
    if (end) {
      for (OutputForwarder& stream : child.streams) {
        stream.drain();
      }
      const auto lines = output_tail(child).lines();
      ends.push_back(
          {.rank = slot,
           .exit_code = end->code,
           .signal = end->signal,
           .last_line = lines.empty() ? "" : lines.back(),
           .blames = blamed_rank(lines),
           .refused = is_refused(lines)});
    }
  }
  return ends;
}

void Supervisor::flush() {
  while (output_pending()) {
    const Events events = poll_once(std::nullopt);
    if (std::ranges::any_of(events.signals, ends_jobs)) {
      stdout_.abandon();
      stderr_.abandon();
    }
  }
}

void Supervisor::signal(int slot, const SignalRequest& action) const {
  const auto child = children_.find(slot);
  if (child == children_.end()) {
    return;
  }
  if (action.to == SignalTarget::kGroups) {
    child->second.process.signal_group(action.signal);
  } else {
    child->second.process.signal_process(action.signal);
  }
}

void Supervisor::kill_and_reap(const std::vector<int>& slots) {
  for (const int slot : slots) {
    signal(slot, {SIGKILL, SignalTarget::kGroups, ""});
  }
  const Instant deadline = clock_.now() + kKillTimeout;
  for (const int slot : slots) {
    const auto child = children_.find(slot);
    if (child == children_.end()) {
      continue;
    }
    ChildProcess& process = child->second.process;
    const pid_t pid = process.pid();
    if (!process.kill_and_reap(deadline - clock_.now())) {
      say_hangs(pid);
    }
    for (OutputForwarder& stream : child->second.streams) {
      stream.drain();
    }
  }
}

int Supervisor::give_up(const StartStatus& failure) {
  std::vector<int> slots;
  for (const auto& [slot, child] : children_) {
    slots.push_back(slot);
  }
  kill_and_reap(slots);
  end_orphans();
  say_error(failure.message());
  flush();
  return failure.exit_status();
}

void Supervisor::say(const std::string& sentence) {
  error_sink().add_line("sherd: ", sentence);
}

void Supervisor::say_error(const std::string& sentence) {
  error_sink().add_line("sherd: error: ", sentence);
}

OutputTail Supervisor::output_tail(const Child& child) {
  return child.log.empty() ? *child.last : tail_of_file(child.log);
}

void Supervisor::say_hangs(pid_t pid) {
  say_error(str("process ", pid, " hangs in the kernel and outlives SIGKILL"));
}

void Supervisor::report_output_tail(int slot) {
  const Child& child = children_.at(slot);
  const OutputTail last = output_tail(child);
  const std::string from = child.log.empty() ? "" : " in " + child.log;
  if (last.lines().empty()) {
    say(str(child.name, " wrote nothing", from));
    return;
  }
  say(str("the last lines of ", child.name, from, ":"));
  for (const std::string& line : last.lines()) {
    error_sink().add_line("    ", line);
  }
}

void Supervisor::report_problems() {
  for (const auto& [slot, child] : children_) {
    if (child.process.pid() > 0) {
      say_hangs(child.process.pid());
    }
  }
  // Nobody would see a message about stderr.
  if (stdout_.error() != 0) {
    say_error(
        str("cannot write to standard output: ", std::strerror(stdout_.error()),
            "; output of the ranks was lost"));
  }
}

int Supervisor::exit_status(int of_job) const {
  const bool lost = stdout_.error() != 0 || stderr_.error() != 0;
  return of_job == 0 && lost ? 1 : of_job;
}

}  // namespace sherd::launch
