// SPDX-License-Identifier: Apache-2.0
//
// A coordinator in a process of its own, on a free port, which ends with this object. Thread rule:
// one thread, the only one of the process.
#pragma once

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <fstream>
#include <string>
#include <sherd/ft/coordinator.h>
#include "base/clock.h"
#include "support/scratch_folder.h"

namespace sherd::test {

class CoordinatorProcess {
 public:
  // It has a log and a ready file of its own.
  explicit CoordinatorProcess(ft::CoordinateOptions options) {
    options.log = folder_.path() + "/coordinator.db";
    options.ready_file = folder_.path() + "/ready";
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(ft::coordinate(options));
    }
    const SteadyClock clock;
    const Instant until = clock.now() + std::chrono::seconds(10);
    while (::access(options.ready_file.c_str(), R_OK) != 0 &&
           clock.now() < until) {
      ::poll(nullptr, 0, 1);
    }
    std::ifstream(options.ready_file) >> address_;
  }
  ~CoordinatorProcess() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;
  // Empty if it does not listen.
  const std::string& address() const { return address_; }

 private:
  const sherd::testing::ScratchFolder folder_;
  pid_t pid_ = -1;
  std::string address_;
};

}  // namespace sherd::test
