// SPDX-License-Identifier: Apache-2.0
//
// A scope for ranks with different numbers of inputs, for a replicated or a sharded model. A rank
// that has no more inputs takes part, with zeros, in the backwards of those that have.
//
//   auto join = fsdp.join();
//   for (const auto& batch : batches) {
//     model->loss(batch).backward();
//     step();
//   }
//   join.finish(step);
//
// Mirrors torch.distributed.algorithms.Join. Guides: docs/guide/replicas.md,
// docs/guide/micro_batches.md.
#pragma once

#include <functional>
#include <memory>

namespace sherd {

namespace autograd {
class ModelEngine;
}

struct JoinOptions {
  // Behaviour. Sums of gradients are divided by the same number as always, usually the number of
  // all ranks, even if some have no more inputs, so that each input always counts the same. If
  // false, the divisor is the number of ranks that still have inputs.
  bool divide_by_initial_world_size = true;
  // Behaviour. The first rank without inputs ends the scope for all: finish() throws Error there,
  // and on the others finish(), forward (of a sharded model) or backward (of a replicated one)
  // throw Error. The error names that rank.
  bool throw_on_early_termination = false;
};

// Thread rule: as for the handle that made it. A thread has one scope at a time, because a rank
// without inputs takes part in the backwards of one model only.
class JoinScope {
 public:
  JoinScope(JoinScope&&) noexcept;
  JoinScope& operator=(JoinScope&&) = delete;
  // Without finish() the handle is closed, which is an error for the other ranks.
  ~JoinScope();

  // Collective: takes part, with zeros, in the backwards of ranks that still have inputs, until no
  // rank has any. After each backward that reduces gradients it calls `after_backward`, which does
  // what the loop over inputs does there: clipping, the optimizer's step, zero_grad(), and whatever
  // else is collective. Sharded models need it, because each rank updates its own shards.
  // Replicated models do not: the state of their optimizers stays as it is, and at the end every
  // rank gets the parameters of the last rank that had inputs (the highest rank if there are
  // several) and, with ReplicateOptions::broadcast_buffers, its buffers. If a backward was given
  // up, only the ranks with inputs get an error. Throws Error as backward() does.
  void finish(const std::function<void()>& after_backward = nullptr);

 private:
  friend class DistributedDataParallel;
  friend class FullyShardedDataParallel;
  struct State;
  JoinScope(
      std::shared_ptr<autograd::ModelEngine> engine,
      const JoinOptions& options);
  std::shared_ptr<State> state_;
};

}  // namespace sherd
