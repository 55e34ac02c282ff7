// SPDX-License-Identifier: Apache-2.0
//
// WorkerThread is one thread that runs posted jobs in their order, so that waiting for peers or
// reading much memory does not hold up the thread that posts. The first job that fails ends the
// work: later ones are not run and have its failure. Thread rule: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include "base/status.h"

namespace sherd {

class WorkerThread {
 public:
  using Job = std::function<Status()>;

  // The thread's name has at most 15 characters.
  explicit WorkerThread(std::string thread_name);
  // Waits for the job under way; those behind it are not run.
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  // Returns the job's number, for wait(); numbers ascend from 1. An exception of the job is its
  // failure.
  std::uint64_t post(Job job);

  // Returns when that job and all before it have ended: the first failure of any job so far, or
  // success. If the program wished meanwhile that waits end (sherd/base/run_main.h), it is kAborted
  // where no job has failed, since nobody else would tell the program of its wish.
  [[nodiscard]] Status wait(std::uint64_t number);

  // Whether that job and all before it ended within that time.
  bool wait_for(std::uint64_t number, std::chrono::milliseconds time);

  // Returns when every job posted so far has ended. REQUIRES: not called in a job.
  void settle();

  // How many jobs have ended.
  std::uint64_t ended() const;
  // Some job has not ended yet.
  bool busy() const;
  // The first failure so far; never waits.
  [[nodiscard]] Status failure() const;

 private:
  void run(const std::stop_token& stop);

  mutable std::mutex mu_;
  // Whoever changes one of those below holds mu_ and notifies all before it lets go: post() after a
  // new job, run() after the end of one. A stop notifies too. Waits read nothing else, so none
  // misses its change.
  std::condition_variable_any changed_;
  // Guarded by mu_:
  std::deque<Job> jobs_;
  std::uint64_t posted_ = 0;
  std::uint64_t ended_ = 0;
  Status failure_;
  std::jthread thread_;  // The last member: it uses the others.
};

}  // namespace sherd
