// SPDX-License-Identifier: Apache-2.0
#include "launch/job.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>
#include "base/check.h"
#include "launch/cores.h"
#include "launch/port.h"
#include "launch/rank_variables.h"

namespace sherd::launch {
namespace {

StopPolicyOptions policy_options(const LaunchOptions& options) {
  StopPolicyOptions result;
  result.ranks = options.ranks;
  result.stop_grace = options.stop_grace;
  return result;
}

Status unavailable(const std::string& what) {
  return Status(
      ErrorCode::kUnavailable, str(what, ": ", std::strerror(errno)));
}

bool ends_jobs(int signal) { return signal != SIGUSR1 && signal != SIGUSR2; }

}  // namespace

Job::Job(const LaunchOptions& options, const Clock& clock)
    : options_(options),
      clock_(clock),
      one_sink_(same_file(STDOUT_FILENO, STDERR_FILENO)),
      stdout_(STDOUT_FILENO),
      stderr_(STDERR_FILENO),
      nothing_(::open("/dev/null", O_RDWR | O_CLOEXEC)),
      policy_(policy_options(options)) {}

int Job::run() {
  const int failed = start_all();
  watch();
  if (failed != 0) {
    return failed;
  }
  report();
  watch();
  return policy_.exit_status();
}

int Job::start_all() {
  const auto path = find_variable(options_.environment, "PATH");
  const Program program = find_program(
      options_.command.front(), path.value_or("/usr/local/bin:/usr/bin:/bin"));
  if (program.path.empty()) {
    return give_up_start(program.failure);
  }
  const Status logs = prepare_logs();
  if (!logs.ok()) {
    return give_up_start({1, logs.message()});
  }
  const Result<int> port = choose_port();
  if (!port.ok()) {
    return give_up_start({1, port.status().message()});
  }
  return start_ranks(program.path, port.value());
}

int Job::start_ranks(const std::string& path, int port) {
  const std::vector<Core> cores = usable_cores();
  std::vector<std::vector<int>> division;
  if (options_.bind_cores) {
    division = divide_cores(cores, options_.ranks);
  }
  RankPlace place = {
      .ranks = options_.ranks,
      .fake_hosts = options_.fake_hosts,
      .port = port,
      .cores = static_cast<int>(cores.size())};
  for (; place.rank < place.ranks; ++place.rank) {
    RankSetup setup = {
        .rank = place.rank,
        .path = path,
        .command = options_.command,
        .variables = variables_of_rank(options_.environment, place),
        .cores = {}};
    if (!division.empty()) {
      setup.cores = division[static_cast<std::size_t>(place.rank)];
    }
    const StartFailure failure = start_one(std::move(setup));
    if (!failure.message.empty()) {
      return give_up_start(failure);
    }
  }
  return 0;
}

Status Job::prepare_logs() {
  if (options_.output != RankOutput::kFiles) {
    return {};
  }
  std::error_code error;
  std::filesystem::create_directories(options_.log_dir, error);
  if (error) {
    return Status(
        ErrorCode::kUnavailable,
        str("cannot make the folder of the logs, '", options_.log_dir, "': ",
            error.message()));
  }
  say(options_.ranks == 1
          ? "the output of rank 0 goes to " + log_path(0)
          : "the output of the ranks goes to " + log_path(0) + " to " +
              log_path(options_.ranks - 1));
  return {};
}

Result<int> Job::choose_port() const {
  if (options_.port == 0) {
    return find_free_port(static_cast<std::uint64_t>(::getpid()));
  }
  const Status free = check_port_free(options_.port);
  if (!free.ok()) {
    return free;
  }
  return options_.port;
}

StartFailure Job::start_one(RankSetup setup) {
  auto last = std::make_unique<LastLines>();
  Result<Channels> channels = open_channels(&setup, last.get());
  if (!channels.ok()) {
    return {1, channels.status().message()};
  }
  Channels opened = std::move(channels).value();
  StartOutcome started = start_rank(setup, signals_);
  if (!started.process) {
    return started.failure;
  }
  ranks_.push_back(
      {std::move(*started.process), std::move(opened.streams),
       std::move(last)});
  return {0, ""};
}

// Where the rank reads and writes, and the launcher's ends of that.
Result<Job::Channels> Job::open_channels(RankSetup* setup, LastLines* last) {
  Channels channels;
  Descriptor* to_close = channels.to_close_after_start;
  // A background process that reads the terminal would be stopped.
  const bool reads_stdin = setup->rank == 0 && ::isatty(STDIN_FILENO) == 0;
  setup->stdin_fd = reads_stdin ? STDIN_FILENO : nothing_.get();
  if (options_.output == RankOutput::kFiles) {
    const std::string path = log_path(setup->rank);
    to_close[0] = Descriptor(::open(
        path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC,
        0666));
    if (!to_close[0].open()) {
      return unavailable(str("cannot write '", path, "'"));
    }
    setup->stdout_fd = setup->stderr_fd = to_close[0].get();
    return channels;
  }
  if (setup->rank == 0 && options_.rank0_owns_stdout) {
    setup->stdout_fd = STDOUT_FILENO;
  } else {
    const Status opened = open_pipe(
        &setup->stdout_fd, &to_close[1], &stdout_, *setup, last,
        &channels.streams);
    if (!opened.ok()) {
      return opened;
    }
  }
  const Status opened = open_pipe(
      &setup->stderr_fd, &to_close[2], &error_sink(), *setup, last,
      &channels.streams);
  if (!opened.ok()) {
    return opened;
  }
  return channels;
}

Status Job::open_pipe(
    int* child_fd, Descriptor* child_end, Sink* to, const RankSetup& setup,
    LastLines* last, std::vector<RankStream>* streams) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return unavailable(str("cannot start rank ", setup.rank));
  }
  *child_end = Descriptor(ends[1]);
  *child_fd = ends[1];
  streams->emplace_back(
      Descriptor(ends[0]),
      options_.output == RankOutput::kPrefixed
          ? str("[rank ", setup.rank, "] ")
          : "",
      to, last);
  return {};
}

