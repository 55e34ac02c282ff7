// SPDX-License-Identifier: Apache-2.0
#include "fsdp/hook_reduction.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/rank_environment.h"
#include "ddp/comm_hook_group.h"

namespace sherd::fsdp {

std::vector<HookReduction::Piece> HookReduction::pieces_in(
    const plan::ElementRange& range,
    const std::string& name,
    at::IntArrayRef shape,
    std::int64_t offset) {
  const auto numel = c10::multiply_integers(shape);
  const auto begin = std::clamp<std::int64_t>(range.begin - offset, 0, numel);
  const auto end = std::clamp<std::int64_t>(range.end - offset, begin, numel);
  const auto row = shape.size() > 1 && numel > 0 ? numel / shape[0] : 1;
  const auto first_row = std::min((begin + row - 1) / row * row, end);
  const auto last_row = std::max(first_row, end / row * row);
  const auto in_range = offset - range.begin;
  std::vector<Piece> pieces;
  const auto add_cut_row = [&](std::int64_t from, std::int64_t to) {
    if (from < to) {
      pieces.push_back(
          {str(name, "[", from, ":", to, "]"), in_range + from, {to - from}});
    }
  };
  add_cut_row(begin, first_row);
  if (first_row < last_row) {
    auto rows = shape.vec();
    if (!rows.empty()) {
      rows[0] = (last_row - first_row) / row;
    }
    pieces.push_back({name, in_range + first_row, std::move(rows)});
  }
  add_cut_row(last_row, end);
  return pieces;
}

HookReduction::HookReduction(
    const ModelUnits& model, const Shards& shards, CommHookPtr hook)
    : hook_(std::move(hook)),
      compares_calls_(ddp::asks_to_compare_calls(process_environment())),
      order_(model.units.size()) {
  std::iota(order_.rbegin(), order_.rend(), 0);
  std::vector<std::vector<plan::ElementRange>> ranges;
  for (const auto& unit : model.units) {
    names_.push_back(unit.name);
    auto& flats = flats_.emplace_back(unit.flats.size());
    auto& reduced = ranges.emplace_back();
    for (std::size_t f = 0; f < flats.size(); ++f) {
      const auto* cuts = unit.flats[f].layout.cuts.data() + shards.first;
      reduced.push_back({cuts[0], cuts[shards.count]});
      for (int owner = 0; shards.scattered && owner <= shards.count; ++owner) {
        flats[f].cuts.push_back(cuts[owner] - cuts[0]);
      }
    }
  }
  for (const auto unit : order_) {
    const auto u = static_cast<std::size_t>(unit);
    for (std::size_t f = 0; f < flats_[u].size(); ++f) {
      if (model.units[u].flats[f].trainable && !ranges[u][f].empty()) {
        flats_[u][f].index = buckets_++;
      }
    }
  }
  for (const auto& parameter : model.parameters) {
    const auto u = static_cast<std::size_t>(parameter.unit);
    const auto f = static_cast<std::size_t>(parameter.flat);
    auto pieces = pieces_in(
        ranges[u][f], parameter.name, parameter.tensor.sizes(),
        model.offset_of(parameter));
    std::move(
        pieces.begin(), pieces.end(), std::back_inserter(flats_[u][f].pieces));
  }
}

std::string HookReduction::name() const {
  return ddp::name_of_hook(*hook_, compares_calls_);
}

void HookReduction::reduce(
    plan::UnitId unit,
    const std::vector<at::Tensor>& flats,
    const exchange::HookTransport& transport) {
  const auto u = static_cast<std::size_t>(unit);
  for (std::size_t f = 0; f < flats.size(); ++f) {
    const auto& flat = flats_[u][f];
    if (flat.index < 0) {
      continue;
    }
    GradientBucket bucket;
    bucket.index = flat.index;
    bucket.last = flat.index + 1 == buckets_;
    bucket.step = step_;
    bucket.gradients = flats[f];
    bucket.cuts = flat.cuts;
    for (const auto& piece : flat.pieces) {
      const auto numel = c10::multiply_integers(piece.shape);
      bucket.parameters.push_back(
          {piece.name,
           flats[f].narrow(0, piece.begin, numel).view(piece.shape)});
    }
    ddp::CommHookGroup group(
        transport, "gradients of unit " + names_[u], compares_calls_);
    ddp::reduce_in_place(*hook_, bucket, group);
    bytes_ += group.bytes();
  }
}

}  // namespace sherd::fsdp
