// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/reduce_kernels.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <type_traits>
#include <vector>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include "base/bfloat16.h"
#include "base/check.h"
#include "c10d_shm/float_sum.h"
#include "c10d_shm/newer_c10d.h"

namespace sherd::c10d_shm {
namespace {

using Op = c10d::ReduceOp;
using Inputs = std::span<const std::byte* const>;

// Fits into the first-level cache together with its inputs, but is long enough to vectorise.
constexpr std::size_t kBlock = 2048;

// The type in which elements are folded.
template <typename T>
using AccumulatorOf = std::conditional_t<
    std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>,
    float,
    T>;

// Signed overflow is undefined; unsigned arithmetic wraps to the same bits.
template <typename T, typename Combine>
T wrapping(T a, T b, Combine combine) {
  if constexpr (std::is_integral_v<T>) {
    // Promoted at least to unsigned, since products of shorts would overflow int.
    using U = std::common_type_t<std::make_unsigned_t<T>, unsigned>;
    return static_cast<T>(combine(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return combine(a, b);
  }
}

constexpr auto kAdd = [](auto a, auto b) {
  return wrapping(a, b, std::plus<>());
};
constexpr auto kMultiply = [](auto a, auto b) {
  return wrapping(a, b, std::multiplies<>());
};
constexpr auto kLeast = [](auto a, auto b) { return std::min(a, b); };
constexpr auto kGreatest = [](auto a, auto b) { return std::max(a, b); };

template <typename T>
const T* at(const std::byte* input) {
  return reinterpret_cast<const T*>(input);
}

// `load` is applied to each element, `finish` to each folded one.
template <typename T, typename Combine, typename Load, typename Finish>
void fold_block(
    Inputs inputs,
    std::size_t begin,
    std::size_t count,
    T* out,
    const Combine& combine,
    const Load& load,
    const Finish& finish) {
  using W = AccumulatorOf<T>;
  const T* first = at<T>(inputs[0]) + begin;
  if (inputs.size() == 2) {  // No intermediate result is needed.
    const T* second = at<T>(inputs[1]) + begin;
    for (std::size_t i = 0; i < count; ++i) {
      out[begin + i] = static_cast<T>(finish(combine(
          load(static_cast<W>(first[i])), load(static_cast<W>(second[i])))));
    }
    return;
  }
  std::array<W, kBlock> held;
  for (std::size_t i = 0; i < count; ++i) {
    held[i] = load(static_cast<W>(first[i]));
  }
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    const T* input = at<T>(inputs[r]) + begin;
    for (std::size_t i = 0; i < count; ++i) {
      held[i] = combine(held[i], load(static_cast<W>(input[i])));
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    out[begin + i] = static_cast<T>(finish(held[i]));
  }
}

// The same for bf16, which is converted many elements at a time, in wider vectors than the compiler
// uses on its own.
template <typename Combine, typename Load, typename Finish>
void fold_bfloat16_block(
    Inputs inputs,
    std::size_t begin,
    std::size_t count,
    c10::BFloat16* out,
    const Combine& combine,
    const Load& load,
    const Finish& finish) {
  std::array<float, kBlock> held;
  std::array<float, kBlock> next;
  widen_bfloat16(at<std::uint16_t>(inputs[0]) + begin, count, held.data());
  for (std::size_t i = 0; i < count; ++i) {
    held[i] = load(held[i]);
  }
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    widen_bfloat16(at<std::uint16_t>(inputs[r]) + begin, count, next.data());
    for (std::size_t i = 0; i < count; ++i) {
      held[i] = combine(held[i], load(next[i]));
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    held[i] = finish(held[i]);
  }
  narrow_to_bfloat16(
      held.data(), count, reinterpret_cast<std::uint16_t*>(out + begin));
}

template <typename T, typename Combine, typename Load, typename Finish>
Fold fold_with(Combine combine, Load load, Finish finish) {
  return [combine, load, finish](
             Inputs inputs, std::size_t elements, std::byte* out) {
    auto* typed = reinterpret_cast<T*>(out);
    for (std::size_t i = 0; i < elements; i += kBlock) {
      const auto count = std::min(kBlock, elements - i);
      if constexpr (std::is_same_v<T, c10::BFloat16>) {
        fold_bfloat16_block(inputs, i, count, typed, combine, load, finish);
      } else {
        fold_block(inputs, i, count, typed, combine, load, finish);
      }
    }
  };
}

constexpr auto kAsItIs = [](auto x) { return x; };

template <typename T, typename Combine>
Fold plain(Combine combine) {
  return fold_with<T>(combine, kAsItIs, kAsItIs);
}

// Passes `inputs` as arrays of T, without allocating memory if there are few.
template <typename T, typename Function>
void with_typed(Inputs inputs, const Function& function) {
  constexpr std::size_t kFew = 8;
  std::array<const T*, kFew> few;
  std::vector<const T*> many(inputs.size() > kFew ? inputs.size() : 0);
  const std::span<const T*> typed =
      many.empty() ? std::span(few).first(inputs.size()) : std::span(many);
  std::ranges::transform(inputs, typed.begin(), at<T>);
  function(std::span<const T* const>(typed));
}

// The sums that matter most for training.
void sum_of_bfloat16(Inputs inputs, std::size_t elements, std::byte* out) {
  with_typed<std::uint16_t>(inputs, [&](auto numbers) {
    sum_bfloat16(numbers, elements, reinterpret_cast<std::uint16_t*>(out));
  });
}

void sum_of_floats(Inputs inputs, std::size_t elements, std::byte* out) {
  with_typed<float>(inputs, [&](auto numbers) {
    sum_floats(numbers, elements, reinterpret_cast<float*>(out));
  });
}

std::string reduce_op_name(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
      return "sum";
    case Op::AVG:
      return "avg";
    case Op::PRODUCT:
      return "product";
    case Op::MIN:
      return "min";
    case Op::MAX:
      return "max";
    case Op::BAND:
      return "band";
    case Op::BOR:
      return "bor";
    case Op::BXOR:
      return "bxor";
    case Op::PREMUL_SUM:
      return "premul_sum";
    default:
      return "unused";
  }
}

double factor_of(const Op& op) {
  const auto* more =
      dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
  SHERD_CHECK(
      more != nullptr,
      "[c10d_shm] expected a factor with premul_sum, found none");
  return more->tensor_factor.defined() ? more->tensor_factor.item<double>()
                                       : more->double_factor;
}

[[noreturn]] void refuse(Op::RedOpType op, c10::ScalarType dtype) {
  throw Error(
      str("[c10d_shm] expected a reduce operation that shm has for ",
          c10::toString(dtype), ", found ", reduce_op_name(op)));
}

template <typename T>
Fold numbers(Op::RedOpType op, c10::ScalarType dtype, double parameter) {
  switch (op) {
    case Op::SUM:
      if constexpr (std::is_same_v<T, c10::BFloat16>) {
        return sum_of_bfloat16;
      } else if constexpr (std::is_same_v<T, float>) {
        return sum_of_floats;
      } else {
        return plain<T>(kAdd);
      }
    case Op::PRODUCT:
      return plain<T>(kMultiply);
    case Op::MIN:
      return plain<T>(kLeast);
    case Op::MAX:
      return plain<T>(kGreatest);
    default:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (op) {
      case Op::BAND:
        return plain<T>(std::bit_and<T>());
      case Op::BOR:
        return plain<T>(std::bit_or<T>());
      case Op::BXOR:
        return plain<T>(std::bit_xor<T>());
      default:
        break;
    }
  } else {
    using W = AccumulatorOf<T>;
    const auto number = static_cast<W>(parameter);
    if (op == Op::AVG) {
      return fold_with<T>(
          kAdd, kAsItIs, [number](W sum) { return sum / number; });
    }
    if (op == Op::PREMUL_SUM) {
      return fold_with<T>(kAdd, [number](W x) { return x * number; }, kAsItIs);
    }
  }
  refuse(op, dtype);
}

// Booleans are bytes that are 0 or 1.
Fold truths(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR:
      return plain<std::uint8_t>(std::bit_or<std::uint8_t>());
    case Op::PRODUCT:
    case Op::MIN:
    case Op::BAND:
      return plain<std::uint8_t>(std::bit_and<std::uint8_t>());
    case Op::BXOR:
      return plain<std::uint8_t>(std::bit_xor<std::uint8_t>());
    default:
      refuse(op, c10::ScalarType::Bool);
  }
}

Fold fold_for_dtype(Op::RedOpType op, c10::ScalarType dtype, double parameter) {
  using c10::ScalarType;
  switch (dtype) {
    case ScalarType::Float:
      return numbers<float>(op, dtype, parameter);
    case ScalarType::Double:
      return numbers<double>(op, dtype, parameter);
    case ScalarType::BFloat16:
      return numbers<c10::BFloat16>(op, dtype, parameter);
    case ScalarType::Half:
      return numbers<c10::Half>(op, dtype, parameter);
    case ScalarType::Byte:
      return numbers<std::uint8_t>(op, dtype, parameter);
    case ScalarType::Char:
      return numbers<std::int8_t>(op, dtype, parameter);
    case ScalarType::Short:
      return numbers<std::int16_t>(op, dtype, parameter);
    case ScalarType::Int:
      return numbers<std::int32_t>(op, dtype, parameter);
    case ScalarType::Long:
      return numbers<std::int64_t>(op, dtype, parameter);
    case ScalarType::Bool:
      return truths(op);
    default:
      refuse(op, dtype);
  }
}

}  // namespace

ReduceKernel reduce_kernel_of(const Op& op, c10::ScalarType dtype, int ranks) {
  // What sums are divided by, or elements multiplied by.
  const double parameter = op.op_ == Op::PREMUL_SUM ? factor_of(op) : ranks;
  if (c10::isComplexType(dtype)) {  // Pairs of numbers.
    if (op.op_ != Op::SUM && op.op_ != Op::AVG && op.op_ != Op::PREMUL_SUM) {
      refuse(op.op_, dtype);
    }
    dtype = c10::toRealValueType(dtype);
  }
  return {fold_for_dtype(op.op_, dtype, parameter), c10::elementSize(dtype)};
}

std::string reduce_op_text(const Op& op) {
  auto text = reduce_op_name(op.op_);
  if (op.op_ == Op::PREMUL_SUM) {
    // Hexadecimal, which is exact.
    std::array<char, 32> factor{};
    std::snprintf(factor.data(), factor.size(), " %a", factor_of(op));
    text += factor.data();
  }
  return text;
}

}  // namespace sherd::c10d_shm
