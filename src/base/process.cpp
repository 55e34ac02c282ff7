// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include "base/check.h"

namespace sherd {
namespace {

// exec needs arrays of pointers. They are made before fork, because allocating after it could wait
// for a lock that no thread of the child will release.
std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& text : strings) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

cpu_set_t core_set(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    CPU_SET(core, &set);
  }
  return set;
}

struct ExecArguments {
  std::vector<char*> command;
  std::vector<char*> environment;
  cpu_set_t cores;
  pid_t parent;
  int error_fd;  // Closed by exec; gets errno if exec fails.
};

// Runs in the child; uses only calls that are safe between fork and exec.
[[noreturn]] void exec_child(
    const ProcessSpec& spec,
    const ExecArguments& arguments,
    const SignalState& signals) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // If the parent died before the call above, the child was not told.
  if (::getppid() != arguments.parent) {
    ::_exit(128 + SIGKILL);
  }
  ::setpgid(0, 0);
  if (!spec.cores.empty()) {
    // If this is refused, it costs speed, not correctness.
    ::sched_setaffinity(0, sizeof arguments.cores, &arguments.cores);
  }
  ::dup2(spec.standard[0], STDIN_FILENO);
  ::dup2(spec.standard[1], STDOUT_FILENO);
  ::dup2(spec.standard[2], STDERR_FILENO);
  if (spec.inherited_fd >= 0) {
    ::fcntl(spec.inherited_fd, F_SETFD, 0);
  }
  if (::isatty(STDOUT_FILENO) == 1) {
    // The child is in the background of the terminal that it owns; without this, configuring the
    // terminal would stop it.
    ::signal(SIGTTOU, SIG_IGN);
  }
  ::signal(SIGXFSZ, SIG_DFL);  // run_main() ignores it.
  signals.restore();
  ::execve(
      spec.path.c_str(), arguments.command.data(),
      arguments.environment.data());
  const int error = errno;
  [[maybe_unused]] const auto written =
      ::write(arguments.error_fd, &error, sizeof error);
  ::_exit(126);
}

// errno of the child's exec, or 0 if its program runs, which closes the other end.
int exec_error(int fd) {
  int error = 0;
  ssize_t count = 0;
  do {
    count = ::read(fd, &error, sizeof error);
  } while (count < 0 && errno == EINTR);
  return count == sizeof error ? error : 0;
}

}  // namespace

Descriptor open_pidfd(int pid) {
  // Debian 12's libc headers lack the wrapper.
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
}

std::uint64_t process_stat(int pid, int field) {
  std::ifstream file(str("/proc/", pid, "/stat"));
  std::string all;
  // Unlike an iterator over the file, this does not throw if the process goes meanwhile.
  std::getline(file, all, '\0');
  // The second field is the program's name in parentheses and may itself hold spaces and
  // parentheses.
  const auto name_end = all.rfind(')');
  if (name_end == std::string::npos) {
    return 0;
  }
  std::istringstream rest(all.substr(name_end + 1));
  std::string skipped;
  for (int i = 3; i < field; ++i) {
    rest >> skipped;
  }
  std::uint64_t value = 0;
  return rest >> value ? value : 0;
}

SignalState SignalState::current() {
  SignalState state;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &state.mask);
  ::sigaction(SIGPIPE, nullptr, &state.pipe);
  ::sigaction(SIGCHLD, nullptr, &state.child);
  return state;
}

void SignalState::restore() const {
  ::sigaction(SIGPIPE, &pipe, nullptr);
  ::sigaction(SIGCHLD, &child, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

void ChildProcess::signal_process(int signal) const {
  if (pid_ > 0) {
    ::kill(pid_, signal);
  }
}

void ChildProcess::signal_group(int signal) const {
  if (pid_ > 0) {
    ::kill(-pid_, signal);
  }
}

std::optional<ProcessExit> ChildProcess::reap(int flags) {
  if (pid_ <= 0) {
    return std::nullopt;
  }
  siginfo_t info = {};
  const auto id = static_cast<id_t>(pid_);
  int failed = 0;
  do {
    failed = ::waitid(P_PID, id, &info, WEXITED | WNOWAIT | flags);
  } while (failed != 0 && errno == EINTR);
  if (failed != 0 || info.si_pid == 0) {
    return std::nullopt;
  }
  // Before reaping, because until then the number certainly belongs to this group.
  signal_group(SIGKILL);
  ::waitid(P_PID, id, &info, WEXITED);
  pid_ = -1;
  const bool exited = info.si_code == CLD_EXITED;
  return ProcessExit{
      .code = exited ? info.si_status : 0,
      .signal = exited ? 0 : info.si_status};
}

std::optional<ProcessExit> ChildProcess::try_reap() { return reap(WNOHANG); }

ProcessExit ChildProcess::wait() {
  return reap(0).value_or(ProcessExit{.code = 1});
}

bool ChildProcess::kill_and_reap(Duration timeout) {
  signal_group(SIGKILL);
  if (pid_ > 0 && exit_event_.open()) {
    const SteadyClock clock;
    const Instant deadline = clock.now() + timeout;
    pollfd polled = {exit_event_.get(), POLLIN, 0};
    while (::poll(&polled, 1, poll_ms(clock.now(), deadline)) < 0 &&
           errno == EINTR) {
    }
  }
  const bool ended = pid_ <= 0 || reap(exit_event_.open() ? WNOHANG : 0);
  pid_ = -1;
  return ended;
}

SpawnResult spawn_process(const ProcessSpec& spec, const SignalState& signals) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return {std::nullopt, errno};
  }
  const Descriptor error_in(ends[0]);
  Descriptor error_out(ends[1]);
  const ExecArguments arguments = {
      pointers(spec.command), pointers(spec.environment), core_set(spec.cores),
      ::getpid(), error_out.get()};
  const pid_t pid = ::fork();
  if (pid < 0) {
    return {std::nullopt, errno};
  }
  if (pid == 0) {
    exec_child(spec, arguments, signals);
  }
  // Done here, too, so that the group exists whichever of the two processes runs first.
  ::setpgid(pid, pid);
  error_out.close();
  ChildProcess process(pid, open_pidfd(pid));
  if (process.exit_fd() < 0) {
    const int error = errno;
    process.kill_and_reap();
    return {std::nullopt, error};
  }
  if (const int error = exec_error(error_in.get()); error != 0) {
    process.kill_and_reap();
    return {std::nullopt, error, /*exec_failed=*/true};
  }
  return {std::move(process)};
}

}  // namespace sherd
