// SPDX-License-Identifier: Apache-2.0
#include "bench/child_process.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>

namespace sherd::bench {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const auto& text : strings) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

// In the child; only calls that are safe after fork.
[[noreturn]] void exec_child(
    char* const* command,
    char* const* environment,
    const BenchProcessSpec& setup,
    pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) {
    ::_exit(128 + SIGKILL);
  }
  ::setpgid(0, 0);
  for (int fd = 0; fd < 3; ++fd) {
    ::dup2(setup.standard[static_cast<std::size_t>(fd)], fd);
  }
  ::sigprocmask(SIG_SETMASK, &setup.mask, nullptr);
  ::execve(command[0], command, environment);
  ::_exit(127);
}

}  // namespace

pid_t start_child(const BenchProcessSpec& setup) {
  const auto command = pointers(setup.command);
  const auto environment = pointers(setup.environment);
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process == 0) {
    exec_child(command.data(), environment.data(), setup, parent);
  }
  return process;
}

int wait_for_end(pid_t process) {
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace sherd::bench
