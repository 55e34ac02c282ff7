// SPDX-License-Identifier: Apache-2.0
//
// Activation checkpointing: the activations of a region of the forward are not kept but recomputed
// in backward. All regions together need the memory of their inputs and of the activations of one
// region; the price is a second forward. Losses and gradients keep their bits.
//
//   x = sherd::checkpoint(
//       [layer](const at::Tensor& x) { return layer->forward(x); }, x);
//
// Mirrors torch.utils.checkpoint.checkpoint(use_reentrant=False): Chen et al., "Training Deep Nets
// with Sublinear Memory Cost", arXiv 1604.06174. Works with and without fully_shard. Thread rule:
// any thread; backward may run on another one. Guide: docs/guide/checkpointing.md, mechanism:
// docs/design/autograd.md.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd {

struct CheckpointOptions {
  // Behaviour: the recomputation draws the same random numbers as the forward, from the default
  // generators of the CPU and of the devices of the inputs. Afterwards the generators' states are
  // as if fn had run once. Costs 5 kB and some microseconds per call.
  bool preserve_rng_state = true;
  // Performance: an exception thrown through fn ends the recomputation at the last tensor that
  // backward needs. If false, fn always runs to its end, and it is also noticed if it saves more
  // tensors than before.
  bool early_stop = true;
};

namespace autograd {

// The scope of a region's forward: while it lives, what autograd saves on this thread is not kept.
// It does nothing if gradients are off or in inference mode.
class CheckpointedForward {
 public:
  using Recompute = std::function<void(std::span<const at::Tensor> inputs)>;

  CheckpointedForward(
      Recompute recompute,
      const std::vector<at::Tensor>& inputs,
      const CheckpointOptions& options);
  ~CheckpointedForward();
  CheckpointedForward(const CheckpointedForward&) = delete;
  CheckpointedForward& operator=(const CheckpointedForward&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

template <typename Function, std::size_t... I>
void call_with_inputs(
    Function& fn,
    [[maybe_unused]] std::span<const at::Tensor> inputs,
    std::index_sequence<I...> /*numbers*/) {
  (void)std::invoke(fn, inputs[I]...);
}

}  // namespace autograd

// Returns fn(inputs...), computed now. Backward runs fn again, on the thread and at the moment that
// first needs one of its tensors, with detached inputs, gradients on, and autocast as it is now. fn
// must do the same each time; it is copied and kept until the graph is gone, so it should capture
// by value, for example the modules' shared_ptrs. Side effects (running statistics, counters)
// happen twice. Inputs may be undefined or without gradient; whatever else fn needs, it captures.
// Regions may be nested. Parameters are read again, not kept. With gradients off, or in inference
// mode, this is just fn(inputs...); else it throws Error at once if an autograd engine other than
// sherd's is installed (a Python process). Backward throws Error if the recomputation saves other
// tensors than the forward did (it names both), or if a parameter or another tensor that fn saves
// has been changed in place before its use; for a changed input it throws LibTorch's c10::Error.
// What fn throws there reaches the caller of backward().
template <typename Function, typename... Inputs>
  requires std::invocable<Function&, const Inputs&...>
auto checkpoint(
    const CheckpointOptions& options, Function fn, const Inputs&... inputs) {
  static_assert(
      (std::is_convertible_v<const Inputs&, const at::Tensor&> && ...),
      "inputs of checkpoint() are tensors; let fn capture anything else");
  const auto shared = std::make_shared<Function>(std::move(fn));
  const autograd::CheckpointedForward first(
      [shared](std::span<const at::Tensor> again) {
        autograd::call_with_inputs(
            *shared, again, std::index_sequence_for<Inputs...>());
      },
      {inputs...}, options);
  return std::invoke(*shared, inputs...);
}

template <typename Function, typename... Inputs>
  requires std::invocable<Function&, const Inputs&...>
auto checkpoint(Function fn, const Inputs&... inputs) {
  return checkpoint(CheckpointOptions(), std::move(fn), inputs...);
}

}  // namespace sherd
