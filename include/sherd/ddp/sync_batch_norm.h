// SPDX-License-Identifier: Apache-2.0
//
// Batch normalisation over the batches of all ranks together. A model registers SyncBatchNorm where
// it would have BatchNorm1d, 2d or 3d, whose options, parameters and buffers it has; until
// synchronise_batch_norm() it works as they do. It goes with replicate() and fully_shard() alike.
//
//   struct Net : torch::nn::Module {
//     sherd::SyncBatchNorm norm{nullptr};
//     Net() { norm = register_module("norm", sherd::SyncBatchNorm(64)); }
//   };
//   sherd::synchronise_batch_norm(*model, world);
//
// Mirrors torch.nn.SyncBatchNorm. There is no counterpart of its convert_sync_batchnorm, because a
// C++ module calls its layers through members of a fixed type. docs/guide/replicas.md
#pragma once

#include <iosfwd>
#include <memory>
#include <ATen/core/Tensor.h>
#include <sherd/world/world.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

namespace sherd {

namespace ddp {
class BatchNormGroup;
}

// Thread rule: forwards and backwards of all layers of a model one at a time.
class SyncBatchNormImpl
    : public torch::nn::BatchNormImplBase<1, SyncBatchNormImpl> {
 public:
  using BatchNormImplBase::BatchNormImplBase;

  // `input`: [batch, channels, ...], floating point; the batch may have another size on each rank,
  // also 0. In training mode this is collective, and so is its backward: every rank runs the same
  // layers in the same order. Each element is normalised by the mean and variance of its channel
  // over all ranks. These also go into the running statistics, with the same bits on every rank.
  // Evaluation exchanges nothing. Throws Error, on every rank, when ranks run different layers, when
  // all ranks together have less than two values of a channel, when a rank is lost or does not come
  // before the world's deadline; its backward throws under create_graph.
  at::Tensor forward(const at::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  friend void synchronise_batch_norm(torch::nn::Module&, const World&);
  std::shared_ptr<ddp::BatchNormGroup> group_;  // Null: this rank alone.
  int layer_ = 0;                               // In the group.
};
TORCH_MODULE(SyncBatchNorm);

// Collective over all ranks of the world. From now on every SyncBatchNorm in `module` normalises
// over them; a second call continues with other ranks. Throws Error, on every rank, when models
// differ in these layers, and when there is none.
void synchronise_batch_norm(torch::nn::Module& module, const World& world);

}  // namespace sherd
