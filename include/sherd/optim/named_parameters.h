// SPDX-License-Identifier: Apache-2.0
//
// NamedParameters is what a handle, such as that of fully_shard(), gives to an optimizer: this
// rank's slice of each parameter, and what to call when slices have been written. It is the only
// interface between sharding and optimizers. A value whose tensors share memory with the handle.
// Thread rule: one thread; publish and all_reduce_max are called on every rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd {

struct NamedParameter {
  std::string name;  // The module's own name, e.g. "h.0.attn.c_attn.weight".
  // A 1-D leaf with at least one element; always the same tensor. `.grad()` is set when a
  // synchronised backward returns.
  at::Tensor slice;
};

// An update that an optimizer makes while backward is still running.
struct BackwardUpdate {
  std::vector<std::string> names;
  // Called with the summed gradient of elements [begin, begin + gradient.numel()) of the slice of
  // names[index]: 1-D, contiguous, in the slice's dtype, valid during the call. The parts of a
  // slice come in order, from its first element to its last, once in each synchronised backward, on
  // a thread of that backward. Slices of parameters that had no gradient on any rank are left out.
  std::function<void(
      std::size_t index, std::int64_t begin, const at::Tensor& gradient)>
      update;
  // Whether the update writes the slices. If not, they may be read while backward runs, and another
  // backward may follow before they are published.
  bool writes = true;
};

// A parameter that several ranks hold together, each of them a slice.
struct WholeParameter {
  std::string name;
  std::vector<std::int64_t> shape;  // Its shape in the module.
  // Where this rank's slice begins in the flattened parameter.
  std::int64_t slice_begin = 0;
  // The whole gradient, in that shape, in memory that all these ranks share; the `.grad()` of a
  // slice is a part of it. Undefined if the parameter is frozen or ranks share no gradients.
  at::Tensor gradient = {};
  // The dtype and device of the slices.
  at::TensorOptions options = {};
  // Where each rank's slice begins in the flattened parameter; the last entry is its number of
  // elements. Empty if the parameter is frozen or slices are whole.
  std::vector<std::int64_t> cuts = {};
};

// For updates that need more than slices, such as Muon's.
struct WholeParameters {
  // In module order, the same on every rank, including parameters of which this rank owns nothing.
  // Empty for plain tensors, each of which is whole.
  std::vector<WholeParameter> items;
  // This rank's index among the ranks that hold the parameters together.
  int rank = 0;
  int ranks = 1;  // 1: slices are whole, and so are their gradients.
  // Every trainable parameter has its whole gradient in memory that all these ranks share.
  bool gradients_are_shared = false;
  // An all-to-all, collective over these ranks: sends each of them a 1-D tensor, which may be
  // empty, all of one dtype, and returns the tensors that they send to this rank, with the given
  // numbers of elements. Empty if the ranks cannot do that, or share gradients anyway.
  std::function<std::vector<at::Tensor>(
      const std::vector<at::Tensor>& to,
      const std::vector<std::int64_t>& numels)>
      all_to_all = nullptr;
};

