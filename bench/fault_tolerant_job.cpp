// SPDX-License-Identifier: Apache-2.0
#include "bench/fault_tolerant_job.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <sherd/base/error.h>
#include "bench/step_gate.h"
#include "launch/restart_policy.h"
#include "text_file.h"

namespace sherd::bench {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Reading takes processor time from the ranks; the lines that are read have times of their own.
constexpr milliseconds kLogTick(50);
// More than any run makes, and few enough bytes for a file.
constexpr std::int64_t kAllSteps = 1'000'000'000;

std::string make_folder(const std::string& given) {
  std::error_code error;
  std::string path = given;
  if (given.empty()) {
    path = (fs::temp_directory_path() / "sherd-bench-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      error = std::error_code(errno, std::system_category());
    }
  } else {
    fs::create_directories(path, error);
  }
  if (!error && !given.empty() && !fs::is_empty(path, error)) {
    throw Error("[bench] --folder: expected an empty one, found " + given);
  }
  if (error) {
    throw Error(
        "[bench] cannot make the folder " + path + ": " + error.message(),
        ErrorCode::kUnavailable);
  }
  return path;
}

// The child of that process that runs the program of that name, or 0.
int child_that_runs(pid_t parent, const std::string& program) {
  const std::string of_parent = "\nPPid:\t" + std::to_string(parent) + "\n";
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    const auto name = entry.path().filename().string();
    const bool number = std::all_of(
        name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    const auto status =
        number ? tools::text_of_file(entry.path() / "status") : std::nullopt;
    if (status && status->find(of_parent) != std::string::npos &&
        fs::read_symlink(entry.path() / "exe", error).filename() == program) {
      return std::atoi(name.c_str());
    }
  }
  return 0;
}

// `tiny` is for looks at states, and a machine that stalls for seconds loses no replica by that.
// Kills are noticed by closed connections, so gaps are as long.
std::vector<std::string> coordinator_flags_of(const FaultsConfig& config) {
  if (config.work != "tiny") {
    return {};
  }
  return {"--dead-after",        "10", "--join-timeout", "10",
          "--reconnect-timeout", "10", "--vote-timeout", "20"};
}

}  // namespace

FaultTolerantJob::FaultTolerantJob(
    const std::string& folder, const SignalFd& signals)
    : signals_(signals),
      folder_is_temporary_(folder.empty()),
      folder_(make_folder(folder)),
      files_(folder_) {}

// Delegates, so that the destructor removes the folder when the rest throws.
FaultTolerantJob::FaultTolerantJob(
    const FaultsConfig& config,
    const StepPrograms& programs,
    const SignalFd& signals)
    : FaultTolerantJob(config.folder, signals) {
  if (config.cost) {
    gate_ = folder_ + "/gate";
    open_gate_until(gate_, 0);
  }
  start(config, programs);
}

