// SPDX-License-Identifier: Apache-2.0
#include "exchange/host_sums.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "exchange/reductions.h"
#include "exchange/slice_sum.h"
#include "plan/arithmetic.h"

namespace sherd::exchange {
namespace {

constexpr std::int64_t kSumAlignment = 64;
constexpr std::chrono::seconds kPatience{1};

// Of a host's sum: what sum_slices() accumulates in.
c10::ScalarType sum_dtype(const FlatSpec& flat) {
  return flat.slot_dtype() == c10::ScalarType::Double ||
          flat.dtype == c10::ScalarType::Double
      ? c10::ScalarType::Double
      : c10::ScalarType::Float;
}

std::int64_t sum_bytes(const FlatSpec& flat, int rank) {
  return plan::round_up(
      flat.layout.shard(rank).numel() *
          static_cast<std::int64_t>(c10::elementSize(sum_dtype(flat))),
      kSumAlignment);
}

}  // namespace

HostSums::HostSums(Parts parts)
    : parts_(std::move(parts)),
      first_flat_(first_flats(*parts_.model)),
      region_(parts_.region_bytes),
      open_(parts_.model->units.size()),
      posted_(parts_.model->units.size(), 0) {
  for (const auto& unit : parts_.model->units) {
    offsets_.push_back(slot_offsets(unit));
    auto& segments = segments_.emplace_back();
    for (const auto& flat : unit.flats) {
      segments.push_back(
          flat.trainable ? segments_of(flat) : std::vector<Segment>());
    }
  }
}

int HostSums::tag(UnitId unit, std::size_t flat) const {
  return first_flat_[static_cast<std::size_t>(unit)] + static_cast<int>(flat);
}

std::vector<at::Tensor> HostSums::slot(UnitId unit) {
  auto& open = open_[static_cast<std::size_t>(unit)];
  if (open) {
    return open->flats;
  }
  reclaim();
  const auto& offsets = offsets_[static_cast<std::size_t>(unit)];
  const auto begin = region_.take(offsets.back());
  SHERD_CHECK_AS(
      kUnavailable, begin.has_value(),
      "[exchange] no room for the gradients of unit ", spec(unit).name,
      " among ", region_.taken_bytes(), " of ", parts_.region_bytes,
      " bytes taken");
  open.emplace();
  open->begin = *begin;
  auto* memory =
      parts_.regions[static_cast<std::size_t>(parts_.map->local_rank())] +
      *begin;
  const auto& flats = spec(unit).flats;
  for (std::size_t f = 0; f < flats.size(); ++f) {
    open->flats.push_back(
        flats[f].trainable
            ? at::from_blob(
                  memory + offsets[f], {flats[f].layout.numel},
                  at::TensorOptions().dtype(flats[f].slot_dtype()))
            : at::Tensor());
  }
  return open->flats;
}

// A peer that is behind sends what is waited for in any case. One that does
// other things first may wait for something that this rank does next.
void HostSums::make_way(int under_way_max) {
  const auto most = static_cast<std::uint64_t>(under_way_max);
  if (most > 0 && started_ >= most && !waited_in_vain_) {
    waited_in_vain_ = !completer_.wait_for(started_ + 1 - most, kPatience);
  }
}

void HostSums::start(UnitId unit, const ReduceOptions& options) {
  make_way(options.under_way_max);
  (void)slot(unit);
  const auto open =
      *std::exchange(open_[static_cast<std::size_t>(unit)], std::nullopt);
  const auto reduction = std::make_shared<Reduction>();
  reduction->unit = unit;
  reduction->number = ++posted_[static_cast<std::size_t>(unit)];
  reduction->options = options;
  reduction->begin = open.begin;
  copy_given(*reduction, open);
  auto& mine = shared(parts_.map->local_rank(), unit);
  mine.begin = open.begin;
  comm::shm::Counter(mine.posted).post(reduction->number);
  lent_.push_back({unit, reduction->number, open.begin});
  stage(*reduction);
  receive(*reduction);
  ++started_;
  summer_.post([this, reduction] { return sum_here(reduction); });
  under_way_peak_ = std::max(
      under_way_peak_, static_cast<std::int64_t>(started_ - completed()));
}

// Gradients that lie elsewhere: neighbours see the slot only. What this rank
// sums itself is read from where it is.
void HostSums::copy_given(const Reduction& reduction, const Open& open) const {
  const auto& map = *parts_.map;
  const auto& given = reduction.options.gradients;
  std::size_t parameter = 0;
  for (std::size_t f = 0; f < spec(reduction.unit).flats.size(); ++f) {
    const auto& flat = spec(reduction.unit).flats[f];
    for (std::size_t p = 0; flat.trainable && p < flat.names.size();
         ++p, ++parameter) {
      if (parameter >= given.size() || !given[parameter].defined()) {
        continue;
      }
      const auto begin = flat.layout.offsets[p];
      const plan::ElementRange all{begin, begin + flat.layout.numels[p]};
      for (int owner = 0; owner < flat.layout.ranks(); ++owner) {
        const auto range = intersection(all, flat.layout.shard(owner));
        if (range.empty() || map.stand_in(owner, map.host()) == map.rank()) {
          continue;
        }
        const auto part =
            given[parameter].narrow(0, range.begin - begin, range.numel());
        std::memcpy(
            open.flats[f]
                .narrow(0, range.begin, range.numel())
                .mutable_data_ptr(),
            part.const_data_ptr(), part.nbytes());
      }
    }
  }
}

// Room for the sums this rank makes, and for those that it receives.
void HostSums::stage(Reduction& reduction) {
  const auto& map = *parts_.map;
  std::int64_t bytes = 0;
  const auto each = [&](const auto& visit) {
    const auto& flats = spec(reduction.unit).flats;
    for (std::size_t f = 0; f < flats.size(); ++f) {
      for (const int owner : map.charges()) {
        if (flats[f].trainable) {
          visit(f, flats[f], owner, map.host());
        }
      }
      for (int host = 0; host < map.hosts(); ++host) {
        if (flats[f].trainable && host != map.host()) {
          visit(f, flats[f], map.rank(), host);
        }
      }
    }
  };
  each([&](std::size_t, const FlatSpec& flat, int owner, int) {
    bytes += sum_bytes(flat, owner);
  });
  reduction.staging = parts_.memories->borrow_staging(bytes);
  reduction.own.resize(spec(reduction.unit).flats.size());
  for (auto& by_host : reduction.own) {
    by_host.resize(static_cast<std::size_t>(map.hosts()));
  }
  auto* at = static_cast<char*>(reduction.staging.memory);
  each([&](std::size_t f, const FlatSpec& flat, int owner, int host) {
    const auto sum = at::from_blob(
        at, {flat.layout.shard(owner).numel()},
        at::TensorOptions().dtype(sum_dtype(flat)));
    at += sum_bytes(flat, owner);
    if (host == map.host()) {
      reduction.sums.push_back({f, owner, sum});
    }
    if (owner == map.rank()) {
      reduction.own[f][static_cast<std::size_t>(host)] = sum;
    }
  });
}

void HostSums::receive(Reduction& reduction) {
  const auto& map = *parts_.map;
  const std::lock_guard lock(link_mu_);
  for (std::size_t f = 0; f < reduction.own.size(); ++f) {
    for (int host = 0; host < map.hosts(); ++host) {
      const auto& sum = reduction.own[f][static_cast<std::size_t>(host)];
      if (host != map.host() && sum.defined()) {
        reduction.transfers.push_back(parts_.via->receive(
            sum, map.stand_in(map.rank(), host), tag(reduction.unit, f)));
      }
    }
  }
}

Status HostSums::sum_here(const std::shared_ptr<Reduction>& reduction) {
  const auto& map = *parts_.map;
  const auto unit = reduction->unit;
  const std::string what = str("the gradients of unit ", spec(unit).name);
  for (int local = 0; local < map.local_ranks(); ++local) {
    if (local == map.local_rank()) {
      continue;
    }
    const comm::shm::Counter posted(shared(local, unit).posted);
    auto status = parts_.waiter->wait(
        posted, reduction->number, {.rank = local, .what = what});
    if (!status.ok()) {
      return status;
    }
  }
  for (const auto& into : reduction->sums) {
    sum(*reduction, into);
    if (into.owner != map.rank()) {
      const std::lock_guard lock(link_mu_);
      reduction->transfers.push_back(parts_.via->send(
          into.sum, into.owner, tag(reduction->unit, into.flat)));
    }
  }
  comm::shm::Counter(shared(map.local_rank(), unit).summed)
      .post(reduction->number);
  completer_.post([this, reduction] {
    auto status = complete(*reduction);
    reduction->summed = status.ok();
    const std::lock_guard lock(mu_);
    completed_.push_back(reduction);
    return status;
  });
  return {};
}

// What a local rank has for a range of a flat, in its slot.
at::Tensor HostSums::piece(
    const Reduction& reduction,
    int local,
    std::size_t f,
    const plan::ElementRange& range) const {
  const auto& flat = spec(reduction.unit).flats[f];
  const auto begin = local == parts_.map->local_rank()
      ? reduction.begin
      : shared(local, reduction.unit).begin;
  const auto offset = offsets_[static_cast<std::size_t>(reduction.unit)][f] +
      range.begin *
          static_cast<std::int64_t>(c10::elementSize(flat.slot_dtype()));
  return at::from_blob(
      parts_.regions[static_cast<std::size_t>(local)] + begin + offset,
      {range.numel()}, at::TensorOptions().dtype(flat.slot_dtype()));
}

void HostSums::sum(const Reduction& reduction, const HostSum& into) const {
  const auto u = static_cast<std::size_t>(reduction.unit);
  const auto& flats = spec(reduction.unit).flats;
  const auto& given = reduction.options.gradients;
  std::size_t first_parameter = 0;
  for (std::size_t f = 0; f < into.flat; ++f) {
    first_parameter += flats[f].trainable ? flats[f].names.size() : 0;
  }
  const auto slice = flats[into.flat].layout.shard(into.owner);
  for (const auto& segment : segments_[u][into.flat]) {
    const auto range = intersection(segment.range, slice);
    if (range.empty()) {
      continue;
    }
    const auto p =
        first_parameter + static_cast<std::size_t>(segment.parameter);
    const bool elsewhere =
        segment.parameter >= 0 && p < given.size() && given[p].defined();
    std::vector<at::Tensor> pieces;
    for (int local = 0; local < parts_.map->local_ranks(); ++local) {
      pieces.push_back(
          elsewhere && local == parts_.map->local_rank()
              ? given[p].narrow(
                    0, range.begin - segment.range.begin, range.numel())
              : piece(reduction, local, into.flat, range));
    }
    sum_slices(
        pieces, 1.0, false,
        into.sum.narrow(0, range.begin - slice.begin, range.numel()));
  }
}

Status HostSums::complete(const Reduction& reduction) {
  auto status = wait_all(
      reduction.transfers, "gradients of unit " + spec(reduction.unit).name);
  for (std::size_t f = 0; status.ok() && f < reduction.own.size(); ++f) {
    if (reduction.own[f].front().defined()) {
      const auto& into = reduction.options.into;
      sum_slices(
          reduction.own[f], reduction.options.scale,
          reduction.options.accumulate.at(f),
          into.empty()
              ? parts_.memories->shard(reduction.unit, static_cast<int>(f))
                    .gradient
              : into[f]);
    }
  }
  return status;
}

Status HostSums::progress() {
  reclaim();
  auto status = summer_.failure();
  return status.ok() ? completer_.failure() : status;
}

void HostSums::reclaim() {
  std::vector<std::shared_ptr<Reduction>> completed;
  {
    const std::lock_guard lock(mu_);
    completed.swap(completed_);
  }
  for (const auto& reduction : completed) {
    parts_.memories->release(reduction->staging);
    if (reduction->summed) {
      ended_.push_back(reduction->unit);
    }
  }
  std::erase_if(lent_, [&](const Lent& lent) {
    for (int local = 0; local < parts_.map->local_ranks(); ++local) {
      if (!comm::shm::Counter(shared(local, lent.unit).summed)
               .reached(lent.number)) {
        return false;
      }
    }
    region_.give_back(lent.begin);
    return true;
  });
}

Status HostSums::finish() {
  auto status = summer_.wait(started_);
  if (status.ok()) {
    status = completer_.wait(started_);
  }
  waited_in_vain_ = false;
  reclaim();
  return status;
}

void HostSums::add_to(ExchangeCounters& counters) const {
  counters.gradient_bytes += region_.taken_bytes();
  counters.gradient_bytes_peak += region_.taken_bytes_peak();
  counters.reduces_under_way_peak = under_way_peak_;
}

}  // namespace sherd::exchange
