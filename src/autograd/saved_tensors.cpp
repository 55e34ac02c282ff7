// SPDX-License-Identifier: Apache-2.0
#include "autograd/saved_tensors.h"

#include <utility>
#include <torch/csrc/autograd/graph_task.h>

namespace sherd::autograd {
namespace {

const SavedTensorHookScope*& innermost() {
  thread_local const SavedTensorHookScope* scope = nullptr;
  return scope;
}

}  // namespace

SavedTensorHookScope::SavedTensorHookScope(MakeHooks make_hooks)
    : make_hooks_(std::move(make_hooks)),
      task_(torch::autograd::get_current_graph_task_id()),
      before_(std::exchange(innermost(), this)) {}

SavedTensorHookScope::~SavedTensorHookScope() { innermost() = before_; }

SavedTensorHooks SavedTensorHookScope::hooks() {
  const auto* scope = innermost();
  return scope != nullptr &&
          scope->task_ == torch::autograd::get_current_graph_task_id()
      ? scope->make_hooks_()
      : nullptr;
}

}  // namespace sherd::autograd