void FaultTolerantJob::start(
    const FaultsConfig& config, const StepPrograms& programs) {
  const std::string log = folder_ + "/log";
  const Descriptor in(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const Descriptor out(
      ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  SpawnResult started;
  started.error = errno;
  if (in.open() && out.open()) {
    started = spawn_process(
        {.path = programs.sherd,
         .command = command_of(config, programs),
         .environment = contender_environment(programs.environment, "kept"),
         .standard = {in.get(), out.get(), out.get()}},
        signals_.before());
  }
  if (!started.process) {
    throw Error(
        std::string("[bench] cannot start replicas: ") +
            std::strerror(started.error),
        ErrorCode::kUnavailable);
  }
  launcher_ = std::move(started.process);
}

std::vector<std::string> FaultTolerantJob::command_of(
    const FaultsConfig& config, const StepPrograms& programs) const {
  const auto work = workload_of(config);
  std::vector<std::string> command = {
      programs.sherd,
      "run",
      "--fault-tolerant",
      "--replicas",
      std::to_string(config.shape.replicas),
      "--ranks-per-replica",
      std::to_string(config.shape.ranks),
      "--samples-per-replica",
      std::to_string(work.batch * config.shape.ranks),
      "--run-dir",
      folder_ + "/run",
      "--max-restarts",
      "1000000",
      "--grace",
      kGraceSeconds};
  const auto add = [&](const std::vector<std::string>& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  add(coordinator_flags_of(config));
  add(
      {"--", programs.rank, "--contender", "replica", "--exchange",
       config.exchange, "--folder", folder_});
  if (config.cost) {
    add({"--gate", gate_});
  } else {
    add({"--hash-every", config.work == "tiny" ? "1" : "5"});
  }
  add(flags_of(work));
  return command;
}

FaultTolerantJob::~FaultTolerantJob() {
  if (launcher_) {
    launcher_->kill_and_reap();
  }
  if (folder_is_temporary_) {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
}

void FaultTolerantJob::fail(const std::string& what) const {
  throw Error(
      "[bench] the fault-tolerant run " + what + "; " +
          last_lines_of(tools::text_of_file(folder_ + "/log").value_or("")),
      ErrorCode::kUnavailable);
}

bool FaultTolerantJob::has_ended() {
  if (const auto end = launcher_->try_reap()) {
    exit_status_ = end->status();
  }
  return exit_status_.has_value();
}

void FaultTolerantJob::pause(double seconds) const {
  const auto until =
      steady_clock::now() + std::chrono::duration<double>(seconds);
  for (;;) {
    const auto rest =
        std::chrono::duration<double>(until - steady_clock::now());
    pollfd event = {signals_.fd(), POLLIN, 0};
    ::poll(&event, 1, static_cast<int>(std::max(0.0, rest.count() * 1e3)));
    stop_if_interrupted(signals_);
    if (rest.count() <= 0) {
      return;
    }
  }
}

void FaultTolerantJob::wait_until(
    const std::string& what,
    std::chrono::seconds deadline,
    const std::function<bool()>& done) {
  const auto until = steady_clock::now() + deadline;
  for (;;) {
    files_.read();
    if (done()) {
      return;
    }
    if (has_ended()) {
      fail("ended with exit status " + std::to_string(*exit_status_));
    }
    if (steady_clock::now() > until) {
      fail(
          "was waited for in vain: " + what + ", for " +
          std::to_string(deadline.count()) + " s");
    }
    pause(std::chrono::duration<double>(kLogTick).count());
  }
}

double FaultTolerantJob::kill_process(int process, const std::string& what) {
  if (process <= 0 || ::kill(process, SIGKILL) != 0) {
    fail("has no process to be killed: " + what);
  }
  return monotonic_s();
}

double FaultTolerantJob::kill_rank(int replica, int rank) {
  files_.read();
  int process = 0;
  double begun_s = 0.0;
  for (const auto& log : logs()) {
    if (log.replica == replica && log.rank == rank && !log.lines.empty() &&
        log.lines.front().time_s > begun_s) {
      process = log.process;
      begun_s = log.lines.front().time_s;
    }
  }
  return kill_process(
      process,
      "rank " + std::to_string(rank) + " of replica " +
          std::to_string(replica));
}

double FaultTolerantJob::kill_coordinator() {
  return kill_process(
      child_that_runs(launcher_->pid(), "sherd-coordinate"), "the coordinator");
}

void FaultTolerantJob::open_until(std::int64_t step) {
  open_gate_until(gate_, step);
}

void FaultTolerantJob::end(std::chrono::seconds deadline) {
  launcher_->signal_process(SIGUSR1);
  if (!gate_.empty()) {
    open_until(kAllSteps);
  }
  const auto until = steady_clock::now() + deadline;
  while (!has_ended()) {
    if (steady_clock::now() > until) {
      fail("did not end in time");
    }
    pause(std::chrono::duration<double>(kLogTick).count());
  }
  // They were asked to leave, before or after their last step.
  if (*exit_status_ != 0 && *exit_status_ != launch::kAllLeft) {
    fail("ended with exit status " + std::to_string(*exit_status_));
  }
}

}  // namespace sherd::bench
