// SPDX-License-Identifier: Apache-2.0
//
// ForwardState is what a forward depends on besides its inputs: the state of the default CPU random
// generator, and autocast. A recomputation restores it. A value. Thread rule: autocast belongs to
// the calling thread; the generator is the process's and locked for each access alone.
#pragma once

#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd::autograd {

enum class RngState { kPreserve, kIgnore };

class ForwardState {
 public:
  // The present state; with kIgnore without the generator.
  static ForwardState now(RngState randomness);
  void apply() const;

  bool has_rng_state() const { return generator_.defined(); }

 private:
  struct Autocast {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  at::Tensor generator_;  // uint8 [about 5000]
  std::vector<Autocast> autocasts_;
  bool autocast_cache_ = false;
};

// Restores the state, with gradients on, while it lives; the destructor puts back what was before.
class ForwardStateScope {
 public:
  explicit ForwardStateScope(const ForwardState& then);
  ~ForwardStateScope();
  ForwardStateScope(const ForwardStateScope&) = delete;
  ForwardStateScope& operator=(const ForwardStateScope&) = delete;

 private:
  const ForwardState before_;
  const bool grad_mode_before_;
};

}  // namespace sherd::autograd
