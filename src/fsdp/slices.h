// SPDX-License-Identifier: Apache-2.0
//
// What the optimizer holds: this rank's slice of each parameter, a 1-D leaf
// over shard memory, and its `.grad()` over the sharded gradient. Identity is
// for life; only `.grad()` comes and goes. Thread rule: one thread, or the
// caller's lock.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>
#include "exchange/exchange.h"
#include "exchange/reducer.h"
#include "fsdp/model_units.h"

namespace sherd::fsdp {

struct Slice {
  std::string name;
  at::Tensor tensor;    // Leaf; shares shard memory.
  at::Tensor gradient;  // Its part of the sharded gradient; undefined: frozen.
  int parameter = 0;    // In ModelUnits::parameters.
  // Of an optimizer that updates it in backward, and its number there.
  std::weak_ptr<const BackwardUpdate> update = {};
  std::size_t update_index = 0;
};

class Slices : public exchange::ReducedGradients {
 public:
  // `owner_of_all`: this rank owns every element of every parameter.
  Slices(
      const ModelUnits& model,
      exchange::Exchange& exchange,
      int rank,
      bool owner_of_all);

  const std::vector<Slice>& all() const { return slices_; }
  std::vector<at::Tensor> tensors() const;
  // Where this rank's slice begins in the flattened parameter.
  std::int64_t begin_of(int parameter) const {
    return parts_[static_cast<std::size_t>(parameter)].begin;
  }

  // Copies this rank's part of a full parameter into shard memory, or back
  // from it.
  void copy_from_full(int parameter, const at::Tensor& full);

  // The same for a parameter that was also shown in another dtype: takes the
  // elements of `full` that differ from the shard, and of the rest those of
  // `shown` that differ from the shard's cast.
  void copy_changed_elements(
      int parameter, const at::Tensor& full, const at::Tensor& shown);

  // By flat of the unit: whether the next reduction must add to what
  // `.grad()` says. Prepares the memory where slices of a flat differ.
  std::vector<bool> accumulation(UnitId unit) override;

  // Sets `.grad()` of the unit's slices whose mark is set; by trainable
  // parameter.
  void set_gradients(UnitId unit, const std::vector<bool>& used) override;

  // As NamedParameters::update_in_backward, of slices of parameters that travel
  // alone (exchange); others keep their gradients.
  std::shared_ptr<void> register_backward_update(BackwardUpdate update);
  // Whether an optimizer takes gradients in backward, and whether one updates
  // slices there.
  bool updates_in_backward() const override;
  bool writes_in_backward() const;
  // By trainable parameter of the unit, as exchange::ReduceOptions::sinks.
  std::vector<exchange::ReduceOptions::GradientSink> sinks(UnitId unit) const override;

  // Whether the last backward brought the parameter a gradient on some rank, or
  // this rank's slice has one still.
  bool has_gradient(int parameter) const;
  // Forgets that of one parameter, or all.
  void clear_gradient(int parameter);
  void clear_gradients() override;

 private:
  const ModelUnits& model_;
  std::vector<Slice> slices_;
  std::unordered_map<std::string, std::size_t> by_name_;  // In slices_.
  std::vector<std::weak_ptr<const BackwardUpdate>> updates_;
  std::vector<std::vector<int>> by_unit_;  // Positions in slices_.
  struct Part {
    std::int64_t begin = 0;  // In the parameter.
    int slice = -1;          // In slices_; -1: nothing owned.
  };
  std::vector<Part> parts_;                   // By parameter.
  std::vector<std::vector<int>> parameters_;  // By unit.
  std::vector<bool> used_;  // By parameter, in the last backward.
};

}  // namespace sherd::fsdp
