// SPDX-License-Identifier: Apache-2.0
//
// A scope for ranks with different numbers of inputs, of a replicated or a sharded model. A rank that
// has no more inputs takes part, with zeros, in the backwards of those that have.
//
//   auto join = fsdp.join();
//   for (const auto& batch : batches) {
//     model->loss(batch).backward();
//     step();
//   }
//   join.finish(step);
//
// Mirrors torch.distributed.algorithms.Join. Guides: docs/guide/replicas.md, docs/guide/units.md.
#pragma once

#include <functional>
#include <memory>

namespace sherd {

namespace autograd {
class ModelEngine;
}

struct JoinOptions {
  // Behaviour. Sums of gradients are divided by what they always are, most often the number of all
  // ranks, even if some have no more inputs, so that each input always counts the same. With false
  // the divisor shrinks with the number of ranks that still have inputs.
  bool divide_by_initial_world_size = true;
  // Behaviour. The first rank without inputs ends the scope for all: finish() there, and on the
  // others finish(), forward (of a sharded model) or backward (of a replicated one), throw Error
  // naming it.
  bool throw_on_early_termination = false;
};

// Thread rule: as the handle that made it. One scope of a model at a time.
class JoinScope {
 public:
  JoinScope(JoinScope&&) noexcept;
  JoinScope& operator=(JoinScope&&) = delete;
  // Without finish() the handle is closed, with an error on the other ranks.
  ~JoinScope();

  // Collective: takes part, with zeros, in the backwards of ranks that still have inputs, until no
  // rank has any. After each that reduces gradients it calls `after_backward`, which does what the
  // loop over inputs does there: clipping, the optimizer's step, zero_grad(), and whatever else is
  // collective. Sharded models need it, since each rank updates its own shards. Replicated ones do
  // without: their optimizers' state stays as it is, and at the end every rank gets the parameters
  // of the last rank that had inputs (the highest rank if there are several), and its buffers with
  // ReplicateOptions::broadcast_buffers. A backward
  // that was given up is an error of the ranks with inputs only. Throws Error as backward() does.
  void finish(const std::function<void()>& after_backward = nullptr);

 private:
  friend class DistributedDataParallel;
  friend class FullyShardedDataParallel;
  explicit JoinScope(std::shared_ptr<autograd::ModelEngine> engine);
  std::shared_ptr<autograd::ModelEngine> engine_;
};

}  // namespace sherd
