// SPDX-License-Identifier: Apache-2.0
//
// DigestThread computes digests of states and sums in a thread of its own, one job after another,
// because reading that many bytes would hold up a loop. Thread rule: any.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace sherd::ft {

class DigestThread {
 public:
  DigestThread();
  // Waits for the job that has begun and drops the others.
  ~DigestThread();
  DigestThread(const DigestThread&) = delete;
  DigestThread& operator=(const DigestThread&) = delete;

  // REQUIRES: `work` does not throw.
  void post(std::function<void()> work);

 private:
  void run(const std::stop_token& stop);

  // mutex_ guards jobs_; post() and a stop notify the thread, the only one that waits.
  std::mutex mutex_;
  std::condition_variable_any came_;
  std::deque<std::function<void()>> jobs_;
  std::jthread thread_;  // Last, because it uses the others.
};

}  // namespace sherd::ft
