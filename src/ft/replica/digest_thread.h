// SPDX-License-Identifier: Apache-2.0
//
// DigestThread does, in a thread of its own and in their order, what would hold up a
// loop: reading all of a state or a sum for its digest. Thread rule: any.
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
  // Waits for what has begun and drops the rest.
  ~DigestThread();
  DigestThread(const DigestThread&) = delete;
  DigestThread& operator=(const DigestThread&) = delete;

  // It does not throw.
  void post(std::function<void()> work);

 private:
  void run(const std::stop_token& stop);

  // post() adds to jobs_ and notifies with mutex_ held, under which the one
  // thread that waits looks whether there is any; a stop notifies it too.
  std::mutex mutex_;
  std::condition_variable_any came_;
  std::deque<std::function<void()>> jobs_;
  std::jthread thread_;  // Last: it uses the others.
};

}  // namespace sherd::ft
