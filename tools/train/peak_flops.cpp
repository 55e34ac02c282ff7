// SPDX-License-Identifier: Apache-2.0
#include "train/peak_flops.h"

#include <algorithm>
#include <chrono>
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

namespace sherd::tools {
namespace {

constexpr std::int64_t kSize = 512;
constexpr double kMeasured_s = 0.05;

double measured_flops(at::ScalarType dtype) {
  using Clock = std::chrono::steady_clock;
  const c10::InferenceMode inference;
  // No random numbers: they would change those of the model.
  const auto matrix = at::full({kSize, kSize}, 0.5, at::dtype(dtype));
  auto product = at::empty_like(matrix);
  const auto begin = Clock::now();
  double best_s = 1e9;
  double all_s = 0;
  while (all_s < kMeasured_s) {
    const auto before = Clock::now();
    at::mm_out(product, matrix, matrix);
    const auto after = Clock::now();
    best_s =
        std::min(best_s, std::chrono::duration<double>(after - before).count());
    all_s = std::chrono::duration<double>(after - begin).count();
  }
  return 2.0 * kSize * kSize * kSize / best_s;
}

}  // namespace

double peak_flops(const World& world, const TrainConfig& config) {
  double here = config.peak_flops;
  if (here == 0) {
    world.all_gather({0});  // So that all measure at the same time.
    here = measured_flops(
        config.dtype == "bf16"       ? at::kBFloat16
            : config.dtype == "fp16" ? at::kHalf
                                     : at::kFloat);
  }
  double all = 0;
  for (const auto& row : world.all_gather({here})) {
    all += row.front();
  }
  return all;
}

}  // namespace sherd::tools
