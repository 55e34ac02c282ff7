// SPDX-License-Identifier: Apache-2.0
//
// What scripts/cuda_check.py links and starts: it counts CUDA devices, and where there is one, it
// lets two streams wait for each other and gathers over NCCL with itself.
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/clock.h"
#include "compat/nccl_backend.h"
#include "device/last_use.h"
#include "device/stream.h"
#include "exchange/flat_collectives.h"

namespace {

using sherd::device::CurrentStream;
using sherd::device::LastUse;
using sherd::device::Place;
using sherd::device::Stream;

constexpr std::int64_t kNumel = 1 << 24;

// Gathers into one place and computes with it, by turns; returns whether the sum was right each time.
bool take_turns(const c10::Device& device) {
  const auto nccl = sherd::compat::make_nccl_backend(
      c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::minutes(1));
  sherd::plan::FlatLayout layout;
  layout.numel = kNumel;
  layout.cuts = {0, kNumel};
  const auto compute = Stream::current(device);
  const auto gather = Stream::with_high_priority(device);
  const auto options = at::TensorOptions().device(device);
  const auto place = at::empty({kNumel}, options);
  LastUse uses;
  uses.record(Place::of(place), compute);
  bool right = true;
  for (int turn = 1; turn <= 20; ++turn) {
    const auto shard = at::full({kNumel}, turn, options);
    gather.wait(compute.record());
    uses.wait(Place::of(place), gather);
    {
      const CurrentStream on(gather);
      sherd::exchange::gather_flat(nccl, layout, shard, place);
    }
    compute.wait(gather.record());
    right = right && place.mean().item<float>() == static_cast<float>(turn);
    uses.record(Place::of(place), compute);
  }
  return right;
}

double microseconds_of_a_wait(const c10::Device& device) {
  const auto compute = Stream::current(device);
  const auto gather = Stream::with_high_priority(device);
  constexpr int kTimes = 10'000;
  const sherd::SteadyClock clock;
  const auto start = clock.now();
  for (int i = 0; i < kTimes; ++i) {
    gather.wait(compute.record());
  }
  const std::chrono::duration<double, std::micro> took = clock.now() - start;
  return took.count() / kTimes;
}

int run() {
  const int devices = c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
  std::printf(
      "%d devices, NCCL is %sbuilt\n", devices,
      sherd::compat::nccl_is_built() ? "" : "not ");
  if (!sherd::compat::nccl_is_built()) {
    return 1;
  }
  if (devices == 0) {
    try {
      (void)Stream::with_high_priority(c10::Device(c10::kCUDA, 0));
    } catch (const std::exception& error) {
      const std::string text = error.what();
      std::printf("a stream: %s\n", text.substr(0, text.find('\n')).c_str());
      return 0;
    }
    return 1;
  }
  const c10::Device device(c10::kCUDA, 0);
  const bool right = take_turns(device);
  std::printf(
      "gathers in a stream of their own: %s; an event and a wait: %.2f us\n",
      right ? "right" : "WRONG", microseconds_of_a_wait(device));
  return right ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
    return 1;
  }
}
