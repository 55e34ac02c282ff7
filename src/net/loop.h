// SPDX-License-Identifier: Apache-2.0
//
// Loop is an event loop for one thread: functions run one after another when they are posted, when
// their time has come or when a socket is ready. Objects that belong to a loop are used only in it
// and need no mutex. Thread rule: run() from one thread; post(), stop() and in_loop() from any;
// everything else from its loop. Timer: its loop.
#pragma once

#include <functional>
#include <memory>
#include "base/clock.h"

// Standalone Asio, for net's own sources.
namespace asio {
class io_context;  // NOLINT(readability-identifier-naming): Asio's.
}

namespace sherd::net {

// A scheduled function. Destroying, cancelling or replacing the timer prevents the call, even if it
// is due.
class Timer {
 public:
  Timer() = default;
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  Timer(Timer&& other) noexcept = default;
  Timer& operator=(Timer&& other) noexcept;
  ~Timer() { cancel(); }

  void cancel();
  // Whether it was neither called nor cancelled.
  bool pending() const;

 private:
  friend class Loop;
  struct State;
  std::shared_ptr<State> state_;  // Shared with the loop until it is due.
};

class Loop {
 public:
  Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;
  // Drops functions that have not run. REQUIRES: no thread is in run(), and no object of the loop
  // is used any more.
  ~Loop();

  // Runs functions until stop(); until then the loop belongs to the calling thread. An exception
  // thrown by a function leaves run(), which may be called again.
  void run();
  // Makes run() return after the current function; if no thread is in run(), the next call returns
  // at once.
  void stop();

  // Posted functions run in the order of the calls, never inside post() itself.
  void post(std::function<void()> function);
  [[nodiscard]] Timer after(Duration delay, std::function<void()> function);

  // Whether the caller may use the loop's objects: it is the thread in run(), or no thread is.
  bool in_loop() const;
  Instant now() const { return clock_.now(); }

  asio::io_context& context();

 private:
  struct Impl;
  const SteadyClock clock_;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::net
