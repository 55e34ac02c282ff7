// SPDX-License-Identifier: Apache-2.0
//
// Loop is one thread's event loop: functions run in it one after another, when
// they are posted, their time has come or a socket is ready. What belongs to a
// loop is used in it alone and needs no mutex. Thread rule: run() from one thread;
// post(), stop() and in_loop() from any; else its loop. Timer: its loop.
#pragma once

#include <functional>
#include <memory>
#include "base/clock.h"

// In standalone Asio, for net's own sources.
namespace asio {
class io_context;  // NOLINT(readability-identifier-naming): Asio's.
}

namespace sherd::net {

// A function to come. Destroying, cancelling or replacing the timer takes it
// back: then it is not called, whatever the time.
class Timer {
 public:
  Timer() = default;
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  Timer(Timer&& other) noexcept = default;
  Timer& operator=(Timer&& other) noexcept;
  ~Timer() { cancel(); }

  void cancel();
  // It was neither called nor cancelled.
  bool pending() const;

 private:
  friend class Loop;
  struct State;
  std::shared_ptr<State> state_;  // The loop has it too, until its time.
};

class Loop {
 public:
  Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  // Functions that are still to come are dropped.
  // REQUIRES: not in run(); nothing that belongs to the loop is used any more.
  ~Loop();

  // Calls functions until stop(). The calling thread is the loop's until then.
  // An exception of a function leaves it; it may be called again.
  void run();
  // Makes run() return after the function that it is in; when nobody is in
  // run(), the next one at once.
  void stop();

  // In the order of the calls, never inside post() itself.
  void post(std::function<void()> function);
  [[nodiscard]] Timer after(Duration delay, std::function<void()> function);

  // Whether the caller may use what belongs to the loop: it is the thread in
  // run(), or nobody is.
  bool in_loop() const;
  Instant now() const { return clock_.now(); }

  asio::io_context& context();

 private:
  struct Impl;
  const SteadyClock clock_;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::net