struct NamedParameters {
  // In module order, without the parameters of which this rank owns nothing.
  std::vector<NamedParameter> items;
  // Parameters that belong to the model's state, but never to an optimizer: those without elements,
  // and those that were frozen at replicate(). Whole on every rank, in their own shape.
  std::vector<NamedParameter> state_only = {};
  // Makes new values visible to all ranks. An optimizer calls it at the end of step(), on every
  // rank, even one with no items. May be empty (plain tensors).
  std::function<void()> publish;
  // Called before something other than an optimizer writes slices, as loading a checkpoint does;
  // publish_loaded is called after the writing. Collective: when it returns, no rank reads them any
  // more. May be empty: no other rank reads them in place.
  std::function<void()> before_load;
  // Like publish, but called when something other than an optimizer has written slices, also those
  // of frozen parameters; loading a checkpoint does that. Empty: publish is called instead.
  std::function<void()> publish_loaded;
  // Called by an optimizer that calls publish in every step(). While the optimizer keeps the
  // result, slices count as unchanged after a backward until it publishes. May be empty.
  std::function<std::shared_ptr<void>()> claim;
  // Makes backward call the update for as long as the optimizer keeps the result; `.grad()` of
  // those slices stays undefined. Returns nullptr, and changes nothing, if backward cannot do it.
  // Throws Error for a slice that already has such an update. May be empty.
  std::function<std::shared_ptr<void>(BackwardUpdate)> update_in_backward;
  // Whether some optimizer has an update in backward that writes slices. May be empty: none has.
  std::function<bool()> writes_in_backward;
  // Collective over all ranks that train these parameters. Replaces each of the numbers (1-D, fp64,
  // contiguous) by its maximum over the ranks. If gradients are shared, what a rank wrote into them
  // before the call is visible to the others after it. If it is empty or does nothing, every rank has
  // all gradients, with the same values.
  std::function<void(const at::Tensor& numbers)> all_reduce_max;
  // Drops what backwards under no_sync() have kept on this rank of the gradients of these
  // parameters. Called by zero_grad() with the names of `whole.items`, since a rank keeps gradients
  // of parameters of which it owns nothing, too. May be empty: nothing is kept outside of `.grad()`.
  std::function<void(const std::vector<std::string>& names)> drop_kept;
  // Called before gradients of slices are changed, with the name of what does it. Throws Error, on
  // every rank, inside a summon scope that writes its whole gradients back, which would undo the
  // change. May be empty.
  std::function<void(const char* what)> check_gradients_writable;
  // The rank whose values and whose optimizer's state are saved, where those of other ranks may
  // differ: with a hook that lets models drift apart, and after a join scope in which ranks have made
  // different numbers of steps. Empty, or nothing: they are equal on all ranks.
  std::function<std::optional<int>()> rank_to_save = nullptr;
  // Whether forward and backward use some of them in fp16, or gradients are sent in fp16; the same
  // on every rank.
  bool uses_fp16 = false;
  WholeParameters whole = {};
  // From the further names of tied parameters to the first one, which is used above. Patterns match
  // a parameter under any of its names.
  std::map<std::string, std::string> tied_names = {};
};

// A state tensor of one slice, for checkpoints. It shares the optimizer's memory: writing it
// restores it.
struct OptimizerTensor {
  std::string parameter;
  std::string key;    // "exp_avg"
  at::Tensor tensor;  // In the shape of the slice, or 0-D.
  // Makes it what it is before the first update, if that is not 0.
  std::function<void()> reset = nullptr;
};

// Settings that differ for some parameters. A group selects parameters by name, so that every rank
// puts its slices of one parameter into the same group without asking the others.
struct ParameterGroup {
  // Shell patterns (`*`, `?`, `[ab]`) for the whole name; `*` also matches dots: "*.bias",
  // "h.*.ln_?.weight". A parameter belongs to the first group with a matching pattern; without one
  // it has the optimizer's own settings. A pattern may match nothing, because a rank need not own a
  // slice of every parameter.
  std::vector<std::string> names;
  // Multiplies the learning rate, also after set_learning_rate(). With 0 the values are frozen, but
  // the state is still updated.
  double learning_rate_scale = 1.0;
  // Replaces the optimizer's own. Unset: the optimizer's own.
  std::optional<double> weight_decay = std::nullopt;
};

struct SplitParameters {
  NamedParameters matching;
  NamedParameters rest;
};

// Divides parameters between two optimizers of one model. A parameter goes to `matching` if its
// name matches one of the patterns, with the rules of ParameterGroup, otherwise to `rest`. Each
// optimizer publishes in its own step(). Every rank steps them in the same order, and does not read
// parameters in between.
SplitParameters split(
    const NamedParameters& parameters,
    const std::vector<std::string>& patterns);

}  // namespace sherd
