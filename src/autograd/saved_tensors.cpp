// SPDX-License-Identifier: Apache-2.0
#include "autograd/saved_tensors.h"

#include <utility>

namespace sherd::autograd {
namespace {

SavedTensorHookFactory*& innermost() {
  thread_local SavedTensorHookFactory* factory = nullptr;
  return factory;
}

}  // namespace

SavedTensorHookScope::SavedTensorHookScope(SavedTensorHookFactory* factory)
    : before_(std::exchange(innermost(), factory)) {}

SavedTensorHookScope::~SavedTensorHookScope() { innermost() = before_; }

SavedTensorHooks saved_tensor_hooks() {
  auto* factory = innermost();
  return factory != nullptr ? factory->make_hooks() : nullptr;
}

}  // namespace sherd::autograd
