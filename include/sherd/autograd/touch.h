// SPDX-License-Identifier: Apache-2.0
//
// TouchScope keeps a sharded parameter whole for hand-written kernels. LibTorch's operators
// announce their use of a parameter by themselves; a raw pointer cannot. The scope acts like an
// operator that runs as long as the scope lives:
//
//   sherd::TouchScope whole(linear->weight);
//   my_kernel(linear->weight.const_data_ptr<float>());
//
// On a plain tensor it does nothing. It is for reading only: what a kernel writes there is lost or
// seen by other ranks. A TouchScope made while a scope of summon_full_parameters() or
// full_precision() was open keeps nothing whole after that scope has ended. End a TouchScope before
// the backward ends and before an optimizer's step or publish(), because these drop whole units.
// Thread rule: any thread.
#pragma once

#include <exception>
#include <memory>
#include <ATen/core/Tensor.h>

namespace sherd {

class TouchScope {
 public:
  // Gathers the parameter's unit; collective if the exchange is. Throws as an operator would.
  explicit TouchScope(const at::Tensor& tensor);
  ~TouchScope();
  TouchScope(const TouchScope&) = delete;
  TouchScope& operator=(const TouchScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns a scope around one tensor: `auto whole = sherd::touch(w);`
inline TouchScope touch(const at::Tensor& tensor) { return TouchScope(tensor); }

// Brackets a backward that runs on an autograd engine other than sherd's, such as Python's: from
// before the engine's execute() until after it, but not around autograd::grad. Without it a model
// does not learn that a backward has failed, and, if checkpoints run backwards within it, believes
// too early that it has ended. Within another backward, or if sherd's engine runs, it does nothing.
// Thread rule: the thread that calls execute().
class ForeignBackward {
 public:
  ForeignBackward();
  // Without a call of end() the backward counts as failed for an unknown reason.
  ~ForeignBackward();
  ForeignBackward(const ForeignBackward&) = delete;
  ForeignBackward& operator=(const ForeignBackward&) = delete;

  // Tells the models that took part that backward has ended. `failure` is null if it succeeded;
  // then errors at its end are thrown here.
  void end(const std::exception_ptr& failure);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Brackets the forward of a function that is one node of a graph, such as Python's
// autograd.Function, inside which operators build no graph: to models, a use of their parameters
// there is part of a training forward. Scopes may be nested. Thread rule: the thread that makes it.
class FunctionForward {
 public:
  FunctionForward();
  ~FunctionForward();
  FunctionForward(const FunctionForward&) = delete;
  FunctionForward& operator=(const FunctionForward&) = delete;
};

}  // namespace sherd
