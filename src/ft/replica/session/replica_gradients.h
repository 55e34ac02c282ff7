// SPDX-License-Identifier: Apache-2.0
//
// ReplicaGradients copies a rank's gradients into the buffer of the all-reduce across replicas,
// bucket by bucket, during the step's last backward if that one is announced; and shows the sum as
// `.grad()`. Where they are on a device, copies both ways are in the current stream, gradients are
// copied when backward is over, and the buffer should be pinned. Thread rule: the one that trains;
// the threads of backward add their sums.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>
#include "device/stream.h"
#include "ft/replica/session/gradient_layout.h"

namespace sherd::ft {

class ReplicaGradients {
 public:
  // Throws Error for slices that are not fp32 or not all on one device, or that an optimizer updates
  // in backward.
  ReplicaGradients(
      const NamedParameters& parameters, std::int64_t bucket_elements);
  ReplicaGradients(const ReplicaGradients&) = delete;
  ReplicaGradients& operator=(const ReplicaGradients&) = delete;

  c10::Device device() const { return device_; }
  const GradientLayout& layout() const { return layout_; }
  // The names of the slices.
  const std::vector<std::string>& names() const { return names_; }

  // Begins a step: gradients are written to `to` in the layout's order, and `give` is called for each
  // bucket that is complete. Clears `.grad()`.
  void begin(float* to, std::function<void(int bucket)> give);
  // The next synchronised backward is the last one of the step.
  void last_backward();
  // Copies what backward has not copied. Throws Error when a backward broke off.
  void finish();

  // A bucket of the sum of all replicas, which lies in the layout's order, becomes `.grad()`. It stays
  // unchanged until clear(), since a device may still read it.
  void show(int bucket, const float* sum);
  // Clears `.grad()`.
  void clear();

 private:
  struct SliceState {
    at::Tensor parameter;
    at::Tensor sum;        // Shown as `.grad()`; undefined until then.
    bool earlier = false;  // Backwards before the last one have added some.
    std::atomic<std::int64_t> came{0};  // Elements, in the last backward.
  };
  BackwardUpdate all_of(decltype(BackwardUpdate::update) update) const;
  at::Tensor sum_tensor(std::size_t index) const;
  bool copy_from_grad(std::size_t index);
  void add_part(std::size_t index, std::int64_t begin, const at::Tensor& part);
  void count(std::size_t index, std::int64_t elements);

  const NamedParameters parameters_;
  const c10::Device device_;
  const std::vector<std::string> names_;
  const GradientLayout layout_;
  std::vector<SliceState> slices_;
  std::vector<std::atomic<std::int64_t>>
      missing_elements_;  // Elements, by bucket.
  float* to_ = nullptr;
  std::function<void(int bucket)> give_;
  std::shared_ptr<void> taken_;  // Backward's sums, while it lives.
  // Where gradients are on a device:
  std::vector<std::pair<int, device::Event>> copied_;  // Buckets, in order.
  device::Event shown_;                                // The sum was read.
};

}  // namespace sherd::ft
