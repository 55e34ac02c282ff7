// SPDX-License-Identifier: Apache-2.0
#include <sherd/autograd/join.h>

#include <utility>

#include "autograd/model_engine.h"
#include "base/check.h"

namespace sherd {

JoinScope::JoinScope(std::shared_ptr<autograd::ModelEngine> engine)
    : engine_(std::move(engine)) {}
JoinScope::JoinScope(JoinScope&&) noexcept = default;
JoinScope::~JoinScope() {
  if (engine_) {
    engine_->abandon_join();
  }
}

void JoinScope::finish(const std::function<void()>& after_backward) {
  SHERD_CHECK_AS(
      kFailedPrecondition, engine_ != nullptr,
      "[join] this join scope has ended");
  std::exchange(engine_, nullptr)->finish_join(after_backward);
}

}  // namespace sherd
