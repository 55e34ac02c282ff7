// SPDX-License-Identifier: Apache-2.0
#include "cuda_graph.h"

#include <chrono>
#include <cstdio>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <sherd/optim/adamw.h>

#include "../bench/gpu_workload.h"
#include "base/clock.h"
#include "device/stream.h"

namespace sherd::cuda_check {
namespace {

constexpr int kWarmUp = 6;  // Plans are followed by then.
constexpr int kSteps = 40;

models::Gpt gpt_on(const c10::Device& device) {
  torch::manual_seed(3);
  models::Gpt gpt(bench::tiny_gpt());
  gpt->to(device);
  return gpt;
}

class Trainer {
 public:
  explicit Trainer(const c10::Device& device)
      : ids_(at::full({1, 17}, 7, at::dtype(at::kLong).device(device))),
        model_(gpt_on(device)),
        fsdp(fully_shard(*model_, World::single(), bench::mixed_precision())),
        adamw_(fsdp.named_parameters(), {.learning_rate = 1e-3}) {
    ids_.slice(1, 3, 9).fill_(100);
  }

  at::Tensor step() {
    auto loss = model_->loss(
        ids_.slice(1, 0, 16).contiguous(), ids_.slice(1, 1, 17).contiguous());
    loss.backward();
    adamw_.step();
    adamw_.zero_grad();
    return loss.detach();
  }

 private:
  at::Tensor ids_;
  models::Gpt model_;

 public:
  FullyShardedDataParallel fsdp;

 private:
  AdamW adamw_;
};

template <typename Step>
double milliseconds_of(const Step& step) {
  const SteadyClock clock;
  at::accelerator::synchronizeDevice(0);
  const auto start = clock.now();
  for (int i = 0; i < kSteps; ++i) {
    step();
  }
  at::accelerator::synchronizeDevice(0);
  return 1e3 * seconds(clock.now() - start) / kSteps;
}

}  // namespace

bool replays_collectives(
    const c10::intrusive_ptr<c10d::Backend>& nccl, const c10::Device& device) {
  const auto compute = device::Stream::with_high_priority(device);
  const auto gather = device::Stream::with_high_priority(device);
  const device::CurrentStream on(compute);
  const auto options = at::TensorOptions().dtype(at::kFloat).device(device);
  auto shard = at::full({1 << 20}, 1, options);
  auto whole = at::zeros_like(shard);
  const auto step = [&] {
    shard.add_(1);
    gather.wait(compute.record());
    {
      const device::CurrentStream in_gather(gather);
      c10d::AllgatherOptions all_gather;
      all_gather.asyncOp = false;
      nccl->_allgather_base(whole, shard, all_gather);
    }
    compute.wait(gather.record());
    std::vector<at::Tensor> sum{whole};
    c10d::AllreduceOptions all_reduce;
    all_reduce.asyncOp = false;
    nccl->allreduce(sum, all_reduce);
  };
  step();
  at::accelerator::synchronizeDevice(0);
  at::cuda::CUDAGraph graph;
  graph.capture_begin({0, 0}, cudaStreamCaptureModeRelaxed);
  step();
  graph.capture_end();
  bool right = true;
  for (int turn = 1; turn <= 5; ++turn) {
    graph.replay();
    right = right && whole.mean().item<float>() == static_cast<float>(2 + turn);
  }
  return right;
}

bool replays_a_step(const c10::Device& device) {
  // Graphs are captured on a stream that is not the default one.
  const device::CurrentStream on(device::Stream::with_high_priority(device));
  Trainer eager(device);
  Trainer captured(device);
  for (int i = 0; i < kWarmUp; ++i) {
    (void)eager.step();
    (void)captured.step();
  }

  captured.fsdp.synchronize();
  at::cuda::CUDAGraph graph;
  // Other threads, such as that which gathers, take part.
  graph.capture_begin({0, 0}, cudaStreamCaptureModeRelaxed);
  const auto loss = captured.step();
  graph.capture_end();
  captured.fsdp.synchronize();

  const double eager_ms = milliseconds_of([&] { (void)eager.step(); });
  const double replayed_ms = milliseconds_of([&] { graph.replay(); });
  // Both have made as many steps; one more of each, and of the captured model one without its graph.
  const double expected = eager.step().item<double>();
  graph.replay();
  const double found = loss.item<double>();
  const double expected_next = eager.step().item<double>();
  const double found_next = captured.step().item<double>();
  const bool right = found == expected && found_next == expected_next;
  std::printf(
      "a captured step: %s; loss %.6f replayed, %.6f eager, then %.6f and "
      "%.6f; %.2f ms a step replayed, %.2f ms eager\n",
      right ? "right" : "WRONG", found, expected, found_next, expected_next,
      replayed_ms, eager_ms);
  return right;
}

}  // namespace sherd::cuda_check
