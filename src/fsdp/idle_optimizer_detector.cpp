// SPDX-License-Identifier: Apache-2.0
#include "fsdp/idle_optimizer_detector.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"

namespace sherd::fsdp {
namespace {

constexpr std::int64_t kSamplesPerSlice = 512;

std::int64_t stride_of(const at::Tensor& slice) {
  return std::max<std::int64_t>(1, slice.numel() / kSamplesPerSlice);
}

}  // namespace

std::uint64_t IdleOptimizerDetector::sample(
    const std::vector<at::Tensor>& slices) {
  Hash64 hash;
  for (const auto& slice : slices) {
    if (!slice.requires_grad()) {
      continue;
    }
    const auto size = static_cast<std::int64_t>(slice.element_size());
    // On the CPU no copy.
    const auto seen =
        slice.detach().slice(0, 0, slice.numel(), stride_of(slice)).cpu();
    const auto* bytes = static_cast<const char*>(seen.const_data_ptr());
    for (std::int64_t i = 0; i < seen.numel(); ++i) {
      std::uint64_t word = 0;
      std::memcpy(
          &word, bytes + i * seen.stride(0) * size,
          std::min<std::size_t>(sizeof(word), static_cast<std::size_t>(size)));
      hash.add(word);
    }
  }
  return hash.value();
}

void IdleOptimizerDetector::remember(const std::vector<at::Tensor>& slices) {
  sample_ = sample(slices);
}

void IdleOptimizerDetector::note_gradients(
    const std::vector<at::Tensor>& slices) {
  for (const auto& slice : slices) {
    const auto& gradient = slice.grad();
    if (gradient.defined() && !change_due_) {
      // The elements that sample() looks at.
      const auto seen =
          gradient.slice(0, 0, gradient.numel(), stride_of(gradient));
      change_due_ = seen.count_nonzero().item<std::int64_t>() > 0;
    }
  }
}

void IdleOptimizerDetector::warn(std::int64_t backwards) {
  if (!warned_) {
    warned_ = true;
    log_warning(
        str("[fsdp] no parameter has changed in ", backwards,
            " backwards: no optimizer over fsdp.parameters() or "
            "fsdp.named_parameters() has made a step; if one should have, it "
            "was made over other tensors, such as copies of "
            "model->parameters(). If gradients accumulate over more backwards, "
            "or are only looked at, this is as it should be"));
  }
}

}  // namespace sherd::fsdp
