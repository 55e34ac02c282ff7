// SPDX-License-Identifier: Apache-2.0
//
// HookStepCounter counts the steps of a hook across handles, for CommHook::state(), because
// GradientBucket::step begins at 0 in each handle. Thread rule: as for CommHook.
#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <sherd/ddp/comm_hook.h>

namespace sherd::ddp {

class HookStepCounter {
 public:
  static constexpr const char* kName = "step";

  std::int64_t at(const GradientBucket& bucket) {
    next_ = bucket.step + 1;
    return before_ + bucket.step;
  }

  at::Tensor state() const { return at::tensor(before_ + next_, at::kLong); }
  void load(const at::Tensor& state) {
    before_ = state.item<std::int64_t>() - next_;
  }
  void reset() { *this = {}; }

 private:
  std::int64_t next_ = 0;    // The next step of the current handle.
  std::int64_t before_ = 0;  // The steps of earlier handles.
};

}  // namespace sherd::ddp
