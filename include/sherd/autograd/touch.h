// SPDX-License-Identifier: Apache-2.0
//
// TouchScope keeps a sharded parameter whole for kernels written by hand. LibTorch's operators
// announce their use of a parameter by themselves; a raw pointer cannot. The scope acts like an
// operator that runs as long as it lives:
//
//   sherd::TouchScope whole(linear->weight);
//   my_kernel(linear->weight.const_data_ptr<float>());
//
// On a plain tensor it does nothing. It is for reading only: what a kernel writes there is lost or
// seen by other ranks. One that was made while summon_full_parameters() or full_precision() had a scope
// open keeps nothing whole after that scope has ended. Thread rule: any thread.
#pragma once

#include <exception>
#include <memory>
#include <ATen/core/Tensor.h>

namespace sherd {

class TouchScope {
 public:
  // Gathers the parameter's unit; collective where the exchange is. Throws as an operator would.
  explicit TouchScope(const at::Tensor& tensor);
  ~TouchScope();
  TouchScope(const TouchScope&) = delete;
  TouchScope& operator=(const TouchScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A scope around one tensor: `auto whole = sherd::touch(w);`
inline TouchScope touch(const at::Tensor& tensor) { return TouchScope(tensor); }

// Brackets a backward that another autograd engine than sherd's runs, as Python's does: from before the
// engine's execute() until after it, not around autograd::grad. Without it a model does not learn that
// a backward has failed, and learns too early of its end where checkpoints run backwards within it.
// Within another backward, or where sherd's engine runs, it does nothing. Thread rule: one thread,
// that which calls execute().
class ForeignBackward {
 public:
  ForeignBackward();
  // A backward whose end() was not called has failed for an unknown reason.
  ~ForeignBackward();
  ForeignBackward(const ForeignBackward&) = delete;
  ForeignBackward& operator=(const ForeignBackward&) = delete;

  // Tells the models that took part. `failure` is null where the backward has succeeded; then what
  // goes wrong at its end is thrown.
  void end(const std::exception_ptr& failure);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sherd
