// SPDX-License-Identifier: Apache-2.0
#include "autograd/model_engine.h"

#include <ATen/core/grad_mode.h>

#include "base/check.h"

namespace sherd::autograd {

void ModelEngine::check_open() const {
  SHERD_CHECK_AS(kFailedPrecondition, !closed_, when_closed_);
  error_.throw_if_failed();
}

void ModelEngine::note_backward() {
  if (!armed_in_backward_ && arm(weak_from_this())) {
    armed_in_backward_ = true;
    begin_backward();
  }
}

void ModelEngine::note_use() {
  if (in_backward()) {
    note_backward();
  } else if (!armed_ && in_graph()) {
    begin_training_forward();
    armed_ = true;
    (void)arm(weak_from_this());
  }
}

void ModelEngine::backward_ended(std::exception_ptr failure) {
  std::unique_lock lock(mu_);
  if (!armed_ && !armed_in_backward_) {
    return;  // It was armed by a forward that is forgotten, and is another model's backward.
  }
  armed_ = false;
  armed_in_backward_ = false;
  end_of_backward(failure);
  call_hooks(lock);
}

void ModelEngine::call_unlocked(
    std::unique_lock<std::mutex>& lock, const std::function<void()>& call) {
  lock.unlock();
  const auto relock = [&](void*) { lock.lock(); };
  const std::unique_ptr<void, decltype(relock)> at_end(&lock, relock);
  call();
}

void ModelEngine::call_after_backward(
    std::unique_lock<std::mutex>& lock,
    const std::function<void()>& call,
    const char* part) {
  require(status_of(
      [&] {
        const at::AutoGradMode records_gradients(true);
        call_unlocked(lock, call);
      },
      ErrorCode::kAborted,
      str("[", part,
          "] what follows a backward failed on a rank without inputs: ")));
}

Status ModelEngine::close_with_failure(const Status& status) {
  auto told = explained(status);
  if (error_.ok()) {
    error_ = told;
    abandon_exchange(told);
  }
  return told;
}

void ModelEngine::require(const Status& status) {
  if (!status.ok()) {
    close_with_failure(status).throw_if_failed();
  }
}

}  // namespace sherd::autograd