int Job::give_up_start(const StartFailure& failure) {
  for (Rank& rank : ranks_) {
    rank.process.kill_and_reap();
  }
  ranks_.clear();
  say_error(failure.message);
  return failure.exit_status;
}

// Until all ranks have ended and all that they wrote is passed on.
void Job::watch() {
  while ((!ranks_.empty() && !policy_.finished()) || output_pending()) {
    poll_once();
  }
}

void Job::poll_once() {
  std::vector<pollfd> polled = {
      {signals_.fd(), POLLIN, 0},
      {stdout_.pending() ? stdout_.fd() : -1, POLLOUT, 0},
      {stderr_.pending() ? stderr_.fd() : -1, POLLOUT, 0}};
  for (const Rank& rank : ranks_) {
    // Reaped ranks need no event; their descriptor stays readable for ever.
    const bool runs = rank.process.pid() > 0;
    polled.push_back({runs ? rank.process.exit_fd() : -1, POLLIN, 0});
    for (const RankStream& stream : rank.streams) {
      polled.push_back({stream.poll_fd(), POLLIN, 0});
    }
  }
  if (::poll(polled.data(), polled.size(), poll_timeout_ms()) < 0) {
    SHERD_ASSERT(errno == EINTR, "poll: ", std::strerror(errno));
    return;
  }
  if (polled[1].revents != 0) {
    stdout_.write_some();
  }
  if (polled[2].revents != 0) {
    stderr_.write_some();
  }
  bool ended = false;
  std::size_t next = 3;
  for (Rank& rank : ranks_) {
    ended |= polled[next++].revents != 0;
    for (RankStream& stream : rank.streams) {
      if (polled[next++].revents != 0) {
        stream.read_some();
      }
      stream.close_if_sink_closed();
    }
  }
  if (polled[0].revents != 0) {
    handle_signals();
  }
  if (ended) {
    reap_ended();
  }
  carry_out(policy_.time_passed(clock_.now()));
}

int Job::poll_timeout_ms() const {
  const std::optional<Instant> deadline = policy_.deadline();
  if (!deadline) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      std::max(Duration(0), *deadline - clock_.now()));
  return static_cast<int>(std::min<std::int64_t>(
      left.count(), std::numeric_limits<int>::max()));
}

void Job::handle_signals() {
  for (const int signal : signals_.take()) {
    if (policy_.finished() && ends_jobs(signal)) {
      // Only output is left, and its reader does not take it.
      stdout_.abandon();
      stderr_.abandon();
    }
    carry_out(policy_.signal_received(signal, clock_.now()));
  }
}

void Job::reap_ended() {
  std::vector<RankEnd> ends;
  for (Rank& rank : ranks_) {
    const std::optional<RankEnd> end = rank.process.try_reap();
    if (end) {
      ends.push_back(*end);
      for (RankStream& stream : rank.streams) {
        stream.drain();
      }
    }
  }
  carry_out(policy_.ranks_ended(ends, clock_.now()));
}

void Job::carry_out(const std::optional<Order>& order) {
  if (!order) {
    return;
  }
  say(order->reason);
  for (const Rank& rank : ranks_) {
    if (order->to == Recipients::kRanks) {
      rank.process.signal_rank(order->signal);
    } else {
      rank.process.signal_group(order->signal);
    }
  }
}

bool Job::output_pending() const {
  return stdout_.pending() || stderr_.pending();
}

void Job::report() {
  if (policy_.running() > 0) {
    for (const Rank& rank : ranks_) {
      if (rank.process.pid() > 0) {
        say_error(
            str("process ", rank.process.pid(),
                " hangs in the kernel and outlives SIGKILL"));
      }
    }
  }
  for (const Sink* sink : {&stdout_, &stderr_}) {
    if (sink->error() != 0) {
      say_error(
          str("output of the ranks was lost: ",
              std::strerror(sink->error())));
    }
  }
  const std::optional<RankEnd>& failure = policy_.first_failure();
  if (failure) {
    const char* when = policy_.stop_signal() != 0
        ? " after it was told to end"
        : options_.ranks > 1 ? " and was the first to fail" : "";
    const char* hint = failure->signal == SIGKILL
        ? "; the kernel sends it too, when memory runs out"
        : "";
    say_error(describe(*failure) + when + hint);
    report_last_lines(failure->rank);
  }
}

void Job::report_last_lines(int rank) {
  const bool in_file = options_.output == RankOutput::kFiles;
  const LastLines last = in_file
      ? last_lines_of_file(log_path(rank))
      : *ranks_[static_cast<std::size_t>(rank)].last;
  const std::string from = in_file ? " in " + log_path(rank) : "";
  if (last.lines().empty()) {
    say(str("rank ", rank, " wrote nothing", from));
    return;
  }
  say(str("the last lines of rank ", rank, from, ":"));
  for (const std::string& line : last.lines()) {
    error_sink().add_line("    ", line);
  }
}

void Job::say(const std::string& sentence) {
  error_sink().add_line("sherd: ", sentence);
}

void Job::say_error(const std::string& sentence) {
  error_sink().add_line("sherd: error: ", sentence);
}

std::string Job::log_path(int rank) const {
  return str(options_.log_dir, "/rank-", rank, ".log");
}

}  // namespace sherd::launch
