// SPDX-License-Identifier: Apache-2.0
//
// ModelEngine is the base class of the engines behind the handles of sharded and replicated models.
// It has their lock, knows whether they are closed or have failed, and follows the frame of a
// training step, which begins when a training forward first uses a parameter and ends when the
// outermost backward has ended. Engines differ in what they do at these moments, not in when the
// moments come.
//
// Thread rule: uses, gradients and ends of backwards come from any thread; protected members are
// used under the lock, unless they say otherwise.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <sherd/autograd/join.h>
#include "autograd/backward.h"
#include "base/status.h"

namespace sherd::autograd {

class ModelEngine : public BackwardListener,
                    public std::enable_shared_from_this<ModelEngine> {
 public:
  // Takes the lock, ends the frame, and calls end_of_backward() and call_hooks().
  void backward_ended(std::exception_ptr failure) final;

  // What JoinScope does: begins the scope, does the work of its finish(), or ends it without that.
  // Nothing without other ranks.
  virtual void begin_join(const JoinOptions& /*options*/) {}
  virtual void finish_join(const std::function<void()>& /*after_backward*/) {}
  virtual void abandon_join() {}

 protected:
  // `when_closed` is the message of check_open() for a closed engine.
  explicit ModelEngine(const char* when_closed) : when_closed_(when_closed) {}

  // Whether the engine is neither closed nor failed. The end of a backward asks this and, if false,
  // returns quietly, because the failure was already thrown where it happened.
  bool usable() const { return !closed_ && error_.ok(); }
  // Throws Error if the engine is closed, or else throws the first failure.
  void check_open() const;

  // Notes that an operator uses a parameter. The first use in a training forward calls
  // begin_training_forward(). That use, and uses in a backward, arm the end of the backward.
  void note_use();
  // The same for events that only happen in a backward, such as the arrival of a gradient.
  void note_backward();
  // Whether a training forward has begun a frame and no backward has ended since.
  bool in_forward() const { return armed_; }
  // Makes the next use in training begin a new frame, and ends the present one, so that a backward
  // of another model does not.
  void forget_forward() { armed_ = false; }

  // Calls the function without the lock.
  static void call_unlocked(
      std::unique_lock<std::mutex>& lock, const std::function<void()>& call);

  // The same for the function that a join scope's finish() calls after a backward. If it fails,
  // that is a failure of all ranks, because they would wait for this one.
  void call_after_backward(
      std::unique_lock<std::mutex>& lock,
      const std::function<void()>& call,
      const char* part);

  // On the first failure, remembers it and abandons the exchange. Returns explained(status).
  Status close_with_failure(const Status& status);
  // The same if it is a failure, and throws the result; nothing for success.
  void require(const Status& status);

  // Checks the model. An exception refuses the use, and the next use calls this again.
  virtual void begin_training_forward() {}
  // The first event in a backward, on the thread that runs it.
  virtual void begin_backward() {}
  // `failure` is null unless the backward threw. Also called when not usable().
  virtual void end_of_backward(const std::exception_ptr& failure) = 0;
  // Calls the users' hooks once the backward is over, without the lock.
  virtual void call_hooks(std::unique_lock<std::mutex>& /*lock*/) {}
  // Returns the failure with what this engine knows about it.
  virtual Status explained(const Status& status) const { return status; }
  // Closes the connections to other ranks, so that they fail, too.
  virtual void abandon_exchange(const Status& /*failure*/) {}

  // Returns a function that invokes `call`, which may be a member function, with the engine and the
  // arguments while the engine lives, and returns an empty value afterwards. It takes no lock.
  template <typename Engine, typename Call>
  static auto while_alive(Engine* engine, Call call) {
    return [weak = engine->weak_from_this(),
            call = std::move(call)](auto&&... arguments) {
      using Result = decltype(std::invoke(
          call, std::declval<Engine&>(),
          std::forward<decltype(arguments)>(arguments)...));
      if (const auto alive = weak.lock()) {
        return std::invoke(
            call, static_cast<Engine&>(*alive),
            std::forward<decltype(arguments)>(arguments)...);
      }
      return Result();
    };
  }

  mutable std::mutex mu_;
  Status error_;            // The first failure.
  bool closed_ = false;     // The user has closed the handle.
  int no_sync_scopes_ = 0;  // Open scopes in which backwards exchange nothing.

 private:
  const char* const when_closed_;
  bool armed_ = false;  // A training forward has armed the next backward.
  bool armed_in_backward_ = false;
};

}  // namespace sherd::autograd
