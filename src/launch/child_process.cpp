// SPDX-License-Identifier: Apache-2.0
#include "launch/child_process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include "base/check.h"

namespace sherd::launch {
namespace {

constexpr int kNotFound = 127;
constexpr int kNotExecutable = 126;

// 0 when `path` can be executed, else the error number.
int executable_error(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    return errno;
  }
  if (!S_ISREG(status.st_mode)) {
    return S_ISDIR(status.st_mode) ? EISDIR : EACCES;
  }
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

StartFailure exec_failure(const std::string& path, int error) {
  std::string hint;
  if (error == ENOEXEC) {
    hint = " (a script needs a first line such as #!/bin/sh)";
  } else if (error == ENOENT && executable_error(path) == 0) {
    hint = " (its interpreter, named in the first line, is missing)";
  } else if (error == EACCES && executable_error(path) == EACCES) {
    hint = " (it is not executable; chmod +x?)";
  }
  return {
      error == ENOENT || error == ENOTDIR ? kNotFound : kNotExecutable,
      str("cannot run '", path, "': ", std::strerror(error), hint)};
}

// exec wants arrays of pointers, made before fork: allocating after it could
// wait for a lock that nobody holds any more.
std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const std::string& text : strings) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

struct ExecArguments {
  std::vector<char*> command;
  std::vector<char*> variables;
  cpu_set_t cores;
  pid_t launcher;
  int error_fd;  // Closed by exec; gets errno when that fails.
};

// In the child; only calls that are safe between fork and exec.
[[noreturn]] void exec_child(
    const ProcessSpec& setup,
    const ExecArguments& arguments,
    const SignalFd& signals) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The launcher may have died before the call above: then nobody is told.
  if (::getppid() != arguments.launcher) {
    ::_exit(128 + SIGKILL);
  }
  ::setpgid(0, 0);
  if (!setup.cores.empty()) {
    // A refusal costs speed, not correctness.
    ::sched_setaffinity(0, sizeof arguments.cores, &arguments.cores);
  }
  ::dup2(setup.stdin_fd, STDIN_FILENO);
  ::dup2(setup.stdout_fd, STDOUT_FILENO);
  ::dup2(setup.stderr_fd, STDERR_FILENO);
  if (setup.inherited_fd >= 0) {
    ::fcntl(setup.inherited_fd, F_SETFD, 0);
  }
  if (::isatty(STDOUT_FILENO) == 1) {
    // The rank is in the background of the terminal it owns; without this,
    // setting the terminal up would stop it.
    ::signal(SIGTTOU, SIG_IGN);
  }
  signals.restore();
  ::execve(
      setup.path.c_str(), arguments.command.data(),
      arguments.variables.data());
  const int error = errno;
  [[maybe_unused]] const auto written =
      ::write(arguments.error_fd, &error, sizeof error);
  ::_exit(kNotExecutable);
}

cpu_set_t core_set(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    CPU_SET(core, &set);
  }
  return set;
}

StartFailure no_resources(const std::string& name) {
  return {1, str("cannot start ", name, ": ", std::strerror(errno))};
}

}  // namespace

ProgramLookup find_program(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) {
    const int error = executable_error(name);
    return error == 0 ? ProgramLookup{name, {}}
                      : ProgramLookup{{}, exec_failure(name, error)};
  }
  std::optional<StartFailure> found_unusable;
  std::string_view rest = search_path;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), folder.size() + 1));
    const std::string path =
        (folder.empty() ? "." : std::string(folder)) + "/" + name;
    const int error = executable_error(path);
    if (error == 0) {
      return {path, {}};
    }
    if (error == EACCES && !found_unusable) {
      found_unusable = exec_failure(path, error);
    }
  }
  if (found_unusable) {
    return {{}, *found_unusable};
  }
  const bool here = executable_error("./" + name) == 0;
  return {
      {},
      {kNotFound,
       str("cannot find program '", name, "' in PATH",
           here ? str("; did you mean ./", name, "?") : "")}};
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

std::optional<RankExit> ChildProcess::try_reap() {
  siginfo_t info = {};
  const auto id = static_cast<id_t>(pid_);
  if (pid_ <= 0 ||
      ::waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
      info.si_pid == 0) {
    return std::nullopt;
  }
  // Before the reaping: until then the number is certainly this group's.
  signal_group(SIGKILL);
  ::waitid(P_PID, id, &info, WEXITED);
  pid_ = -1;
  const bool exited = info.si_code == CLD_EXITED;
  return RankExit{
      .rank = rank_,
      .exit_code = exited ? info.si_status : 0,
      .signal = exited ? 0 : info.si_status};
}

void ChildProcess::kill_and_reap() {
  if (pid_ <= 0) {
    return;
  }
  signal_group(SIGKILL);
  siginfo_t info = {};
  while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 &&
         errno == EINTR) {
  }
  pid_ = -1;
}

SpawnResult spawn_process(const ProcessSpec& setup, const SignalFd& signals) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return {std::nullopt, no_resources(setup.name)};
  }
  const Descriptor error_in(ends[0]);
  Descriptor error_out(ends[1]);
  const ExecArguments arguments = {
      pointers(setup.command), pointers(setup.variables),
      core_set(setup.cores), ::getpid(), error_out.get()};
  const pid_t pid = ::fork();
  if (pid < 0) {
    return {std::nullopt, no_resources(setup.name)};
  }
  if (pid == 0) {
    exec_child(setup, arguments, signals);
  }
  // Also here, so that the group exists whichever of the two runs first.
  ::setpgid(pid, pid);
  error_out.close();
  Descriptor exit_event(
      static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
  ChildProcess process(setup.rank, pid, std::move(exit_event));
  if (process.exit_fd() < 0) {
    const StartFailure failure = no_resources(setup.name);
    process.kill_and_reap();
    return {std::nullopt, failure};
  }
  int error = 0;
  ssize_t count = 0;
  do {  // Ends when exec closes the other end, or the child dies.
    count = ::read(error_in.get(), &error, sizeof error);
  } while (count < 0 && errno == EINTR);
  if (count == sizeof error) {
    process.kill_and_reap();
    return {std::nullopt, exec_failure(setup.path, error)};
  }
  return {std::move(process), {}};
}

}  // namespace sherd::launch
