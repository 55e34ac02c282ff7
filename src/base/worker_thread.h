// SPDX-License-Identifier: Apache-2.0
//
// WorkerThread is one thread that runs posted jobs in order, so that the thread that posts them
// need not wait for peers or for reading much memory. After the first job that fails, later jobs
// are not run and have its failure. Thread rule: any thread.
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
  // Waits for the running job; jobs after it are not run.
  ~WorkerThread();
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  // Returns the job's number, for wait(); numbers start at 1 and increase. An exception of the job
  // is its failure.
  std::uint64_t post(Job job);

  // Returns when that job and all jobs before it have ended: the first failure of any job so far,
  // or success. If the program asked meanwhile for waits to end (sherd/base/run_main.h), returns
  // kAborted even if no job has failed, because nothing else would report the interrupt to the
  // program.
  [[nodiscard]] Status wait(std::uint64_t number);

  // Whether that job and all jobs before it ended within the given time.
  bool wait_for(std::uint64_t number, std::chrono::milliseconds time);

  // Returns when every job posted so far has ended. REQUIRES: not called in a job.
  void settle();

  // How many jobs have ended.
  std::uint64_t ended() const;
  // Whether some job has not ended yet.
  bool busy() const;
  // The first failure so far; never waits.
  [[nodiscard]] Status failure() const;

 private:
  void run(const std::stop_token& stop);

  mutable std::mutex mu_;
  // Any change of the members below is made under mu_, and notifies all before mu_ is released: in
  // post() after a new job, in run() after the end of one. A stop notifies, too. Waits read nothing
  // else, so no wait misses a change.
  std::condition_variable_any changed_;
  // Guarded by mu_:
  std::deque<Job> jobs_;
  std::uint64_t posted_ = 0;
  std::uint64_t ended_ = 0;
  Status failure_;
  std::jthread thread_;  // The last member: it uses the others.
};

}  // namespace sherd
