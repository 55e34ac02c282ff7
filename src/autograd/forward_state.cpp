// SPDX-License-Identifier: Apache-2.0
#include "autograd/forward_state.h"

#include <mutex>
#include <set>
#include <utility>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

namespace sherd::autograd {

void ForwardState::add(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  auto state = generator.get_state();
  randomness_.push_back({std::move(generator), std::move(state)});
}

void ForwardState::add_autocast() {
  for (const auto device : {at::kCPU, at::kCUDA}) {
    autocasts_.push_back(
        {device, at::autocast::is_autocast_enabled(device),
         at::autocast::get_autocast_dtype(device)});
  }
  autocast_cache_ = at::autocast::is_autocast_cache_enabled();
}

ForwardState ForwardState::now(
    Generators generators, const std::vector<at::Tensor>& inputs) {
  ForwardState state;
  state.add_autocast();
  if (generators == Generators::kIgnore) {
    return state;
  }
  state.add(at::detail::getDefaultCPUGenerator());
  std::set<at::DeviceIndex> known;  // LibTorch has one type of accelerator.
  for (const auto& input : inputs) {
    if (input.defined() && !input.is_cpu() && !input.is_meta() &&
        known.insert(input.device().index()).second) {
      state.add(at::globalContext().defaultGenerator(input.device()));
    }
  }
  return state;
}

ForwardState ForwardState::same_now() const {
  ForwardState state;
  state.add_autocast();
  for (const auto& then : randomness_) {
    state.add(then.generator);
  }
  return state;
}

void ForwardState::apply() const {
  for (const auto& then : randomness_) {
    at::Generator generator = then.generator;
    const std::lock_guard lock(generator.mutex());
    generator.set_state(then.state);
  }
  for (const auto& autocast : autocasts_) {
    at::autocast::set_autocast_enabled(autocast.device, autocast.enabled);
    at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
  }
  at::autocast::set_autocast_cache_enabled(autocast_cache_);
}

ForwardState::Scope::Scope(const ForwardState& then)
    : before_(then.same_now()), grad_mode_before_(at::GradMode::is_enabled()) {
  at::autocast::increment_nesting();
  at::GradMode::set_enabled(true);
  then.apply();
}

ForwardState::Scope::~Scope() {
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();  // Drops casts of weights made meanwhile.
  }
  before_.apply();
  at::GradMode::set_enabled(grad_mode_before_);
}

}  // namespace sherd::autograd
