// SPDX-License-Identifier: Apache-2.0
//
// UpdateCounts says how often each slice was updated, as floats, because PyTorch keeps floats in
// checkpoints and its kernels read them. For slices on a device, the kernels read a copy there, to
// which a kernel adds, so that a step captured in a graph continues to count when it is replayed.
// The host reads the copy only when it is asked. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace sherd::optim {

class UpdateCounts {
 public:
  // `devices` is by slice. All counts are 0.
  explicit UpdateCounts(const std::vector<c10::Device>& devices);

  // Counts one more update of each of these slices, in ascending order, or of one slice.
  void count(const std::vector<std::size_t>& slices);
  void count_one(std::size_t slice);

  // The count without updates replayed since the last on_host().
  std::int64_t of(std::size_t slice) const {
    return static_cast<std::int64_t>(counts_.const_data_ptr<float>()[slice]);
  }
  // A scalar on the slice's device, valid until the next count().
  at::Tensor for_kernel(std::size_t slice) const;
  // The scalar for checkpoints; writing it sets the count. The host waits for a device.
  at::Tensor on_host(std::size_t slice);

 private:
  struct Increments {
    std::vector<std::size_t> slices;
    at::Tensor ones;  // 0 for the other slices.
  };
  // The slices of one device other than the CPU. Inside it they are known by their indices in
  // `slices`.
  struct Copy {
    c10::Device device;
    std::vector<std::size_t> slices = {};
    at::Tensor counts = {};         // Undefined before the first update.
    std::vector<float> known = {};  // The counts as the host knows them.
    std::vector<std::size_t> counted = {};  // By the last update.
    std::vector<Increments> increments = {};
  };
  struct Position {
    std::size_t copy = 0;
    std::size_t at = 0;
  };

  float& value(std::size_t slice) {
    return counts_.mutable_data_ptr<float>()[slice];
  }
  // Takes over the device's counts, except where the host's count was written meanwhile.
  void fetch(Copy& copy);
  // Sends what the host has written to the device.
  void bring_up_to_date(Copy& copy);
  void add(Copy& copy, const std::vector<std::size_t>& slices);
  static at::Tensor increments(
      Copy& copy, const std::vector<std::size_t>& slices);

  at::Tensor counts_;  // On the CPU, one float a slice.
  std::vector<Copy> copies_;
  std::vector<std::optional<Position>> positions_;  // Unset: on the CPU.
};

}  // namespace sherd::optim
