// SPDX-License-Identifier: Apache-2.0
//
// Policies say which modules become units, whose parameters are gathered and dropped together, and
// with which options. A policy is asked about every module once, children before parents. A
// parameter belongs to the innermost module that the policy takes, or to the root unit if there is
// none. Smaller units need less memory but more messages. Mirrors the auto_wrap_policy of PyTorch's
// FSDP1, and the options of each call of fully_shard() in FSDP2. Thread rule: pure functions and
// values.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace sherd {

// Mirrors torch.distributed.fsdp.MixedPrecisionPolicy. Integer parameters keep their dtype, and so
// do parameters of modules with running statistics (BatchNorm), whose kernels need fp32. All
// options change behaviour.
struct MixedPrecision {
  // The dtype of the module's own parameters after fully_shard(), of gathers, and thus of forward
  // and backward: kBFloat16, kHalf or kFloat. Activations of another dtype are cast where they meet
  // such a parameter in a matrix product, a norm or the like. Shards, their gradients and optimizer
  // state stay in the dtype that the module had. Unset: that dtype. Costs one cast of the shard per
  // step, and the memory of the cast.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  // The dtype in which gradients are sent to their owner, which adds them up in fp32; one of the
  // same three dtypes. Unset: param_dtype.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  // If false, activations are not cast where they meet a parameter of another dtype, and LibTorch's
  // operators refuse them.
  bool cast_forward_inputs = true;
  // The dtype of floating-point buffers after fully_shard(), with the same exceptions; one of the
  // same three dtypes. Checkpoints hold buffers in it. Unset: buffers keep their dtype. Mirrors
  // FSDP1.
  std::optional<at::ScalarType> buffer_dtype = std::nullopt;
  // Sharded gradients, `.grad()` of the slices, stay in reduce_dtype, which halves their memory:
  // the sum over ranks is rounded to it, and so is each sum over micro-batches. Optimizers must
  // accept such a gradient for an fp32 slice, as sherd's do. Mirrors FSDP1.
  bool keep_low_precision_grads = false;
};

// Returns, for a parameter, how many consecutive elements no cut between ranks may split: a row, a
// block, all of it.
using Granularity =
    std::function<std::int64_t(const std::string& name, const at::Tensor&)>;

}  // namespace sherd

namespace sherd::units {

// What a policy may say about a module that it takes, besides that it is a unit.
struct UnitOptions {
  // Modules with equal names are one unit, like those of a list given to FSDP2's fully_shard().
  // Empty: the module's own name.
  std::string name = "";
  // If false, the module is not a unit: its parameters stay in the unit around it, in a flat of
  // their own, and the options below apply only to them.
  bool own_unit = true;
  // Replaces FullyShardOptions::mixed_precision. Unset: for a module that is not a unit, that of
  // the unit around it, otherwise that of FullyShardOptions.
  std::optional<MixedPrecision> mixed_precision = std::nullopt;
  // Casts what the module returns to this dtype: kBFloat16, kHalf or kFloat. Any CastForward may
  // have it. LibTorch calls the forward of other modules directly, so sherd only sees the operators
  // in it. Among those modules, only one whose parameters are all its own (a Linear, a norm, an
  // embedding), or a Sequential that ends with one, may have it; then the result of each matrix
  // product, norm, convolution or embedding on these parameters is cast. Unset: as LibTorch
  // computes it.
  std::optional<at::ScalarType> output_dtype = std::nullopt;
  // Once gathered, the unit stays whole until its values change. Its bytes count as part of every
  // visit, so they raise the smallest possible budget. All modules of a unit must agree. Mirrors
  // reshard_after_forward=False.
  bool keep_whole = false;
  // Replaces FullyShardOptions::granularity. Empty: chosen as mixed_precision is.
  Granularity granularity = nullptr;
};

// A policy's answer about a module: yes or no, or yes with options.
class Answer {
 public:
  Answer(std::same_as<bool> auto taken) {
    if (taken) {
      options_.emplace();
    }
  }
  Answer(UnitOptions options) : options_(std::move(options)) {}
  Answer(std::optional<UnitOptions> options) : options_(std::move(options)) {}

