// SPDX-License-Identifier: Apache-2.0
//
// NamedParameters is what a sharding handle gives to an optimizer: this rank's
// slice of each parameter, and what to call when slices have been written. The
// one border between sharding and optimizers; neither knows the other. A value
// whose tensors share memory with the handle. Thread rule: one thread; meeting
// and publishing are for every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd {

struct NamedParameter {
  std::string name;  // The module's own name, e.g. "h.0.attn.c_attn.weight".
  at::Tensor slice;  // 1-D leaf of at least one element; `.grad()` is set when
                     // a synchronised backward returns. Identity is for life.
};

// What an optimizer does to slices while backward still runs.
struct BackwardUpdate {
  std::vector<std::string> names;
  // Takes the sum of the gradients of elements [begin, begin + gradient.numel())
  // of the slice of names[index]: 1-D, contiguous, of the slice's dtype, the
  // caller's again after the call. The parts of a slice come in order, from its
  // first element to its last, once in each synchronised backward, on a thread
  // of that backward; slices of parameters that had no gradient on any rank are
  // left out.
  std::function<void(
      std::size_t index, std::int64_t begin, const at::Tensor& gradient)>
      update;
  // Whether it writes the slices. If not, they may be read as long as backward
  // runs, and another backward may follow before they are published.
  bool writes = true;
};

// A parameter as its ranks hold it together.
struct WholeParameter {
  std::string name;
  std::vector<std::int64_t> shape;  // The module's.
  // Where this rank's slice begins in the flattened parameter.
  std::int64_t slice_begin = 0;
  // Of that shape, in memory that all these ranks see; the `.grad()` of a slice is
  // its part of this. Undefined where frozen, or where nothing is shared.
  at::Tensor gradient = {};
};

// For updates that need more than slices, e.g. Muon's.
struct WholeParameters {
  // In module order, the same on every rank: also those of which this one owns
  // nothing. Empty: plain tensors, each of them whole.
  std::vector<WholeParameter> items;
  int rank = 0;   // Among those that hold parameters together.
  int ranks = 1;  // 1: slices are whole, and so are their gradients.
  // Collective. Each of the numbers (1-D, fp64, contiguous) becomes the largest
  // of all ranks; what a rank wrote into gradients before, others see after.
  // Empty where gradients are not shared.
  std::function<void(const at::Tensor& numbers)> all_reduce_max;
};

struct NamedParameters {
  // In module order; parameters of which this rank owns nothing are left out.
  std::vector<NamedParameter> items;
  // Called by an optimizer at the end of step(), on every rank, also one with
  // no items: makes the new values visible. May be empty (plain tensors).
  std::function<void()> publish;
  // Taken by an optimizer that calls publish in every step(); as long as it
  // holds what it gets, nobody else takes slices as written after a backward.
  // May be empty.
  std::function<std::shared_ptr<void>()> claim;
  // Gives an update to backward for as long as the optimizer holds what it gets:
  // `.grad()` of those slices stays undefined. Gets nullptr, and nothing has
  // changed, where backward cannot do it. Throws Error for a slice whose update
  // is given already. May be empty.
  std::function<std::shared_ptr<void>(BackwardUpdate)> update_in_backward;
  WholeParameters whole = {};
};

// What an optimizer remembers of one slice, for checkpoints. It shares memory
// with the optimizer: writing it restores.
struct OptimizerTensor {
  std::string parameter;
  std::string key;    // "exp_avg"
  at::Tensor tensor;  // As the slice, or one number without dimensions.
};

struct SplitParameters {
  NamedParameters matching;
  NamedParameters rest;
};

// For two optimizers on one model. A parameter goes to `matching` when its name
// matches one of the patterns (ParameterGroup has their rules), else to `rest`.
// Each optimizer publishes, in its own step(); every rank steps them in the same
// order, without reading parameters in between.
SplitParameters split(
    const NamedParameters& parameters,
    const std::vector<std::string>& patterns);

}  // namespace sherd
