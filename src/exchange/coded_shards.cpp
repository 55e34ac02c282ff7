// SPDX-License-Identifier: Apache-2.0
#include "exchange/coded_shards.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/status.h"
#include "plan/arithmetic.h"

namespace sherd::exchange {
namespace {

class DecodedTransfer final : public world::Transfer {
 public:
  DecodedTransfer(
      std::unique_ptr<world::Transfer> incoming, std::function<Status()> decode)
      : incoming_(std::move(incoming)), decode_(std::move(decode)) {}

  Status wait(const std::string& what) override {
    auto status = incoming_ ? incoming_->wait(what) : Status();
    return status.ok() ? decode_() : status;
  }

 private:
  const std::unique_ptr<world::Transfer> incoming_;
  const std::function<Status()> decode_;
};

}  // namespace

CodedShards::CodedShards(
    const ModelSpec& model,
    PrivateBuffers& memories,
    std::shared_ptr<const ShardCoder> coder,
    int rank,
    std::int64_t multiple)
    : model_(model),
      memories_(memories),
      coder_(std::move(coder)),
      rank_(rank),
      multiple_(multiple) {
  for (const auto& unit : model.units) {
    own_.emplace_back(unit.flats.size());
  }
}

std::string CodedShards::failed(const CodedShard& which) const {
  return str(
      "[exchange] the hook ", coder_->name, " of gathers failed for unit ",
      model_.unit(which.unit).name, ": ");
}

std::int64_t CodedShards::bytes_of(const CodedShard& which) const {
  const auto& flat = spec_of(which);
  const auto numel = flat.layout.shard(which.owner).numel();
  return numel == 0 ? 0 : coder_->bytes(numel, flat.unsharded_dtype());
}

std::int64_t CodedShards::room_bytes(const CodedShard& which) const {
  return plan::round_up(bytes_of(which), multiple_);
}

at::Tensor CodedShards::room(const CodedShard& which) const {
  const auto& shard = memories_.shard(which.unit, which.flat).shard;
  return at::empty({room_bytes(which)}, shard.options().dtype(at::kByte));
}

plan::FlatLayout CodedShards::layout_of(UnitId unit, int flat) const {
  CodedShard which{.unit = unit, .flat = flat};
  plan::FlatLayout layout;
  for (; which.owner < spec_of(which).layout.ranks(); ++which.owner) {
    layout.cuts.push_back(layout.numel);
    layout.numel += room_bytes(which);
  }
  layout.cuts.push_back(layout.numel);
  return layout;
}

at::Tensor CodedShards::own(UnitId unit, int flat, std::uint64_t generation) {
  auto& own =
      own_[static_cast<std::size_t>(unit)][static_cast<std::size_t>(flat)];
  if (own.generation == generation) {
    return own.coded;
  }
  const CodedShard which{.unit = unit, .flat = flat, .owner = rank_};
  status_of(
      [&] {
        const at::NoGradGuard no_grad;
        if (!own.coded.defined()) {
          own.coded = room(which);
        }
        if (spec_of(which).layout.shard(rank_).numel() > 0) {
          coder_->encode(
              which, memories_.shard(unit, flat).shard,
              spec_of(which).unsharded_dtype(),
              own.coded.narrow(0, 0, bytes_of(which)));
        }
      },
      ErrorCode::kFailedPrecondition, failed(which))
      .throw_if_failed();
  own.generation = generation;
  return own.coded;
}

void CodedShards::decode(
    const CodedShard& which,
    const at::Tensor& coded,
    const at::Tensor& part) const {
  status_of(
      [&] {
        const at::NoGradGuard no_grad;
        if (part.numel() > 0) {
          coder_->decode(which, coded.narrow(0, 0, bytes_of(which)), part);
        }
      },
      ErrorCode::kFailedPrecondition, failed(which))
      .throw_if_failed();
}

std::unique_ptr<world::Transfer> CodedShards::decoded(
    const CodedShard& which,
    const at::Tensor& coded,
    const at::Tensor& part,
    std::unique_ptr<world::Transfer> incoming) const {
  return std::make_unique<DecodedTransfer>(
      std::move(incoming), [this, which, coded, part] {
        return status_of(
            [&] { decode(which, coded, part); },
            ErrorCode::kFailedPrecondition);
      });
}

}  // namespace sherd::exchange
