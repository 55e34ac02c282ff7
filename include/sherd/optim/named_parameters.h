// SPDX-License-Identifier: Apache-2.0
//
// NamedParameters is what a sharding handle gives to an optimizer: this rank's slice of each
// parameter, and what to call when slices have been written. It is the only interface between
// sharding and optimizers. A value whose tensors share memory with the handle. Thread rule: one
// thread; every rank calls publish and all_reduce_max.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd {

struct NamedParameter {
  std::string name;  // The module's own name, e.g. "h.0.attn.c_attn.weight".
  // 1-D leaf of at least one element, the same tensor for life. `.grad()` is set when a
  // synchronised backward returns.
  at::Tensor slice;
};

// An update that an optimizer makes while backward still runs.
struct BackwardUpdate {
  std::vector<std::string> names;
  // Called with the summed gradient of elements [begin, begin + gradient.numel()) of the slice of
  // names[index]: 1-D, contiguous, in the slice's dtype, valid during the call. The parts of a
  // slice come in order, from its first element to its last, once in each synchronised backward, on
  // a thread of that backward; slices of parameters that had no gradient on any rank are left out.
  std::function<void(
      std::size_t index, std::int64_t begin, const at::Tensor& gradient)>
      update;
  // Whether it writes the slices. If not, they may be read while backward runs, and another
  // backward may follow before they are published.
  bool writes = true;
};

// A parameter as its ranks hold it together.
struct WholeParameter {
  std::string name;
  std::vector<std::int64_t> shape;  // Its shape in the module.
  // Where this rank's slice begins in the flattened parameter.
  std::int64_t slice_begin = 0;
  // The whole gradient, in that shape, in memory that all these ranks see; the `.grad()` of a slice
  // is its part of this. Undefined where frozen, or where nothing is shared.
  at::Tensor gradient = {};
  // Dtype and device of slices.
  at::TensorOptions options = {};
  // Where each rank's slice begins in the flattened parameter, and last its elements. Empty where
  // frozen, or where slices are whole.
  std::vector<std::int64_t> cuts = {};
};

// For updates that need more than slices, e.g. Muon's.
struct WholeParameters {
  // In module order, the same on every rank, including those of which this one owns nothing. Empty:
  // plain tensors, each of them whole.
  std::vector<WholeParameter> items;
  int rank = 0;   // Index among the ranks that hold parameters together.
  int ranks = 1;  // 1: slices are whole, and so are their gradients.
  // Every trainable one has its gradient where all these ranks see it.
  bool gradients_are_shared = false;
  // Collective over these ranks: gives each a 1-D tensor, which may be empty, all of one dtype, and
  // returns those that they give to this one, of so many elements. Empty where they cannot do that,
  // or share gradients anyway.
  std::function<std::vector<at::Tensor>(
      const std::vector<at::Tensor>& to,
      const std::vector<std::int64_t>& numels)>
      all_to_all = nullptr;
};

struct NamedParameters {
  // In module order; parameters of which this rank owns nothing are left out.
  std::vector<NamedParameter> items;
  // Makes the new values visible. An optimizer calls it at the end of step(), on every rank, also
  // one with no items. May be empty (plain tensors).
  std::function<void()> publish;
  // The same where something else than an optimizer has written slices, also of frozen parameters,
  // as loading does. Empty: publish.
  std::function<void()> publish_loaded;
  // Called by an optimizer that calls publish in every step(). While it holds the result, slices
  // count as unchanged after a backward until it publishes. May be empty.
  std::function<std::shared_ptr<void>()> claim;
  // Has backward make the update while the optimizer holds the result; `.grad()` of those slices
  // stays undefined. Returns nullptr, changing nothing, where backward cannot do it. Throws Error
  // for a slice that has such an update already. May be empty.
  std::function<std::shared_ptr<void>(BackwardUpdate)> update_in_backward;
  // Whether an optimizer holds such an update that writes slices. May be empty: none can.
  std::function<bool()> writes_in_backward;
  // Collective over all ranks that train these parameters. Each of the numbers (1-D, fp64,
  // contiguous) becomes the largest of all ranks. Where gradients are shared, others see afterwards
  // what a rank wrote into them before. Empty: every rank has the same gradients, all of them.
  std::function<void(const at::Tensor& numbers)> all_reduce_max;
  // Called before gradients of slices are changed, with the name of what does it. Throws Error, on
  // every rank, inside a summon scope that writes its whole gradients back, which would undo the
  // change. May be empty.
  std::function<void(const char* what)> check_gradients_writable;
  // Whether forward and backward use some of them in fp16, or gradients are sent in fp16; the same
  // on every rank.
  bool uses_fp16 = false;
  WholeParameters whole = {};
};

// A state tensor of one slice, for checkpoints. It shares the optimizer's memory: writing it
// restores it.
struct OptimizerTensor {
  std::string parameter;
  std::string key;    // "exp_avg"
  at::Tensor tensor;  // As the slice, or one number without dimensions.
};

// Gives some parameters other settings than the rest. It selects them by name, so that every rank puts
// its slices of one parameter in the same group without asking the others.
struct ParameterGroup {
  // Shell patterns (`*`, `?`, `[ab]`) for the whole name; `*` also crosses dots: "*.bias",
  // "h.*.ln_?.weight". A parameter belongs to the first group with a matching pattern, else it has
  // the optimizer's own settings. A pattern may match nothing: a rank need not own a slice of each
  // parameter.
  std::vector<std::string> names;
  // Multiplies the learning rate, also after set_learning_rate(). 0 freezes the values, while the
  // state is still updated.
  double learning_rate_scale = 1.0;
  // Replaces the optimizer's own.
  std::optional<double> weight_decay = std::nullopt;
};

struct SplitParameters {
  NamedParameters matching;
  NamedParameters rest;
};

// Divides parameters between two optimizers of one model. A parameter goes to `matching` when its
// name matches one of the patterns (ParameterGroup has their rules), else to `rest`. Each optimizer
// publishes in its own step(); every rank steps them in the same order, without reading parameters
// in between.
SplitParameters split(
    const NamedParameters& parameters,
    const std::vector<std::string>& patterns);

}  // namespace sherd
