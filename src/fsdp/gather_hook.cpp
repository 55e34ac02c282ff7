// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/gather_hook.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ops/empty.h>

#include "base/check.h"
#include "ddp/quantised_rows.h"

namespace sherd {
namespace {

using ddp::QuantisedRows;

constexpr float kLargest = QuantisedRows::kLargest;
// A number of up to 2^22 that is added to it is rounded to an integer.
constexpr float kRounds = 12'582'912.0F;

// LibTorch uses helper threads from 32,768 elements on, and the thread that gathers would get a set
// of its own, beside those that compute.
constexpr std::int64_t kChunkElements = 32'704;

template <typename Visit>
void for_each_chunk(
    std::int64_t numel, std::int64_t chunk, const Visit& visit) {
  for (std::int64_t begin = 0; begin < numel; begin += chunk) {
    visit(begin, std::min(chunk, numel - begin));
  }
}

// Copies the first elements of a tensor to another one on the same device.
void copy_in_chunks(
    std::int64_t numel, const at::Tensor& from, const at::Tensor& to) {
  const auto chunk =
      from.is_cpu() ? kChunkElements : std::max<std::int64_t>(numel, 1);
  for_each_chunk(numel, chunk, [&](std::int64_t begin, std::int64_t count) {
    to.narrow(0, begin, count).copy_(from.narrow(0, begin, count));
  });
}

// Writes the block's elements and returns its scale.
float quantise_block(const float* from, std::int64_t count, std::int8_t* to) {
  float largest = 0.0F;
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::fabs(from[i]));
    finite = finite && std::isfinite(from[i]);
  }
  const float scale = largest / kLargest;
  if (!finite || scale == 0.0F) {
    std::fill_n(to, count, std::int8_t{0});
    return finite ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float element = std::clamp(from[i] / scale, -kLargest, kLargest);
    to[i] = static_cast<std::int8_t>((element + kRounds) - kRounds);
  }
  return scale;
}

class QuantiseGathers final : public GatherHook {
 public:
  explicit QuantiseGathers(const QuantiseGathersOptions& options)
      : block_(options.block) {
    SHERD_CHECK(
        block_ >= 1,
        "[fsdp] quantise_gathers: expected a block of at least 1, found ",
        block_);
    chunk_ = std::max<std::int64_t>(kChunkElements / block_, 1) * block_;
  }

  std::string name() const override {
    return str("quantise_gathers(block ", block_, ")");
  }

  std::int64_t sent_bytes(
      std::int64_t numel, at::ScalarType param_dtype) const override {
    return at::isFloatingType(param_dtype)
        ? scale_bytes(numel) + numel
        : GatherHook::sent_bytes(numel, param_dtype);
  }

  void pre_gather(
      const GatheredShard& which,
      const at::Tensor& shard,
      at::ScalarType param_dtype,
      const at::Tensor& sent) override {
    if (!at::isFloatingType(param_dtype)) {
      GatherHook::pre_gather(which, shard, param_dtype, sent);
      return;
    }
    if (!shard.is_cpu()) {
      const auto values = shard.to(at::kFloat);
      for (const auto& blocks : blocks_of(shard.numel())) {
        blocks.sent.quantise(blocks.in(values), sent);
      }
      return;
    }
    auto* scales = static_cast<float*>(sent.mutable_data_ptr());
    auto* elements = static_cast<std::int8_t*>(sent.mutable_data_ptr()) +
        scale_bytes(shard.numel());
    for_each_chunk(
        shard.numel(), chunk_, [&](std::int64_t begin, std::int64_t count) {
          const auto values = shard.narrow(0, begin, count).to(at::kFloat);
          const auto* from = values.const_data_ptr<float>();
          for_each_chunk(
              count, block_, [&](std::int64_t at, std::int64_t size) {
                *scales++ =
                    quantise_block(from + at, size, elements + begin + at);
              });
        });
  }

  void post_gather(
      const GatheredShard& which,
      const at::Tensor& sent,
      const at::Tensor& part) override {
    if (!at::isFloatingType(part.scalar_type())) {
      GatherHook::post_gather(which, sent, part);
      return;
    }
    if (!part.is_cpu()) {
      for (const auto& blocks : blocks_of(part.numel())) {
        blocks.in(part).copy_(blocks.sent.values(sent));
      }
      return;
    }
    const auto* scales = static_cast<const float*>(sent.const_data_ptr());
    const auto* elements =
        static_cast<const std::int8_t*>(sent.const_data_ptr()) +
        scale_bytes(part.numel());
    const auto values = at::empty({std::min(chunk_, part.numel())}, at::kFloat);
    auto* to = values.mutable_data_ptr<float>();
    for_each_chunk(
        part.numel(), chunk_, [&](std::int64_t begin, std::int64_t count) {
          for (std::int64_t i = 0; i < count; ++i) {
            to[i] = scales[(begin + i) / block_] *
                static_cast<float>(elements[begin + i]);
          }
          part.narrow(0, begin, count).copy_(values.narrow(0, 0, count));
        });
  }

 private:
  // Blocks of equal size in a shard, and in what is sent of it.
  struct Blocks {
    std::int64_t begin = 0;  // Of elements of the shard.
    QuantisedRows sent;

    at::Tensor in(const at::Tensor& shard) const {
      return shard.narrow(0, begin, sent.rows * sent.columns)
          .view({sent.rows, sent.columns});
    }
  };
  // The whole blocks, and a shorter one.
  std::vector<Blocks> blocks_of(std::int64_t numel) const {
    const auto whole = numel / block_;
    const auto begin = whole * block_;
    const auto elements = scale_bytes(numel);
    std::vector<Blocks> blocks;
    if (whole > 0) {
      blocks.push_back(
          {.sent = {
               .rows = whole, .columns = block_, .elements_begin = elements}});
    }
    if (begin < numel) {
      blocks.push_back(
          {.begin = begin,
           .sent = {
               .rows = 1,
               .columns = numel - begin,
               .scales_begin = whole * QuantisedRows::kScaleBytes,
               .elements_begin = elements + begin}});
    }
    return blocks;
  }

  std::int64_t scale_bytes(std::int64_t numel) const {
    return (numel + block_ - 1) / block_ * QuantisedRows::kScaleBytes;
  }

  const std::int64_t block_;
  std::int64_t chunk_ = 0;  // Whole blocks.
};

}  // namespace

std::int64_t GatherHook::sent_bytes(
    std::int64_t numel, at::ScalarType param_dtype) const {
  return numel * static_cast<std::int64_t>(c10::elementSize(param_dtype));
}

void GatherHook::pre_gather(
    const GatheredShard& /*which*/,
    const at::Tensor& shard,
    at::ScalarType param_dtype,
    const at::Tensor& sent) {
  copy_in_chunks(shard.numel(), shard, sent.view(param_dtype));
}

void GatherHook::post_gather(
    const GatheredShard& /*which*/,
    const at::Tensor& sent,
    const at::Tensor& part) {
  copy_in_chunks(part.numel(), sent.view(part.scalar_type()), part);
}

GatherHookPtr quantise_gathers(const QuantiseGathersOptions& options) {
  return std::make_shared<QuantiseGathers>(options);
}

}  // namespace sherd
