// SPDX-License-Identifier: Apache-2.0
#include "launch/orphans.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "base/check.h"
#include "base/process.h"

namespace sherd::launch {
namespace {

// The children of this thread, the only one. Empty if the kernel does not list them.
std::vector<pid_t> orphans(const std::set<pid_t>& own) {
  std::ifstream file("/proc/thread-self/children");
  std::vector<pid_t> found;
  pid_t pid = 0;
  while (file >> pid) {
    if (!own.contains(pid)) {
      found.push_back(pid);
    }
  }
  return found;
}

// Whether the kernel shows that the process has memory with an environment. For a moment it has
// none, while it ends or starts another program.
bool has_environment(pid_t pid) {
  constexpr int kEnvironmentStart = 50;  // env_start in proc(5).
  return process_stat(pid, kEnvironmentStart) != 0;
}

// The process's "SHERD_START=..."; empty if it has none; nullopt if that cannot be read yet.
std::optional<std::string> mark_of(pid_t pid) {
  std::ifstream file(str("/proc/", pid, "/environ"));
  const std::string prefix = str(kStartVariable, "=");
  std::string variable;
  bool empty = true;
  while (std::getline(file, variable, '\0')) {
    empty = false;
    if (variable.starts_with(prefix)) {
      return variable;
    }
  }
  if (empty && !has_environment(pid)) {
    return std::nullopt;
  }
  return std::string();
}

bool reaped(pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) == pid; }

}  // namespace

Orphans::Orphans() : own_mark_(mark_of(::getpid()).value_or("")) {
  ::prctl(PR_GET_CHILD_SUBREAPER, &adopted_before_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Orphans::~Orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, adopted_before_); }

std::string Orphans::next_mark() {
  return str(kStartVariable, "=", ::getpid(), ".", ++marks_);
}

int Orphans::sweep(
    const std::set<pid_t>& own, const std::set<std::string>& living) const {
  int left = 0;
  bool any_reaped = true;
  // The children of a reaped process have become children of this one, perhaps after it looked.
  while (std::exchange(any_reaped, false)) {
    left = 0;
    for (const pid_t pid : orphans(own)) {
      if (reaped(pid)) {
        any_reaped = true;
        continue;
      }
      const auto mark = mark_of(pid);
      if (!mark) {
        ++left;
      } else if (
          !mark->empty() && *mark != own_mark_ && !living.contains(*mark)) {
        ::kill(pid, SIGKILL);
        ++left;
      }
    }
  }
  return left;
}

void Orphans::end_all(const std::set<pid_t>& own) const {
  const SteadyClock clock;
  const Instant deadline = clock.now() + kOrphansTimeout;
  while (sweep(own, {}) > 0 && clock.now() < deadline) {
    ::poll(nullptr, 0, 1);
  }
}

}  // namespace sherd::launch
