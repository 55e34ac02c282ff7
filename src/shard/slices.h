// SPDX-License-Identifier: Apache-2.0
//
// What the optimizer holds: this rank's slice of each parameter, a 1-D leaf
// over shard memory, and its `.grad()` over the sharded gradient. Identity is
// for life; only `.grad()` comes and goes. Thread rule: one thread, or the
// caller's lock.
#pragma once

#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "exchange/exchange.h"
#include "shard/model_units.h"

namespace sherd::shard {

struct Slice {
  std::string name;
  at::Tensor tensor;    // Leaf; shares shard memory.
  at::Tensor gradient;  // Its part of the sharded gradient; undefined: frozen.
  int parameter = 0;    // In ModelUnits::parameters.
};

class Slices {
 public:
  // `owner_of_all`: this rank owns every element of every parameter.
  Slices(
      const ModelUnits& model,
      exchange::Exchange& exchange,
      int rank,
      bool owner_of_all);

  const std::vector<Slice>& all() const { return slices_; }
  std::vector<at::Tensor> tensors() const;

  // Copies this rank's part of a full parameter into shard memory, or back
  // from it.
  void take_from(int parameter, const at::Tensor& full);

  // The same for a parameter that was also shown in another dtype: takes the
  // elements of `full` that differ from the shard, and of the rest those of
  // `shown` that differ from the shard's cast.
  void take_changes(
      int parameter, const at::Tensor& full, const at::Tensor& shown);

  // By flat of the unit: whether the next reduction must add to what
  // `.grad()` says. Prepares the memory where slices of a flat differ.
  std::vector<bool> accumulation(UnitId unit);

  // Sets `.grad()` of the unit's slices whose mark is set; by trainable
  // parameter.
  void set_gradients(UnitId unit, const std::vector<bool>& used);

  // Forgets all gradients.
  void clear_gradients();

 private:
  const ModelUnits& model_;
  std::vector<Slice> slices_;
  std::vector<std::vector<int>> by_unit_;  // Positions in slices_.
  struct Part {
    std::int64_t begin = 0;  // In the parameter.
    int slice = -1;          // In slices_; -1: nothing owned.
  };
  std::vector<Part> parts_;  // By parameter.
};

}  // namespace sherd::shard
