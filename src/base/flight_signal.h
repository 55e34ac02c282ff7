// SPDX-License-Identifier: Apache-2.0
//
// While a FlightSignal lives, SIGUSR2 makes a flight recorder write its file, even if every other
// thread is waiting. The first one of a process installs the handler for good, so that a late
// signal does not end the process. Thread rule: one thread, besides its own.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include "base/flight_recorder.h"

namespace sherd {

class FlightSignal {
 public:
  explicit FlightSignal(std::shared_ptr<const FlightRecorder> recorder);
  FlightSignal(const FlightSignal&) = delete;
  FlightSignal& operator=(const FlightSignal&) = delete;

 private:
  void watch(const std::stop_token& stop);

  const std::shared_ptr<const FlightRecorder> recorder_;
  const int seen_;  // The number of signals before this one lived.
  std::mutex mu_;
  std::condition_variable_any stopped_;
  std::jthread thread_;  // The last member: it uses the others.
};

}  // namespace sherd
