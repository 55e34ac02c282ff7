// SPDX-License-Identifier: Apache-2.0
//
// Runs a body on ranks with devices and again with all tensors on the CPU, and compares what it
// returns, rank by rank:
//
//   expect_as_on_the_cpu(2, [](const World& world, c10::Device device) {
//     ...
//     return values_of(model->parameters());
//   });
#pragma once

#include <functional>
#include <vector>
#include <gtest/gtest.h>
#include <sherd/fsdp/fully_shard.h>
#include "device/device_models.h"
#include "device/device_ranks.h"

namespace sherd::test {

using Values = std::vector<torch::Tensor>;
using ParityBody = std::function<Values(const World&, c10::Device)>;

// Copies on the CPU.
inline Values values_of(const std::vector<torch::Tensor>& tensors) {
  Values values;
  for (const auto& tensor : tensors) {
    values.push_back(tensor.detach().cpu().clone());
  }
  return values;
}

inline torch::Tensor value_of(double number) {
  return torch::tensor(number, torch::kDouble);
}

// Collective: whole parameters, in the module's order.
inline Values whole_parameters_of(
    FullyShardedDataParallel& fsdp, const torch::nn::Module& module) {
  const auto whole = fsdp.summon_full_parameters({.read_only = true});
  Values values;
  for (const auto& item : module.named_parameters()) {
    values.push_back(whole.tensor(item.key()).cpu().clone());
  }
  return values;
}

// A step of gradient descent, and its publish. By hand: AdamW updates neighbouring slices in one kernel,
// whose remainders may be rounded otherwise on the CPU.
inline void descend_by_hand(FullyShardedDataParallel& fsdp) {
  const torch::NoGradGuard no_grad;
  for (const auto& slice : fsdp.parameters()) {
    if (slice.grad().defined()) {
      slice.sub_(slice.grad(), 0.05);
      slice.mutable_grad().reset();
    }
  }
  fsdp.publish();
}

// Units by layer, by messages where parameters are on the CPU.
inline FullyShardOptions layers_by_messages() {
  FullyShardOptions options;
  options.units = units::by_name("*");
  options.exchange = ExchangeKind::kCollective;
  return options;
}

inline std::vector<Values> values_by_rank(
    int ranks, bool on_devices, const ParityBody& body) {
  std::vector<Values> all(static_cast<std::size_t>(ranks));
  run_device_ranks(ranks, [&](const DeviceRank& self) {
    all[static_cast<std::size_t>(self.world.rank())] =
        body(self.world, on_devices ? self.device : c10::Device(c10::kCPU));
  });
  return all;
}

// With a `tolerance` of 0: to the bit.
inline void expect_equal_values(
    const std::vector<Values>& found,
    const std::vector<Values>& expected,
    double tolerance = 0) {
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    ASSERT_EQ(found[rank].size(), expected[rank].size());
    ASSERT_FALSE(expected[rank].empty());
    for (std::size_t i = 0; i < expected[rank].size(); ++i) {
      const auto& mine = found[rank][i];
      const auto& other = expected[rank][i];
      EXPECT_TRUE(
          tolerance == 0 ? torch::equal(mine, other)
                         : torch::allclose(mine, other, tolerance, tolerance))
          << "rank " << rank << ", value " << i << ": " << mine << "\n"
          << other;
    }
  }
}

inline void expect_as_on_the_cpu(
    int ranks, const ParityBody& body, double tolerance = 0) {
  expect_equal_values(
      values_by_rank(ranks, true, body), values_by_rank(ranks, false, body),
      tolerance);
}

}  // namespace sherd::test
