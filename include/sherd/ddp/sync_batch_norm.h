// SPDX-License-Identifier: Apache-2.0
//
// Batch normalisation over the batches of all ranks together. A model registers SyncBatchNorm
// instead of BatchNorm1d, 2d or 3d; it has their options, parameters and buffers, and works as they
// do until synchronise_batch_norm() is called. It works with both replicate() and fully_shard().
//
//   struct Net : torch::nn::Module {
//     sherd::SyncBatchNorm norm{nullptr};
//     Net() { norm = register_module("norm", sherd::SyncBatchNorm(64)); }
//   };
//   sherd::synchronise_batch_norm(*model, world);
//
// convert_sync_batch_norm() converts the layers of an existing model as far as C++ allows it.
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

// Thread rule: only one forward or backward of a model's layers at a time.
class SyncBatchNormImpl
    : public torch::nn::BatchNormImplBase<1, SyncBatchNormImpl> {
 public:
  using BatchNormImplBase::BatchNormImplBase;

  // `input`: [batch, channels, ...], floating point; the batch size may differ between ranks and
  // may be 0. In training mode this is collective, and so is its backward: every rank runs the same
  // layers in the same order. Each element is normalised by the mean and variance of its channel
  // over all ranks. These also go into the running statistics, with the same bits on every rank. In
  // evaluation mode nothing is exchanged. Throws Error, on every rank, if ranks run different
  // layers, if all ranks together have fewer than two values of a channel, or if a rank is lost or
  // does not come before the world's deadline. Its backward throws with create_graph.
  at::Tensor forward(const at::Tensor& input);

  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  friend void synchronise_batch_norm(torch::nn::Module&, const World&);
  friend int convert_sync_batch_norm(torch::nn::Module&);
  // Returns a SyncBatchNorm that shares the parameters and buffers of a BatchNorm1d, 2d or 3d; null
  // if `norm` is none of these.
  static std::shared_ptr<SyncBatchNormImpl> converted(
      const torch::nn::Module& norm);
  std::shared_ptr<ddp::BatchNormGroup> group_;  // Null: this rank only.
  int layer_ = 0;                               // Its index in the group.
};
TORCH_MODULE(SyncBatchNorm);

// Replaces each BatchNorm1d, 2d and 3d in `module` by a SyncBatchNorm with the same parameters and
// the same buffers, under the same names, and returns their number. Call it before
// synchronise_batch_norm() and before the module is replicated or sharded. Only a layer of a
// Sequential can be replaced, since only a Sequential calls its layers whatever their types are; a
// member of a module, or an element of a ModuleList or ModuleDict, is called as the type that the
// code names. Throws Error, and changes nothing, if there are layers in other places; it names
// them. Mirrors torch.nn.SyncBatchNorm.convert_sync_batchnorm.
int convert_sync_batch_norm(torch::nn::Module& module);

// Collective over all ranks of the world. From now on every SyncBatchNorm in `module` normalises
// over these ranks; a second call continues with other ranks. Throws Error, on every rank, if
// models differ in these layers, or if there is none.
void synchronise_batch_norm(torch::nn::Module& module, const World& world);

}  // namespace sherd
