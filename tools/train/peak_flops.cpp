// SPDX-License-Identifier: Apache-2.0
#include "train/peak_flops.h"

#include <algorithm>
#include <chrono>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

namespace sherd::tools {
namespace {

constexpr double kMeasured_s = 0.05;

double measured_flops(at::ScalarType dtype, at::Device device) {
  using Clock = std::chrono::steady_clock;
  const c10::InferenceMode inference;
  // No random numbers are used: they would change those of the model.
  const std::int64_t size = device.is_cpu() ? 512 : 8192;
  const auto matrix =
      at::full({size, size}, 0.5, at::dtype(dtype).device(device));
  auto product = at::empty_like(matrix);
  const auto multiply = [&] {
    at::mm_out(product, matrix, matrix);
    if (!device.is_cpu()) {
      at::accelerator::synchronizeDevice(device.index());
    }
  };
  multiply();  // The first one sets up the device's library.
  const auto begin = Clock::now();
  double best_s = 1e9;
  double all_s = 0;
  while (all_s < kMeasured_s) {
    const auto before = Clock::now();
    multiply();
    const auto after = Clock::now();
    best_s =
        std::min(best_s, std::chrono::duration<double>(after - before).count());
    all_s = std::chrono::duration<double>(after - begin).count();
  }
  return 2.0 * static_cast<double>(size * size * size) / best_s;
}

}  // namespace

double peak_flops(
    const World& world, const TrainConfig& config, at::Device device) {
  double here = config.peak_flops;
  if (here == 0) {
    world.all_gather({0});  // So that all measure at the same time.
    here = measured_flops(
        config.dtype == "bf16"       ? at::kBFloat16
            : config.dtype == "fp16" ? at::kHalf
                                     : at::kFloat,
        device);
  }
  double all = 0;
  for (const auto& row : world.all_gather({here})) {
    all += row.front();
  }
  return all;
}

}  // namespace sherd::tools
