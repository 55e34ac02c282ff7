// SPDX-License-Identifier: Apache-2.0
//
// ReplicaGradients copies a rank's gradients into the buffer of the all-reduce across replicas,
// bucket by bucket, during the last backward of the step if that one is announced; and it shows the
// sum as `.grad()`. If gradients are on a device, copies in both directions run in the current
// stream, gradients are copied after backward, and the buffer should be pinned. Thread rule: the
// training thread; the threads of backward add their sums.
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
  // Throws Error for slices that are not fp32, are not all on one device, or are updated by an
  // optimizer in backward.
  ReplicaGradients(
      const NamedParameters& parameters, std::int64_t bucket_elements);
  ReplicaGradients(const ReplicaGradients&) = delete;
  ReplicaGradients& operator=(const ReplicaGradients&) = delete;

  c10::Device device() const { return device_; }
  const GradientLayout& layout() const { return layout_; }
  // The names of the slices.
  const std::vector<std::string>& names() const { return names_; }

  // Begins a step: gradients are written to `to` in the layout's order, and `give` is called for
  // each complete bucket. Clears `.grad()`.
  void begin(float* to, std::function<void(int bucket)> give);
  // The next synchronised backward is the last one of the step.
  void last_backward();
  // Copies what backward has not copied. Throws Error if a backward was interrupted.
  void finish();

  // Shows a bucket of the sum of all replicas, which lies in the layout's order, as `.grad()`, except
  // of slices of which no replica has a gradient. The bucket must stay unchanged until clear(), since
  // a device may still read it.
  void show(int bucket, const float* sum);
  // Clears `.grad()`.
  void clear();

 private:
  struct SliceState {
    at::Tensor parameter;
    at::Tensor sum;        // Shown as `.grad()`; undefined until then.
    bool earlier = false;  // Earlier backwards of the step have added to it.
    // Elements that came in the last backward.
    std::atomic<std::int64_t> came{0};
  };
  BackwardUpdate all_of(decltype(BackwardUpdate::update) update) const;
  at::Tensor sum_tensor(std::size_t index) const;
  bool copy_from_grad(std::size_t index);
  void add_part(std::size_t index, std::int64_t begin, const at::Tensor& part);
  // Marks the slice, of which all elements are there.
  void mark(std::size_t index, bool has_gradient);
  void count(std::size_t index, std::int64_t elements);

  const NamedParameters parameters_;
  const c10::Device device_;
  const std::vector<std::string> names_;
  // Also of parameters of which this rank owns nothing.
  const std::vector<std::string> whole_names_;
  const GradientLayout layout_;
  std::vector<SliceState> slices_;
  // The number of elements, by bucket.
  std::vector<std::atomic<std::int64_t>> missing_elements_;
  float* to_ = nullptr;
  std::function<void(int bucket)> give_;
  std::shared_ptr<void> taken_;      // Takes backward's sums while it lives.
  std::uint64_t broken_before_ = 0;  // At begin().
  // Used if gradients are on a device:
  std::vector<std::pair<int, device::Event>> copied_;  // The buckets, in order.
  // Recorded when the sum was read.
  device::Event shown_;
};

}  // namespace sherd::ft
