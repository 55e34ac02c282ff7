// SPDX-License-Identifier: Apache-2.0
//
// Slices are what the optimizer holds: this rank's slice of each parameter, a 1-D leaf over shard
// memory, and its `.grad()` over the sharded gradient. The tensors stay the same for life; only
// `.grad()` comes and goes. Thread rule: one thread, or the caller's lock.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>
#include "exchange/exchange.h"
#include "exchange/reducer.h"
#include "fsdp/model_units.h"

namespace sherd::fsdp {

class Slices : public exchange::ReducedGradients {
 public:
  struct Slice {
    std::string name;
    at::Tensor tensor;             // A leaf that shares shard memory.
    const void* memory = nullptr;  // Where the tensor lies for life.
    at::Tensor gradient;  // Part of the sharded gradient; undefined: none.
    int parameter = 0;    // Index in ModelUnits::parameters.
    // The update that an optimizer makes in backward, and the slice's index in it.
    std::weak_ptr<const BackwardUpdate> update = {};
    std::size_t update_index = 0;
  };

  // `owner_of_all`: whether this rank owns every element of every parameter. Model and exchange
  // must outlive it.
  Slices(
      const ModelUnits& model,
      exchange::Exchange& exchange,
      int rank,
      bool owner_of_all);

  const std::vector<Slice>& all() const { return slices_; }
  std::vector<at::Tensor> tensors() const;
  // Throws Error if somebody has given a slice other memory, as `slice.data = tensor` does in Python.
  void check_memory() const;
  // A number that changes when an operator writes a slice in place.
  std::uint64_t versions() const;

  // The bytes of this rank's shards, their gradients and, in mixed precision, their casts. For a
  // unit that has been `frozen` so far, no gradient was ever stored.
  std::int64_t shard_bytes(const std::function<bool(UnitId)>& frozen) const;
  // Whether every gradient lies in memory that all ranks of the shard axis see.
  bool gradients_are_shared() const;
  // The parameters as ranks hold them together, for optimizers; parameters without elements are
  // left out.
  std::vector<WholeParameter> whole_parameters() const;

  // Copies this rank's part of a full parameter into shard memory.
  void copy_from_full(int parameter, const at::Tensor& full);

  // The same for a parameter that was also shown in another dtype: takes the elements of `full`
  // that differ from the shard and, among the others, those of `shown` that differ from the shard's
  // cast.
  void copy_changed_elements(
      int parameter, const at::Tensor& full, const at::Tensor& shown);

  // By flat of the unit: whether the next reduction must add to the values in `.grad()`. Prepares
  // the memory if slices of a flat differ.
  std::vector<bool> accumulation(UnitId unit) override;

  // Sets `.grad()` of the unit's used slices; `used` is by trainable parameter.
  void set_gradients(UnitId unit, const std::vector<bool>& used) override;
  // Whether the next backward adds to the gradients of this one, so that hooked() also returns the
  // slices of this one: under no_sync() on one rank.
  void set_adds_up(bool adds_up) { adds_up_ = adds_up; }

  // Like NamedParameters::update_in_backward, for slices of parameters whose gradients may bypass
  // the unit's slot; other slices keep their gradients.
  std::shared_ptr<void> register_backward_update(BackwardUpdate update);
  // Whether an optimizer takes gradients in backward, and whether one writes slices there.
  bool updates_in_backward() const override;
  bool writes_in_backward() const;
  // Whether some slice has a hook that is called after its gradient was accumulated.
  bool has_hooks() const override;
  // The slices that have such a hook and got a gradient in the last backward, or in an earlier one to
  // whose gradients it has added.
  std::vector<at::Tensor> hooked() const;
  // By trainable parameter of the unit, as in exchange::ReduceOptions::sinks.
  std::vector<exchange::ReduceOptions::GradientSink> sinks(
      UnitId unit) const override;

  // Whether the parameter got a gradient on some rank in the last backward, or this rank's slice
  // still has one.
  bool has_gradient(int parameter) const;
  // Whether any slice of this rank has a gradient.
  bool any_gradient() const;
  // Remembers a few elements of some slices that have gradients, of which an optimizer's step changes
  // at least one; none that lie on a device, for which the host would wait.
  void remember_sample();
  // Whether one of them has other bits by now.
  bool sample_changed() const { return digest_of_sample() != sample_digest_; }
  // This rank's slice of its gradient, on the CPU, in the dtype of sharded gradients; zeros if it
  // has none; undefined if this rank owns no part of the parameter.
  at::Tensor gradient_of(int parameter) const;
  // Whether this rank's slice has a gradient; false if there is no slice.
  bool slice_has_gradient(int parameter) const;
  // This rank's part of a full tensor, 1-D, sharing its memory; undefined where it owns nothing.
  at::Tensor part_of(int parameter, const at::Tensor& full) const;
  // Copies those elements of `now` that differ from `before`, both of this rank's slice, into the
  // gradient of the slice; all of them where it has none. REQUIRES: it owns some.
  void copy_changed_gradient(
      int parameter, const at::Tensor& now, const at::Tensor& before);
  // Forgets the gradient of one parameter, or all.
  void clear_gradient(int parameter);
  void clear_gradients() override;

 private:
  // This rank's slice of the parameter, or null if it owns no part of it.
  const Slice* find(int parameter) const {
    const int slice = parts_[static_cast<std::size_t>(parameter)].slice;
    return slice < 0 ? nullptr : &slices_[static_cast<std::size_t>(slice)];
  }

  std::uint64_t digest_of_sample() const;

  const ModelUnits& model_;
  exchange::Exchange& exchange_;
  const bool owner_of_all_;
  std::vector<Slice> slices_;
  std::vector<std::weak_ptr<const BackwardUpdate>> updates_;
  std::vector<std::vector<int>> by_unit_;  // Indices in slices_.
  struct Part {
    std::int64_t begin = 0;  // In the flattened parameter.
    int slice = -1;          // Index in slices_; -1: no part is owned.
  };
  std::vector<Part> parts_;                   // By parameter.
  std::vector<std::vector<int>> parameters_;  // By unit.
  // By parameter: whether some rank had a gradient in the last backward.
  std::vector<bool> used_;
  bool adds_up_ = false;
  std::vector<std::size_t> sampled_;  // Indices in slices_.
  std::uint64_t sample_digest_ = 0;
};

}  // namespace sherd::fsdp
