// SPDX-License-Identifier: Apache-2.0
#include <sherd/autograd/join.h>

#include <utility>

#include "autograd/model_engine.h"
#include "base/check.h"

namespace sherd {

struct JoinScope::State {
  std::shared_ptr<autograd::ModelEngine> engine;
};

JoinScope::JoinScope(
    std::shared_ptr<autograd::ModelEngine> engine, const JoinOptions& options)
    : state_(std::make_shared<State>()) {
  thread_local std::weak_ptr<State> open;
  const auto other = open.lock();
  SHERD_CHECK_AS(
      kFailedPrecondition, !other || other->engine == engine,
      "[join] join() inside the join scope of another model; expected one "
      "scope at a time, because a rank that has no more inputs takes part in "
      "the backwards of one model only: give all ranks as many inputs where a "
      "loop trains several models");
  engine->begin_join(options);
  state_->engine = std::move(engine);
  open = state_;
}

JoinScope::JoinScope(JoinScope&&) noexcept = default;
JoinScope::~JoinScope() {
  if (state_) {
    state_->engine->abandon_join();
  }
}

void JoinScope::finish(const std::function<void()>& after_backward) {
  SHERD_CHECK_AS(
      kFailedPrecondition, state_ != nullptr,
      "[join] this join scope has ended");
  std::exchange(state_, nullptr)->engine->finish_join(after_backward);
}

}  // namespace sherd
