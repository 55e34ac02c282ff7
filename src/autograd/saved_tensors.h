// SPDX-License-Identifier: Apache-2.0
//
// Hooks for the tensors that autograd saves for backward. LibTorch asks its engine for hooks
// whenever it saves a tensor, and sherd's engine asks the innermost SavedTensorHookScope of the
// thread. Mirrors torch.autograd.graph.saved_tensors_hooks, whose C++ side takes only Python
// functions. Thread rule: a scope affects the thread that made it, and there not the nodes of a
// backward that begins within the scope: where those run depends on devices and on the depth of
// nesting, and an exception from hooks would pass through LibTorch's engine.
#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace sherd::autograd {

using SavedTensorHooks = std::unique_ptr<torch::autograd::SavedVariableHooks>;

// REQUIRES: scopes of a thread end in reverse order.
class SavedTensorHookScope {
 public:
  // Returns hooks for a tensor that is about to be saved. They may be dropped unused.
  using MakeHooks = std::function<SavedTensorHooks()>;
  explicit SavedTensorHookScope(MakeHooks make_hooks);
  ~SavedTensorHookScope();
  SavedTensorHookScope(const SavedTensorHookScope&) = delete;
  SavedTensorHookScope& operator=(const SavedTensorHookScope&) = delete;

  // Hooks of the innermost scope for a tensor. Null, so that autograd keeps the tensor itself,
  // outside any scope and in a backward that began within that scope.
  static SavedTensorHooks hooks();

 private:
  const MakeHooks make_hooks_;
  const int
      task_;  // LibTorch's number of the backward in which the scope began.
  const SavedTensorHookScope* const before_;
};

}  // namespace sherd::autograd
