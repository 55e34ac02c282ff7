// SPDX-License-Identifier: Apache-2.0
#include "autograd/forward_state.h"

#include <mutex>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

namespace sherd::autograd {

ForwardState ForwardState::now(RngState randomness) {
  ForwardState state;
  if (randomness == RngState::kPreserve) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    state.generator_ = generator.get_state();
  }
  for (const auto device : {at::kCPU, at::kCUDA}) {
    state.autocasts_.push_back(
        {device, at::autocast::is_autocast_enabled(device),
         at::autocast::get_autocast_dtype(device)});
  }
  state.autocast_cache_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

void ForwardState::apply() const {
  if (generator_.defined()) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    generator.set_state(generator_);
  }
  for (const auto& autocast : autocasts_) {
    at::autocast::set_autocast_enabled(autocast.device, autocast.enabled);
    at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
  }
  at::autocast::set_autocast_cache_enabled(autocast_cache_);
}

ForwardStateScope::ForwardStateScope(const ForwardState& then)
    : before_(ForwardState::now(
          then.has_rng_state() ? RngState::kPreserve : RngState::kIgnore)),
      grad_mode_before_(at::GradMode::is_enabled()) {
  at::autocast::increment_nesting();
  at::GradMode::set_enabled(true);
  then.apply();
}

ForwardStateScope::~ForwardStateScope() {
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();  // Casts of weights made meanwhile.
  }
  before_.apply();
  at::GradMode::set_enabled(grad_mode_before_);
}

}  // namespace sherd::autograd
