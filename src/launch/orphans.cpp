// SPDX-License-Identifier: Apache-2.0
#include "launch/orphans.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <vector>
#include "base/check.h"
#include "base/clock.h"

namespace sherd::launch {
namespace {

constexpr Duration kEndTimeout = std::chrono::seconds(2);

// Those of this thread, the only one. None where the kernel does not list them.
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

// "SHERD_START=..." of a process; empty: it has none, or is not readable.
std::string mark_of(pid_t pid) {
  std::ifstream file(str("/proc/", pid, "/environ"));
  const std::string prefix = str(kStartVariable, "=");
  std::string variable;
  while (std::getline(file, variable, '\0')) {
    if (variable.starts_with(prefix)) {
      return variable;
    }
  }
  return {};
}

bool reaped(pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) == pid; }

}  // namespace

Orphans::Orphans() : own_mark_(mark_of(::getpid())) {
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
  for (const pid_t pid : orphans(own)) {
    if (reaped(pid)) {
      continue;
    }
    const std::string mark = mark_of(pid);
    if (!mark.empty() && mark != own_mark_ && !living.contains(mark)) {
      ::kill(pid, SIGKILL);
      ++left;
    }
  }
  return left;
}

void Orphans::end_all(const std::set<pid_t>& own) const {
  const SteadyClock clock;
  const Instant deadline = clock.now() + kEndTimeout;
  // Their own children come next.
  while (sweep(own, {}) > 0 && clock.now() < deadline) {
    ::poll(nullptr, 0, 1);
  }
}

}  // namespace sherd::launch
