// SPDX-License-Identifier: Apache-2.0
//
// CastForward wraps a module's forward, so that fully_shard() can cast before and after it. FSDP2
// does that in module hooks, which LibTorch's modules do not have:
//
//   struct BlockImpl : torch::nn::Module { torch::Tensor forward(torch::Tensor x); };
//   using Block = torch::nn::ModuleHolder<sherd::CastForward<BlockImpl>>;  // For TORCH_MODULE(Block).
//
// If such a module is a unit, or the model itself, its floating-point inputs are cast to the unit's
// param_dtype, so that its own code sees the dtype in which it computes (unless cast_forward_inputs
// is false or it has running statistics). UnitOptions::output_dtype may then be given for it,
// whatever it consists of. Autograd records the casts. Without fully_shard() nothing is cast.
//
// It casts tensors, also in optionals, vectors, tuples and pairs; references through which forward
// may write stay as they are. Impl must have exactly one forward, which is not a template;
// CastForward does not have its default arguments. Thread rule: as for the module; no forward runs
// in fully_shard().
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd::fsdp {

// The dtypes to which one module's forward casts; unset: no cast.
struct ForwardDtypes {
  std::optional<at::ScalarType> inputs = std::nullopt;
  std::optional<at::ScalarType> outputs = std::nullopt;
};

// The base class by which fully_shard() finds such modules. A copy of such a module is not sharded.
class CastingModule {
 public:
  CastingModule() = default;
  CastingModule(const CastingModule&) {}
  CastingModule& operator=(const CastingModule&) { return *this; }
  virtual ~CastingModule() = default;

  // Written only while no forward runs.
  const std::shared_ptr<ForwardDtypes>& forward_dtypes() const {
    return forward_dtypes_;
  }

 private:
  std::shared_ptr<ForwardDtypes> forward_dtypes_ =
      std::make_shared<ForwardDtypes>();
};

template <typename Value>
inline constexpr bool kHasTensors = false;
template <>
inline constexpr bool kHasTensors<at::Tensor> = true;
template <typename Value>
inline constexpr bool kHasTensors<std::optional<Value>> = kHasTensors<Value>;
template <typename Value>
inline constexpr bool kHasTensors<std::vector<Value>> = kHasTensors<Value>;
template <typename First, typename Second>
inline constexpr bool kHasTensors<std::pair<First, Second>> =
    kHasTensors<First> || kHasTensors<Second>;
template <typename... Values>
inline constexpr bool kHasTensors<std::tuple<Values...>> =
    (kHasTensors<Values> || ...);

template <typename Value>
Value cast_floating(Value value, std::optional<at::ScalarType> dtype) {
  if constexpr (!kHasTensors<Value>) {
    return value;
  } else if constexpr (std::is_same_v<Value, at::Tensor>) {
    return dtype && value.defined() && value.is_floating_point()
        ? value.to(*dtype)
        : value;
  } else if constexpr (requires { std::tuple_size<Value>::value; }) {
    return std::apply(
        [&](auto&... items) {
          return Value(cast_floating(std::move(items), dtype)...);
        },
        value);
  } else if constexpr (requires { *value; }) {
    return value ? Value(cast_floating(*std::move(value), dtype)) : value;
  } else {
    for (auto& item : value) {
      item = cast_floating(std::move(item), dtype);
    }
    return value;
  }
}

// Returns the argument as forward takes it, as an Argument.
template <typename Argument>
decltype(auto) cast_argument(
    std::remove_reference_t<Argument>& argument,
    std::optional<at::ScalarType> dtype) {
  using Value = std::remove_cvref_t<Argument>;
  constexpr bool kMayBeWritten = std::is_lvalue_reference_v<Argument> &&
      !std::is_const_v<std::remove_reference_t<Argument>>;
  if constexpr (kHasTensors<Value> && !kMayBeWritten) {
    return cast_floating<Value>(static_cast<Argument&&>(argument), dtype);
  } else {
    return static_cast<Argument&&>(argument);
  }
}

template <typename Result, typename Class, typename... Arguments>
std::type_identity<Result(Arguments...)> signature_of(
    Result (Class::*)(Arguments...));
template <typename Result, typename Class, typename... Arguments>
std::type_identity<Result(Arguments...)> signature_of(
    Result (Class::*)(Arguments...) const);

}  // namespace sherd::fsdp

namespace sherd {

template <
    typename Impl,
    typename Signature =
        typename decltype(fsdp::signature_of(&Impl::forward))::type>
class CastForward;

template <typename Impl, typename Result, typename... Arguments>
class CastForward<Impl, Result(Arguments...)> : public Impl,
                                                public fsdp::CastingModule {
 public:
  using Impl::Impl;

  Result forward(Arguments... arguments) {
    const auto dtypes = *forward_dtypes();
    return fsdp::cast_floating<Result>(
        Impl::forward(
            fsdp::cast_argument<Arguments>(arguments, dtypes.inputs)...),
        dtypes.outputs);
  }
};

}  // namespace sherd