  explicit operator bool() const { return options_.has_value(); }
  // REQUIRES: the module was taken.
  const UnitOptions& options() const { return *options_; }

 private:
  std::optional<UnitOptions> options_;
};

struct Candidate {
  std::string name;  // e.g. "h.3"; empty for the model itself.
  const torch::nn::Module& module;
  const torch::nn::Module* parent = nullptr;  // Null for the model itself.
  // The number of elements of its parameters that no unit inside it has taken.
  std::int64_t numel = 0;
};

// Made from any function of a Candidate that returns an Answer, a bool or UnitOptions. A value.
// fully_shard() refuses a policy that takes no module, because most often its name or class does
// not occur in the model.
class Policy {
 public:
  using Function = std::function<Answer(const Candidate&)>;

  Policy(std::nullptr_t) {}  // Empty: using it is an error.
  template <typename Callable>
    requires(
        !std::same_as<std::remove_cvref_t<Callable>, Policy> &&
        std::convertible_to<
            std::invoke_result_t<Callable&, const Candidate&>,
            Answer>)
  Policy(Callable function) : function_(std::move(function)) {}
  // `text` names the policy in errors, e.g. by_name("h.*").
  Policy(Function function, std::string text)
      : function_(std::move(function)), text_(std::move(text)) {}

  Answer operator()(const Candidate& candidate) const {
    return function_(candidate);
  }
  bool operator==(std::nullptr_t) const { return function_ == nullptr; }

  const std::string& text() const { return text_; }
  // The policies that each must take a module: this one, those of any_of(), or none of them.
  std::vector<Policy> required() const;

 private:
  friend Policy any_of(std::vector<Policy> policies);
  friend Policy with_options(Policy policy, UnitOptions options);
  friend Policy optional(Policy policy);

  Function function_;
  std::string text_ = "the policy";
  std::vector<Policy> parts_;   // The policies given to any_of().
  bool may_take_none_ = false;  // Set by optional().
};

// Takes each child of a ModuleList or Sequential. The default is optional(children_of_lists()).
Policy children_of_lists();

// Takes every module of one of the classes (Impl classes), e.g. of_type<BlockImpl, HeadImpl>().
template <typename... Types>
Policy of_type() {
  return {
      [](const Candidate& candidate) {
        return (
            ... || (dynamic_cast<const Types*>(&candidate.module) != nullptr));
      },
      "of_type<...>()"};
}

// Takes every n-th child of each list, from the first on: "h.0", "h.2", ... for n = 2. Throws Error
// if n is below 1. Meant for ActivationCheckpointing.
Policy every_nth_of_lists(std::int64_t n);

// Takes modules with at least this many elements that no inner unit has taken; never a list, which
// has no forward of its own.
Policy by_size(std::int64_t numel_min);

// Takes modules whose name matches a pattern of `*` and `?`, e.g. "h.*" or "encoder.layer?"; `*`
// does not match a dot.
Policy by_name(std::string pattern);

// Takes no module: all parameters belong to the root unit.
Policy none();

// Gives the answer of the first policy that takes a module. Each of the policies must take at least
// one module of the model when asked alone.
Policy any_of(std::vector<Policy> policies);

// Takes the same modules, but with these options instead of the policy's own.
Policy with_options(Policy policy, UnitOptions options);

// Makes the modules of these names (patterns as in by_name(), each of which must match a module)
// one unit, named after them: "norm+head". Mirrors fully_shard([norm, head]) of FSDP2. Throws Error
// if there are no names, or if options.name is set.
Policy together(
    const std::vector<std::string>& names, const UnitOptions& options = {});

// Leaves the modules that the policy takes in the units around them, with these options for their
// parameters, e.g. norms in fp32: inside(of_type<LayerNormImpl>(), {.mixed_precision =
// MixedPrecision()}).
Policy inside(Policy policy, UnitOptions options);

// The same policy, except that it may take no module.
Policy optional(Policy policy);

}  // namespace sherd::units
