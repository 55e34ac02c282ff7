// SPDX-License-Identifier: Apache-2.0
#include "net/loop.h"

#include <atomic>
#include <optional>
#include <thread>
#include <utility>
#include "base/check.h"
#include "net/asio_headers.h"

namespace sherd::net {

struct Timer::State {
  explicit State(std::function<void()> to_call)
      : function(std::move(to_call)) {}

  // Emptied first, because the function may destroy or replace its own timer.
  void call() {
    if (function != nullptr) {
      std::exchange(function, nullptr)();
    }
  }

  // Nullopt if it is due at once or cancelled.
  std::optional<asio::steady_timer> timer;
  // Empty once it was called or cancelled.
  std::function<void()> function;
};

Timer& Timer::operator=(Timer&& other) noexcept {
  if (this != &other) {
    cancel();
    state_ = std::move(other.state_);
  }
  return *this;
}

void Timer::cancel() {
  if (pending()) {
    // The wait may already have ended; then it finds nothing to call.
    state_->function = nullptr;
    state_->timer.reset();
  }
  state_.reset();
}

bool Timer::pending() const {
  return state_ != nullptr && state_->function != nullptr;
}

struct Loop::Impl {
  // The hint of one thread keeps post() thread-safe.
  asio::io_context context{1};
  // Default constructed while no thread is in run(). Relaxed: a thread finds its own id only if it
  // wrote it itself; others only need a value that is not theirs.
  std::atomic<std::thread::id> thread;
};

Loop::Loop() : impl_(std::make_unique<Impl>()) {}

Loop::~Loop() {
  SHERD_ASSERT(
      impl_->thread.load(std::memory_order_relaxed) == std::thread::id());
}

void Loop::run() {
  SHERD_ASSERT(
      impl_->thread.exchange(
          std::this_thread::get_id(), std::memory_order_relaxed) ==
          std::thread::id(),
      "[net] two threads in one loop");
  // Runs even if a function throws.
  const auto leave = [](Impl* impl) {
    impl->context.restart();
    impl->thread.store(std::thread::id(), std::memory_order_relaxed);
  };
  const std::unique_ptr<Impl, decltype(leave)> inside(impl_.get(), leave);
  const auto work = asio::make_work_guard(impl_->context);
  impl_->context.run();
}

void Loop::stop() { impl_->context.stop(); }

void Loop::post(std::function<void()> function) {
  asio::post(impl_->context, std::move(function));
}

Timer Loop::after(Duration delay, std::function<void()> function) {
  SHERD_ASSERT(in_loop() && function != nullptr);
  Timer timer;
  const auto state = timer.state_ =
      std::make_shared<Timer::State>(std::move(function));
  if (delay <= Duration(0)) {  // A kernel timer would cost a system call.
    post([state] { state->call(); });
    return timer;
  }
  state->timer.emplace(impl_->context).expires_after(delay);
  state->timer->async_wait([state](const std::error_code& error) {
    if (!error) {
      state->call();
    }
  });
  return timer;
}

bool Loop::in_loop() const {
  const auto thread = impl_->thread.load(std::memory_order_relaxed);
  return thread == std::thread::id() || thread == std::this_thread::get_id();
}

asio::io_context& Loop::context() { return impl_->context; }

}  // namespace sherd::net
