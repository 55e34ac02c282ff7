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

class ForwardState {
 public:
  enum class Generators { kPreserve, kIgnore };
  // The present state; with kIgnore without the generators.
  static ForwardState now(
      Generators generators, const std::vector<at::Tensor>& inputs);
  // Restores the state, with gradients on, while it lives; the destructor puts back the state
  // before.
  class Scope;

 private:
  // The present state of the same things.
  ForwardState same_now() const;
  void apply() const;

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

class ForwardState::Scope {
 public:
  explicit Scope(const ForwardState& then);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const ForwardState before_;
  const bool grad_mode_before_;
};

}  // namespace sherd::autograd
