// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_sums.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "exchange/slice_sum.h"

namespace sherd::exchange {

SharedSums::SharedSums(Place place)
    : place_(std::move(place)),
      region_(place_.region_bytes),
      open_(place_.model->units.size()),
      posted_(place_.model->units.size(), 0) {
  for (const auto& unit : place_.model->units) {
    offsets_.push_back(slot_offsets(unit));
    auto& segments = segments_.emplace_back();
    for (const auto& flat : unit.flats) {
      segments.push_back(
          flat.trainable ? segments_of(flat) : std::vector<Segment>());
    }
  }
}

std::vector<at::Tensor> SharedSums::slot(UnitId unit) {
  auto& open = open_[static_cast<std::size_t>(unit)];
  const auto& offsets = offsets_[static_cast<std::size_t>(unit)];
  if (!open) {
    reclaim();
    const auto begin = region_.take(offsets.back());
    SHERD_CHECK_AS(
        kUnavailable, begin.has_value(),
        "[exchange] no room for the gradients of unit ", spec(unit).name,
        " among ", region_.taken_bytes(), " of ", place_.region_bytes,
        " bytes taken");
    open.emplace();
    open->begin = *begin;
    auto* memory =
        place_.regions[static_cast<std::size_t>(place_.rank)] + *begin;
    const auto& flats = spec(unit).flats;
    for (std::size_t f = 0; f < flats.size(); ++f) {
      open->flats.push_back(
          flats[f].trainable
              ? at::from_blob(
                    memory + offsets[f], {flats[f].layout.numel},
                    at::TensorOptions().dtype(flats[f].slot_dtype()))
              : at::Tensor());
    }
  }
  return open->flats;
}

void SharedSums::post(UnitId unit, const ReduceOptions& options) {
  // Replicated ones are taken from where other ranks see them.
  SHERD_ASSERT(
      options.into.empty() || place_.model->placement == Placement::kShard);
  (void)slot(unit);
  auto open =
      *std::exchange(open_[static_cast<std::size_t>(unit)], std::nullopt);
  Pending pending{
      .unit = unit,
      .number = ++posted_[static_cast<std::size_t>(unit)],
      .options = options,
      .begin = open.begin};
  copy_given(pending, open);
  auto& mine = shared(place_.rank, unit);
  mine.begin = open.begin;
  comm::shm::Counter(mine.posted).post(pending.number);
  lent_.push_back({unit, pending.number, open.begin});
  pending_.push_back(std::move(pending));
  under_way_peak_ = std::max(under_way_peak_, under_way());
}

// Gradients that lie elsewhere: peers see the slot only. This rank's own part
// is summed from where it is.
void SharedSums::copy_given(const Pending& pending, const Open& open) const {
  const auto& given = pending.options.gradients;
  std::size_t parameter = 0;
  for (std::size_t f = 0; f < spec(pending.unit).flats.size(); ++f) {
    const auto& flat = spec(pending.unit).flats[f];
    const auto own = flat.layout.shard(place_.rank);
    for (std::size_t p = 0; flat.trainable && p < flat.names.size();
         ++p, ++parameter) {
      if (parameter >= given.size() || !given[parameter].defined()) {
        continue;
      }
      const auto begin = flat.layout.offsets[p];
      const auto end = begin + flat.layout.numels[p];
      const auto copy = [&](std::int64_t from, std::int64_t to) {
        if (from < to) {
          const auto part = given[parameter].narrow(0, from - begin, to - from);
          std::memcpy(
              open.flats[f].narrow(0, from, to - from).mutable_data_ptr(),
              part.const_data_ptr(), part.nbytes());
        }
      };
      copy(begin, std::min(end, own.begin));
      copy(std::max(begin, own.end), end);
    }
  }
}

std::optional<SharedSums::Missing> SharedSums::missing(
    UnitId unit, std::uint64_t number, CounterOf of) const {
  for (int rank = 0; rank < place_.ranks; ++rank) {
    const comm::shm::Counter counter(shared(rank, unit).*of);
    if (!counter.reached(number)) {
      return Missing{unit, rank, counter, number};
    }
  }
  return std::nullopt;
}

std::optional<SharedSums::Missing> SharedSums::missing() const {
  if (!pending_.empty()) {
    const auto& first = pending_.front();
    return missing(first.unit, first.number, &SharedSlot::posted);
  }
  if (!summed_.empty()) {
    const auto& first = summed_.front();
    return missing(first.unit, first.number, &SharedSlot::summed);
  }
  return std::nullopt;
}

void SharedSums::progress() {
  std::erase_if(pending_, [&](const Pending& pending) {
    const bool posted =
        !missing(pending.unit, pending.number, &SharedSlot::posted);
    if (posted) {
      sum(pending);
      comm::shm::Counter(shared(place_.rank, pending.unit).summed)
          .post(pending.number);
      if (place_.model->placement == Placement::kReplicate) {
        summed_.push_back({pending.unit, pending.number});
      } else {
        ended_.push_back(pending.unit);
      }
    }
    return posted;
  });
  std::erase_if(summed_, [&](const Summed& summed) {
    const bool by_all =
        !missing(summed.unit, summed.number, &SharedSlot::summed);
    if (by_all) {
      take(summed.unit);
      ended_.push_back(summed.unit);
    }
    return by_all;
  });
  reclaim();
}

// Each owner has its slice of the sum, in its own gradient.
void SharedSums::take(UnitId unit) const {
  for (std::size_t f = 0; f < spec(unit).flats.size(); ++f) {
    const auto& flat = spec(unit).flats[f];
    for (int rank = 0; flat.trainable && rank < place_.ranks; ++rank) {
      const auto range = flat.layout.shard(rank);
      if (rank == place_.rank || range.empty()) {
        continue;
      }
      const auto slice_of = [&](int of) {
        return place_.units->gradient_of(of, unit, static_cast<int>(f))
            .narrow(0, range.begin, range.numel());
      };
      const auto theirs = slice_of(rank);
      std::memcpy(
          slice_of(place_.rank).mutable_data_ptr(), theirs.const_data_ptr(),
          theirs.nbytes());
    }
  }
}

// What the rank has for a range of a flat, in its slot or, of this rank, where
// autograd left it.
at::Tensor SharedSums::piece(
    const Pending& pending,
    int rank,
    std::size_t f,
    const plan::ElementRange& range) const {
  const auto& flat = spec(pending.unit).flats[f];
  const auto begin =
      rank == place_.rank ? pending.begin : shared(rank, pending.unit).begin;
  const auto offset = offsets_[static_cast<std::size_t>(pending.unit)][f] +
      range.begin *
          static_cast<std::int64_t>(c10::elementSize(flat.slot_dtype()));
  return at::from_blob(
      place_.regions[static_cast<std::size_t>(rank)] + begin + offset,
      {range.numel()}, at::TensorOptions().dtype(flat.slot_dtype()));
}

void SharedSums::sum(const Pending& pending) const {
  const auto& given = pending.options.gradients;
  std::size_t first_parameter = 0;
  for (std::size_t f = 0; f < spec(pending.unit).flats.size(); ++f) {
    const auto& flat = spec(pending.unit).flats[f];
    if (!flat.trainable) {
      continue;
    }
    const auto own = flat.layout.shard(place_.rank);
    const auto& into = pending.options.into;
    const auto out = into.empty()
        ? place_.units->shard(pending.unit, static_cast<int>(f)).gradient
        : into[f];
    const auto out_begin =
        owned(*place_.model, pending.unit, static_cast<int>(f), place_.rank)
            .begin;
    for (const auto& segment :
         segments_[static_cast<std::size_t>(pending.unit)][f]) {
      const auto range = intersection(segment.range, own);
      if (range.empty()) {
        continue;
      }
      const auto p =
          first_parameter + static_cast<std::size_t>(segment.parameter);
      const bool elsewhere =
          segment.parameter >= 0 && p < given.size() && given[p].defined();
      std::vector<at::Tensor> pieces;
      for (int rank = 0; rank < place_.ranks; ++rank) {
        pieces.push_back(
            rank == place_.rank && elsewhere
                ? given[p].narrow(
                      0, range.begin - segment.range.begin, range.numel())
                : piece(pending, rank, f, range));
      }
      sum_slices(
          pieces, pending.options.scale, pending.options.accumulate.at(f),
          out.narrow(0, range.begin - out_begin, range.numel()));
    }
    first_parameter += flat.names.size();
  }
}

void SharedSums::reclaim() {
  std::erase_if(lent_, [&](const Lent& lent) {
    const bool free = !missing(lent.unit, lent.number, &SharedSlot::summed);
    if (free) {
      region_.give_back(lent.begin);
    }
    return free;
  });
}

}  // namespace sherd::exchange
