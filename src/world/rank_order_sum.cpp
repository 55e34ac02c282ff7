// SPDX-License-Identifier: Apache-2.0
#include "world/rank_order_sum.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/bfloat16.h"
#include "base/check.h"

namespace sherd::world {
namespace {

// Fits into the first-level cache together with its pieces, but is long enough to vectorise.
constexpr std::int64_t kBlock = 2048;

// From this size on, a sum leaves the caches before anybody reads it.
constexpr std::int64_t kStreamedBytes = std::int64_t{1} << 20;

// Writes past the caches, which saves reading the lines first. Only end_stream() orders the writes
// for other threads.
void stream(float* to, const float* from, std::int64_t count) {
  std::int64_t i = 0;
#ifdef __SSE2__
  for (; i < count && reinterpret_cast<std::uintptr_t>(to + i) % 16 != 0; ++i) {
    to[i] = from[i];
  }
  for (; i + 4 <= count; i += 4) {
    _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
  }
#endif
  std::copy(from + i, from + count, to + i);
}

void end_stream() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

// Sums `count` elements from `begin` on over all pieces, in their order.
template <typename Raw, typename Sum>
void add_up(
    std::span<const Raw* const> pieces,
    std::int64_t begin,
    std::int64_t count,
    Sum* sum) {
  // Minus zero is neutral: added to any number, even minus zero, it gives that number.
  std::fill_n(sum, count, static_cast<Sum>(-0.0));
  for (const Raw* piece : pieces) {
    for (std::int64_t i = 0; i < count; ++i) {
      sum[i] += static_cast<Sum>(piece[begin + i]);
    }
  }
}

void add_up(
    std::span<const std::uint16_t* const> pieces,
    std::int64_t begin,
    std::int64_t count,
    float* sum) {
  sum_bfloat16(
      pieces, static_cast<std::size_t>(begin), static_cast<std::size_t>(count),
      sum);
}

// Into out[0], out[1], ...
template <typename Raw, typename Sum, typename Out>
void sum_block(
    std::span<const Raw* const> pieces,
    std::int64_t begin,
    std::int64_t count,
    double scale,
    bool accumulate,
    Out* out) {
  // bf16 and fp16 are rounded from fp32 as LibTorch does.
  using Nearest =
      std::conditional_t<std::is_same_v<Out, double>, double, float>;
  const Sum factor = static_cast<Sum>(scale);
  const auto store = [&](std::int64_t i, Sum sum) {
    Out& place = out[i];
    place = static_cast<Out>(static_cast<Nearest>(
        accumulate ? static_cast<Sum>(place) + sum * factor : sum * factor));
  };
  if constexpr (!std::is_same_v<Raw, std::uint16_t>) {
    if (pieces.size() == 2) {  // No intermediate sum is needed.
      const Raw* first = pieces[0] + begin;
      const Raw* second = pieces[1] + begin;
      for (std::int64_t i = 0; i < count; ++i) {
        store(i, static_cast<Sum>(first[i]) + static_cast<Sum>(second[i]));
      }
      return;
    }
  }
  std::array<Sum, kBlock> sum;
  add_up(pieces, begin, count, sum.data());
  for (std::int64_t i = 0; i < count; ++i) {
    store(i, sum[static_cast<std::size_t>(i)]);
  }
}

template <typename Piece, typename Sum, typename Out>
void sum_typed(
    std::span<const at::Tensor> tensors,
    double scale,
    bool accumulate,
    const at::Tensor& out) {
  // bf16 is summed in fp32 from its bits, in wider vectors than the compiler uses on its own.
  using Raw = std::conditional_t<
      std::is_same_v<Piece, c10::BFloat16> && std::is_same_v<Sum, float>,
      std::uint16_t, Piece>;
  std::vector<const Raw*> pieces;
  for (const auto& tensor : tensors) {
    pieces.push_back(
        reinterpret_cast<const Raw*>(tensor.const_data_ptr<Piece>()));
    SHERD_ASSERT(
        reinterpret_cast<std::uintptr_t>(pieces.back()) % alignof(Piece) == 0);
  }
  auto* target = out.mutable_data_ptr<Out>();
  if constexpr (std::is_same_v<Out, float>) {
    if (!accumulate &&
        out.numel() * static_cast<std::int64_t>(sizeof(Out)) >=
            kStreamedBytes) {
      std::array<Out, kBlock> sums;
      for (std::int64_t at = 0; at < out.numel(); at += kBlock) {
        const auto count = std::min(kBlock, out.numel() - at);
        sum_block<Raw, Sum, Out>(
            pieces, at, count, scale, accumulate, sums.data());
        stream(target + at, sums.data(), count);
      }
      end_stream();
      return;
    }
  }
  for (std::int64_t at = 0; at < out.numel(); at += kBlock) {
    sum_block<Raw, Sum, Out>(
        pieces, at, std::min(kBlock, out.numel() - at), scale, accumulate,
        target + at);
  }
}

// Calls `action` with a zero of that type.
template <typename Action>
void with_type(c10::ScalarType dtype, const Action& action) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return action(float{});
    case c10::ScalarType::Double:
      return action(double{});
    case c10::ScalarType::BFloat16:
      return action(c10::BFloat16{});
    case c10::ScalarType::Half:
      return action(c10::Half{});
    default:
      throw Error(
          str("[exchange] gradients must be fp32, fp64, bf16 or fp16, found ",
              c10::toString(dtype)));
  }
}

}  // namespace

void sum_in_rank_order(
    std::span<const at::Tensor> pieces,
    double scale,
    bool accumulate,
    const at::Tensor& out) {
  SHERD_ASSERT(!pieces.empty());
  for (const auto& piece : pieces) {
    SHERD_ASSERT(
        piece.numel() == out.numel() && piece.is_contiguous() &&
        piece.scalar_type() == pieces[0].scalar_type());
  }
  if (out.numel() == 0) {
    return;
  }
  with_type(pieces[0].scalar_type(), [&](auto piece) {
    with_type(out.scalar_type(), [&](auto result) {
      using Piece = decltype(piece);
      using Out = decltype(result);
      using Sum = std::conditional_t<
          std::is_same_v<Piece, double> || std::is_same_v<Out, double>, double,
          float>;
      sum_typed<Piece, Sum, Out>(pieces, scale, accumulate, out);
    });
  });
}

}  // namespace sherd::world
