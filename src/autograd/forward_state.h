// SPDX-License-Identifier: Apache-2.0
//
// What a forward depends on besides its inputs, so that it can be run again:
// the state of the default CPU generator and autocast. A value.
// Thread rule: autocast is the calling thread's; the generator is the process's
// and locked for each single access only.
#pragma once

#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd::autograd {

enum class RngState { kPreserve, kIgnore };

class ForwardState {
 public:
  // As it is now. kIgnore: without the generator.
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

// The state as it was then, gradients on; afterwards everything as before.
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
