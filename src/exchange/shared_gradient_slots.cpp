// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_gradient_slots.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "base/copy_bytes.h"
#include "world/rank_order_sum.h"

namespace sherd::exchange {
namespace {

// Bytes of a block that goes to a sink: it stays in the second-level cache with what the
// sink reads and writes, and is long against the price of a call.
constexpr std::int64_t kSinkElements = std::int64_t{1} << 15;

void sum_into_sink(
    std::span<const at::Tensor> pieces,
    double scale,
    const at::Tensor& block,
    const ReduceOptions::GradientSink& sink) {
  const auto numel = pieces[0].numel();
  for (std::int64_t at = 0; at < numel; at += block.numel()) {
    const auto count = std::min(block.numel(), numel - at);
    std::vector<at::Tensor> parts;
    for (const auto& piece : pieces) {
      parts.push_back(piece.narrow(0, at, count));
    }
    const auto sum = block.narrow(0, 0, count);
    world::sum_in_rank_order(parts, scale, /*accumulate=*/false, sum);
    sink(at, sum);
  }
}

}  // namespace

SharedGradientSlots::SharedGradientSlots(Mapping mapping)
    : mapping_(std::move(mapping)),
      region_(mapping_.region_bytes),
      open_(mapping_.model->units.size()),
      posted_(mapping_.model->units.size(), 0) {
  std::set<std::size_t> sizes;
  for (const auto& unit : mapping_.model->units) {
    offsets_.push_back(slot_offsets(unit));
    chunks_.push_back(chunks_of(unit));
    const auto large = large_gradients(unit);
    sizes.insert(large.begin(), large.end());
    small_bytes_.push_back(
        slot_bytes(unit) -
        std::accumulate(large.begin(), large.end(), std::int64_t{0}));
  }
  if (mapping_.heap_bytes > 0) {
    heap_ = std::make_shared<GradientHeap>(
        std::span(
            mapping_.regions[static_cast<std::size_t>(mapping_.rank)] +
                mapping_.region_bytes,
            static_cast<std::size_t>(mapping_.heap_bytes)),
        std::move(sizes), mapping_.segment);
  }
}

void SharedGradientSlots::begin_backward() {
  if (heap_) {
    heap_->enter();
  }
}

void SharedGradientSlots::close() {
  if (heap_) {
    heap_->close();
  }
}

std::int64_t SharedGradientSlots::bytes() const {
  return bytes_ + (heap_ ? heap_->bytes() : 0);
}

std::int64_t SharedGradientSlots::bytes_peak() const {
  return bytes_peak_ + (heap_ ? heap_->bytes_peak() : 0);
}

void SharedGradientSlots::count(Open& open, std::int64_t bytes) {
  open.bytes += bytes;
  bytes_ += bytes;
  bytes_peak_ = std::max(bytes_peak_, bytes_);
}

std::vector<at::Tensor> SharedGradientSlots::slot(UnitId unit) {
  auto& open = open_[static_cast<std::size_t>(unit)];
  const auto& offsets = offsets_[static_cast<std::size_t>(unit)];
  if (!open) {
    reclaim();
    const auto begin = region_.take(slot_bytes(mapping_.model->unit(unit)));
    SHERD_CHECK_AS(
        kUnavailable, begin.has_value(),
        "[exchange] no room for the gradients of unit ",
        mapping_.model->unit(unit).name, " among ", region_.taken_bytes(),
        " of ", mapping_.region_bytes, " bytes taken");
    open.emplace();
    open->begin = *begin;
    count(*open, small_bytes_[static_cast<std::size_t>(unit)]);
    auto* memory =
        mapping_.regions[static_cast<std::size_t>(mapping_.rank)] + *begin;
    const auto& flats = mapping_.model->unit(unit).flats;
    for (std::size_t f = 0; f < flats.size(); ++f) {
      open->flats.push_back(
          flats[f].trainable ? at::from_blob(
                                   memory + offsets[f], {flats[f].layout.numel},
                                   flats[f].slot_dtype())
                             : at::Tensor());
    }
  }
  return open->flats;
}

// Gradients that lie elsewhere: others see the slot and the heap only.
std::uint64_t SharedGradientSlots::post(
    UnitId unit,
    const ReduceOptions& options,
    const std::function<bool(int owner)>& sums_itself) {
  (void)slot(unit);
  auto open =
      *std::exchange(open_[static_cast<std::size_t>(unit)], std::nullopt);
  auto& mine = shared(mapping_.rank, unit);
  mine.begin = open.begin;
  auto* const places = this->places(mapping_.rank, unit);
  std::vector<at::Tensor> in_heap;
  int parameter = 0;
  for (std::size_t f = 0; f < mapping_.model->unit(unit).flats.size(); ++f) {
    const auto& flat = mapping_.model->unit(unit).flats[f];
    for (std::size_t p = 0; flat.trainable && p < flat.names.size(); ++p) {
      const auto given = options.gradient(parameter);
      const auto place = this->place(given);
      places[parameter++] = place.value_or(kInSlot);
      if (place) {
        in_heap.push_back(given);
        continue;
      }
      if (!given.defined()) {
        count(open, large_gradient_bytes(flat, p));
        continue;
      }
      const auto begin = flat.layout.offsets[p];
      const plan::ElementRange all{begin, begin + flat.layout.numels[p]};
      for (int owner = 0; owner < flat.layout.ranks(); ++owner) {
        const auto range = intersection(all, flat.layout.shard(owner));
        if (range.empty() || sums_itself(owner)) {
          continue;
        }
        const auto part = given.narrow(0, range.begin - begin, range.numel());
        copy_bytes(
            open.flats[f]
                .narrow(0, range.begin, range.numel())
                .mutable_data_ptr(),
            part.const_data_ptr(), part.nbytes());
        count(open, static_cast<std::int64_t>(part.nbytes()));
      }
    }
  }
  const auto number = ++posted_[static_cast<std::size_t>(unit)];
  std::ranges::copy(options.used, marks(mapping_.rank, unit));
  shm::Counter(mine.posted).post(number);
  lent_.push_back({unit, number, open.begin, open.bytes, std::move(in_heap)});
  return number;
}

std::optional<SharedGradientSlots::Missing> SharedGradientSlots::missing(
    UnitId unit, std::uint64_t number, CounterOf of) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    const shm::Counter counter(shared(rank, unit).*of);
    if (!counter.reached(number)) {
      return Missing{unit, rank, counter, number};
    }
  }
  return std::nullopt;
}

