// SPDX-License-Identifier: Apache-2.0
#include "access/saved_tensors.h"

#include <utility>

namespace sherd::access {
namespace {

SavedTensorTaker*& innermost() {
  thread_local SavedTensorTaker* taker = nullptr;
  return taker;
}

}  // namespace

TakeSavedTensors::TakeSavedTensors(SavedTensorTaker* taker)
    : before_(std::exchange(innermost(), taker)) {}

TakeSavedTensors::~TakeSavedTensors() { innermost() = before_; }

SavedTensorHooks saved_tensor_hooks() {
  auto* taker = innermost();
  return taker != nullptr ? taker->make_hooks() : nullptr;
}

}  // namespace sherd::access
