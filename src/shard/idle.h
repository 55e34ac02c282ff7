// SPDX-License-Identifier: Apache-2.0
//
// Notices an optimizer that never touches the shards: one built over the
// module's own parameters silently does nothing. Looks at a sample of the
// shards' bytes, because LibTorch's SGD does not even move version counters.
// Thread rule: the caller's lock.
#pragma once

#include <cstdint>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd::shard {

class IdleOptimizer {
 public:
  void remember(const std::vector<at::Tensor>& slices) { sample_ = sample(slices); }
  bool changed(const std::vector<at::Tensor>& slices) const {
    return sample(slices) != sample_;
  }
  // Once: that nothing changed in so many backwards, and the remedy.
  void warn(std::int64_t backwards);

 private:
  static std::uint64_t sample(const std::vector<at::Tensor>& slices);

  std::uint64_t sample_ = 0;
  bool warned_ = false;
};

}  // namespace sherd::shard
