// SPDX-License-Identifier: Apache-2.0
#include "exchange/reductions.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "exchange/slice_sum.h"

namespace sherd::exchange {
namespace {

constexpr std::int64_t kPieceAlignment = 64;

}  // namespace

std::vector<int> first_flats(const ModelSpec& model) {
  std::vector<int> first;
  int flats = 0;
  for (const auto& unit : model.units) {
    first.push_back(flats);
    flats += static_cast<int>(unit.flats.size());
  }
  return first;
}

Reductions::Reductions(const ModelSpec& model, Link& via, Memories& memories)
    : model_(model),
      via_(via),
      memories_(memories),
      first_flat_(first_flats(model)),
      worker_("sherd-reduce") {}

const UnitSpec& Reductions::spec(UnitId unit) const {
  return model_.units[static_cast<std::size_t>(unit)];
}

int Reductions::tag(UnitId unit, std::size_t flat) const {
  return first_flat_[static_cast<std::size_t>(unit)] + static_cast<int>(flat);
}

std::int64_t Reductions::piece_bytes(const FlatSpec& flat) const {
  const auto bytes = flat.layout.shard(via_.index()).numel() *
      static_cast<std::int64_t>(c10::elementSize(flat.dtype));
  return (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
}

std::int64_t Reductions::staging_bytes(const FlatSpec& flat) const {
  return flat.trainable ? piece_bytes(flat) * (via_.size() - 1) : 0;
}

void Reductions::start(UnitId unit, const ReduceOptions& options) {
  reclaim();
  const auto shared = std::make_shared<Reduction>();
  auto& reduction = *shared;
  reduction.unit = unit;
  reduction.options = options;
  reduction.slot = memories_.take_gradients(unit);
  std::int64_t bytes = 0;
  for (const auto& flat : spec(unit).flats) {
    bytes += staging_bytes(flat);
  }
  reduction.staging = memories_.borrow_staging(bytes);
  auto* staging = static_cast<char*>(reduction.staging.memory);
  for (std::size_t f = 0; f < spec(unit).flats.size(); ++f) {
    reduction.pieces.emplace_back();
    if (spec(unit).flats[f].trainable) {
      post_flat(reduction, f, staging);
      staging += staging_bytes(spec(unit).flats[f]);
    }
  }
  started_.push_back(unit);
  last_job_ = worker_.post([this, shared] {
    auto status = complete(*shared);
    const std::lock_guard lock(mu_);
    summed_.push_back(shared);
    return status;
  });
}

void Reductions::post_flat(Reduction& reduction, std::size_t f, char* staging) {
  const auto& flat_spec = spec(reduction.unit).flats[f];
  const auto& flat = reduction.slot.flats[f];
  const auto own = flat_spec.layout.shard(via_.index());
  const auto options = at::TensorOptions().dtype(flat_spec.dtype);
  for (int peer = 0; peer < via_.size(); ++peer) {
    const auto range = flat_spec.layout.shard(peer);
    const auto part = flat.narrow(0, range.begin, range.numel());
    auto& piece = reduction.pieces[f].emplace_back(part);
    if (peer == via_.index()) {
      continue;
    }
    reduction.transfers.push_back(
        via_.send(part, peer, tag(reduction.unit, f)));
    piece = own.empty() ? flat.narrow(0, 0, 0)
                        : at::from_blob(staging, {own.numel()}, options);
    staging += piece_bytes(flat_spec);
    reduction.transfers.push_back(
        via_.receive(piece, peer, tag(reduction.unit, f)));
  }
}

Status Reductions::progress() {
  reclaim();
  return worker_.failure();
}

void Reductions::reclaim() {
  std::vector<std::shared_ptr<Reduction>> summed;
  {
    const std::lock_guard lock(mu_);
    summed.swap(summed_);
  }
  for (const auto& reduction : summed) {
    memories_.release(reduction->slot);
    memories_.release(reduction->staging);
  }
}

at::Tensor Reductions::own_gradient(UnitId unit, std::size_t f) const {
  const auto flat = static_cast<int>(f);
  const auto range = spec(unit).flats[f].layout.shard(via_.index());
  return memories_.shard(unit, flat)
      .gradient.narrow(
          0, range.begin - memories_.owned(unit, flat).begin, range.numel());
}

Status Reductions::complete(const Reduction& reduction) {
  auto status = wait_all(
      reduction.transfers, "gradients of unit " + spec(reduction.unit).name);
  for (std::size_t f = 0; f < reduction.pieces.size() && status.ok(); ++f) {
    if (!reduction.pieces[f].empty()) {
      sum_slices(
          reduction.pieces[f], reduction.options.scale,
          reduction.options.accumulate.at(f), own_gradient(reduction.unit, f));
    }
  }
  return status;
}

Status Reductions::finish() {
  auto status = worker_.wait(last_job_);
  reclaim();
  return status.ok() ? share_replicated() : status;
}

Status Reductions::share_replicated() {
  Transfers transfers;
  const auto summed = std::exchange(started_, {});
  if (model_.placement != Placement::kReplicate) {
    return {};
  }
  for (const auto unit : summed) {
    for (std::size_t f = 0; f < spec(unit).flats.size(); ++f) {
      const auto& flat = spec(unit).flats[f];
      if (!flat.trainable) {
        continue;
      }
      const auto gradient = memories_.shard(unit, static_cast<int>(f)).gradient;
      for (int peer = 0; peer < via_.size(); ++peer) {
        if (peer == via_.index()) {
          continue;
        }
        const auto range = flat.layout.shard(peer);
        transfers.push_back(
            via_.send(own_gradient(unit, f), peer, tag(unit, f)));
        transfers.push_back(via_.receive(
            gradient.narrow(0, range.begin, range.numel()), peer,
            tag(unit, f)));
      }
    }
  }
  return wait_all(transfers, "gradients that every rank keeps");
}

}  // namespace sherd::exchange
