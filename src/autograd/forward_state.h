// SPDX-License-Identifier: Apache-2.0
//
// ForwardState is what a forward depends on besides its inputs: the states of the default random
// generators of the CPU and of the devices of its inputs, and autocast. A recomputation restores
// it. A value. Thread rule: autocast belongs to the calling thread; generators belong to the
// process and are locked only for each access.
#pragma once

#include <vector>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace sherd::autograd {

enum class RngState { kPreserve, kIgnore };

class ForwardState {
 public:
  // The present state; with kIgnore without the generators.
  static ForwardState now(
      RngState randomness, const std::vector<at::Tensor>& inputs = {});
  // The present state of the same things.
  ForwardState same_now() const;
  void apply() const;

 private:
  struct Autocast {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  struct Randomness {
    at::Generator generator;
    at::Tensor state;  // uint8, on the CPU.
  };
  void add(at::Generator generator);
  void add_autocast();

  std::vector<Randomness> randomness_;
  std::vector<Autocast> autocasts_;
  bool autocast_cache_ = false;
};

// Restores the state, with gradients on, while it lives; the destructor puts back the state before.
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
