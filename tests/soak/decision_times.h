// SPDX-License-Identifier: Apache-2.0
//
// How long decisions take, in a process that plays thousands of peers. One of its threads cannot
// read what all of them are told at once: what the last of them measures is how long the others
// took to read. So some have a thread to themselves, as a replica has a host, and measure how long
// the process takes that is tested; the others are its load. Thread rule: as said below.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <future>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "net/loop.h"

namespace sherd::ft {

// One of so many peers has a thread to share with few.
constexpr std::size_t kPeersOfOneThatMeasures = 16;

// What the peers of one thread have seen. Thread rule: theirs.
struct DecisionTimes {
  std::map<std::int64_t, Instant> asked;  // The last of them, by step.
  std::vector<std::pair<std::int64_t, Instant>> heard;

  // Of the steps between the two, from when the last peer of both asked. Sorted.
  std::vector<double> latencies_ms(
      const DecisionTimes& others,
      std::int64_t first,
      std::int64_t last) const {
    std::vector<double> ms;
    for (const auto& [step, at] : heard) {
      const auto own = asked.find(step);
      const auto other = others.asked.find(step);
      if (step > first && step < last && own != asked.end() &&
          other != others.asked.end()) {
        ms.push_back(1e3 * seconds(at - std::max(own->second, other->second)));
      }
    }
    std::sort(ms.begin(), ms.end());
    return ms;
  }
};

inline std::string text_of_latencies(const std::vector<double>& sorted_ms) {
  const auto quantile = [&](double share) {
    const auto last = static_cast<double>(sorted_ms.size()) - 1;
    return sorted_ms.empty()
        ? 0
        : sorted_ms[static_cast<std::size_t>(share * last)];
  };
  char text[100];
  std::snprintf(
      text, sizeof text, "median %.1f ms, p99 %.1f ms, longest %.1f ms",
      quantile(0.5), quantile(0.99), quantile(1));
  return text;
}

// A loop with a thread. Thread rule: the thread that made it.
class LoopThread {
 public:
  LoopThread() = default;
  ~LoopThread() { stop(); }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;

  net::Loop& loop() { return loop_; }
  void start() {
    thread_ = std::thread([this] { loop_.run(); });
  }
  // Its loop is the caller's again.
  void stop() {
    if (thread_.joinable()) {
      loop_.post([this] { loop_.stop(); });
      thread_.join();
    }
  }
  // What `ask` returns, called in the loop.
  template <typename Ask>
  auto ask(Ask ask) {
    std::promise<decltype(ask())> answer;
    loop_.post([&] { answer.set_value(ask()); });
    return answer.get_future().get();
  }

 private:
  net::Loop loop_;
  std::thread thread_;
};

}  // namespace sherd::ft
