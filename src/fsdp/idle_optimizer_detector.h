// SPDX-License-Identifier: Apache-2.0
//
// IdleOptimizerDetector warns of an optimizer that never changes the shards: one that was made with
// other tensors, such as copies of the parameters, silently does nothing. It compares a sample of the
// shards' bytes, because LibTorch's SGD does not even change version counters, and expects a change
// only where a gradient was not zero. A program that accumulates gradients over many backwards looks
// the same, so the warning names both. Thread rule: the caller's lock.
#pragma once

#include <cstdint>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd::fsdp {

class IdleOptimizerDetector {
 public:
  // After this many backwards without a change, a warning is logged.
  static constexpr std::int64_t kBackwards = 64;

  void remember(const std::vector<at::Tensor>& slices);
  bool changed(const std::vector<at::Tensor>& slices) const {
    return sample(slices) != sample_;
  }
  // Reads `.grad()` after a backward. change_due() is false until a sampled element has had a
  // nonzero gradient, because before that none needs to change.
  void note_gradients(const std::vector<at::Tensor>& slices);
  bool change_due() const { return change_due_; }
  // Logs, once, that nothing changed in this many backwards, and the remedy.
  void warn(std::int64_t backwards);

 private:
  static std::uint64_t sample(const std::vector<at::Tensor>& slices);

  std::uint64_t sample_ = 0;
  bool change_due_ = false;
  bool warned_ = false;
};

}  // namespace sherd::fsdp