std::uint8_t* SharedGradientSlots::marks(int rank, UnitId unit) const {
  return reinterpret_cast<std::uint8_t*>(
      mapping_.regions[static_cast<std::size_t>(rank)] +
      shared(rank, unit).begin +
      offsets_[static_cast<std::size_t>(unit)].back());
}

std::int64_t* SharedGradientSlots::places(int rank, UnitId unit) const {
  return reinterpret_cast<std::int64_t*>(
      mapping_.regions[static_cast<std::size_t>(rank)] +
      shared(rank, unit).begin + places_offset(mapping_.model->unit(unit)));
}

std::optional<std::int64_t> SharedGradientSlots::place(
    const at::Tensor& gradient) const {
  const auto offset = heap_ && gradient.defined()
      ? heap_->offset(gradient.const_data_ptr(), gradient.nbytes())
      : std::nullopt;
  return offset ? std::optional(mapping_.region_bytes + *offset) : std::nullopt;
}

std::vector<bool> SharedGradientSlots::used(UnitId unit) const {
  std::vector<bool> used(trainable_parameters(mapping_.model->unit(unit)));
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto* theirs = marks(rank, unit);
    for (std::size_t t = 0; t < used.size(); ++t) {
      used[t] = used[t] || theirs[t] != 0;
    }
  }
  return used;
}

// What a rank shows of a chunk of a flat.
at::Tensor SharedGradientSlots::piece(
    UnitId unit,
    int rank,
    std::size_t f,
    const GradientChunk& chunk,
    const plan::ElementRange& range) const {
  const auto dtype = mapping_.model->unit(unit).flats[f].slot_dtype();
  const auto element = static_cast<std::int64_t>(c10::elementSize(dtype));
  const auto place =
      chunk.parameter < 0 ? kInSlot : places(rank, unit)[chunk.parameter];
  const auto begin = place == kInSlot
      ? shared(rank, unit).begin + offsets_[static_cast<std::size_t>(unit)][f] +
          range.begin * element
      : place + (range.begin - chunk.range.begin) * element;
  return at::from_blob(
      mapping_.regions[static_cast<std::size_t>(rank)] + begin, {range.numel()},
      dtype);
}

void SharedGradientSlots::sum(
    const OwnedSlice& slice,
    const ReduceOptions& options,
    const at::Tensor& out) const {
  const auto own = mapping_.model->unit(slice.unit)
                       .flats[slice.flat]
                       .layout.shard(slice.owner);
  const bool sinks = !options.sinks.empty();
  const auto used = sinks ? this->used(slice.unit) : std::vector<bool>();
  const auto block =
      sinks ? at::empty({kSinkElements}, out.options()) : at::Tensor();
  for (const auto& chunk :
       chunks_[static_cast<std::size_t>(slice.unit)][slice.flat]) {
    const auto range = intersection(chunk.range, own);
    if (range.empty()) {
      continue;
    }
    const auto given = options.gradient(chunk.parameter);
    std::vector<at::Tensor> pieces;
    for (int rank = 0; rank < ranks(); ++rank) {
      pieces.push_back(
          rank == mapping_.rank && given.defined()
              ? given.narrow(0, range.begin - chunk.range.begin, range.numel())
              : piece(slice.unit, rank, slice.flat, chunk, range));
    }
    const auto p = static_cast<std::size_t>(chunk.parameter);
    if (chunk.parameter >= 0 && p < options.sinks.size() && options.sinks[p]) {
      if (used[p]) {
        sum_into_sink(pieces, slice.scale, block, options.sinks[p]);
      }
      continue;
    }
    world::sum_in_rank_order(
        pieces, slice.scale, slice.accumulate,
        out.narrow(0, range.begin - own.begin, range.numel()));
  }
}

void SharedGradientSlots::post_summed(UnitId unit, std::uint64_t number) const {
  own_summed(unit).post(number);
}

void SharedGradientSlots::reclaim() {
  std::erase_if(lent_, [&](const Lent& lent) {
    const bool free =
        !missing(lent.unit, lent.number, &SharedSlotState::summed);
    if (free) {
      region_.give_back(lent.begin);
      bytes_ -= lent.bytes;
    }
    return free;
  });
}

}  // namespace sherd::exchange
