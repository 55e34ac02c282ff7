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
// The layers of a finished model are converted as far as C++ allows it: convert_sync_batch_norm().
//
// Mirrors torch.nn.SyncBatchNorm. docs/guide/replicas.md
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
  friend int convert_sync_batch_norm(torch::nn::Module&);
  // In the place of a BatchNorm1d, 2d or 3d, whose parameters and buffers it shares. Null: it is none.
  static std::shared_ptr<SyncBatchNormImpl> converted(
      const torch::nn::Module& norm);
  std::shared_ptr<ddp::BatchNormGroup> group_;  // Null: this rank alone.
  int layer_ = 0;                               // In the group.
};
TORCH_MODULE(SyncBatchNorm);

// Puts a SyncBatchNorm in the place of each BatchNorm1d, 2d and 3d in `module` and returns their number.
// It has the same parameters, and buffers in the same memory, under the same names. Call it before
// synchronise_batch_norm() and before the module is replicated or sharded. Only a Sequential can be
// given another layer, since it alone calls its layers whatever their type is; a member of a module, and
// what a ModuleList or ModuleDict holds, is called as the type that the code names. Throws Error that
// names the layers in other places, and changes nothing then. Mirrors
// torch.nn.SyncBatchNorm.convert_sync_batchnorm.
int convert_sync_batch_norm(torch::nn::Module& module);

// Collective over all ranks of the world. From now on every SyncBatchNorm in `module` normalises
// over them; a second call continues with other ranks. Throws Error, on every rank, when models
// differ in these layers, and when there is none.
void synchronise_batch_norm(torch::nn::Module& module, const World& world);

}  // namespace sherd
