// SPDX-License-Identifier: Apache-2.0
//
// A process of a load test that executes this program anew with other arguments, and what it
// costs. It is killed with this one. A mere fork would share the memory of a
// thousand peers, and each page that either side writes to would be copied. Thread rule: the thread that made it.
#pragma once

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.h"

namespace sherd::ft {

// As many files as the system allows.
inline void raise_file_limit() {
  rlimit files = {};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &files);
  }
}

class LoadProcess {
 public:
  explicit LoadProcess(std::vector<std::string> arguments) : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::vector<char*> words = {const_cast<char*>("load")};
      for (auto& word : arguments) {
        words.push_back(word.data());
      }
      words.push_back(nullptr);
      ::execv("/proc/self/exe", words.data());
      ::_exit(127);
    }
  }
  ~LoadProcess() { kill(); }
  LoadProcess(const LoadProcess&) = delete;
  LoadProcess& operator=(const LoadProcess&) = delete;

  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = 0;
    }
  }
  // Such as "VmHWM", in MB.
  double memory_mb(const std::string& what) const {
    std::ifstream file(str("/proc/", pid_, "/status"));
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with(what + ":")) {
        return std::atof(line.c_str() + what.size() + 1) / 1024;
      }
    }
    return 0;
  }
  double cpu_s() const {
    std::ifstream file(str("/proc/", pid_, "/stat"));
    std::string word;
    double ticks = 0;
    for (int i = 1; i <= 15 && file >> word; ++i) {
      ticks += i >= 14 ? std::atof(word.c_str()) : 0;
    }
    return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }

 private:
  pid_t pid_;
};

}  // namespace sherd::ft
