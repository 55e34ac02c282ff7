// SPDX-License-Identifier: Apache-2.0
#include "exchange/stream_reductions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/check.h"
#include "exchange/gradient_chunks.h"

namespace sherd::exchange {

StreamReductions::StreamReductions(
    const ModelSpec& model,
    const DeviceBackends& backends,
    DeviceBuffers& buffers)
    : model_(model),
      buffers_(buffers),
      sums_(
          backends.reduce,
          backends.sums_in_rank_order,
          buffers.allocators.reductions,
          buffers),
      starts_at_once_(!model.own_shards || sums_.ranks() == 1) {
  if (backends.across) {
    across_.emplace(*backends.across, backends.sums_in_rank_order, buffers);
  }
}

void StreamReductions::start(UnitId unit, const ReduceOptions& options) {
  reclaim();
  ends_here_ = ends_here_ || !options.across;
  Reduction reduction;
  reduction.unit = unit;
  reduction.options = options;
  reduction.slot = buffers_.places.take_gradients(unit);
  if (is_alone_and_fits(reduction)) {
    put_by_caller(reduction);
    return;
  }
  copy_gradients(model_.unit(unit), options, reduction.slot.flats);
  reduction.options.gradients.clear();
  reduction.gathers_before = gathers_begun_;
  reduction.filled = device::Stream::current(buffers_.device).record();
  if (starts_at_once_) {
    put_into_stream(reduction);
  }
  const std::lock_guard lock(mu_);
  if (starts_at_once_) {
    started_.push_back(std::move(reduction));
  } else {
    const bool is_new = open_.emplace(unit, std::move(reduction)).second;
    SHERD_ASSERT(is_new, "a unit is reduced twice before its backward ended");
  }
  under_way_peak_ = std::max(
      under_way_peak_,
      static_cast<std::int64_t>(
          open_.size() + started_.size() + released_.size()));
}

// Where the reduction of these gradients would be a copy of them.
bool StreamReductions::is_alone_and_fits(const Reduction& reduction) const {
  const auto& options = reduction.options;
  if (!model_.replicates() || sums_.ranks() > 1 || sums_.has_hook() ||
      !options.into.empty() ||
      std::ranges::find(options.accumulate, true) != options.accumulate.end()) {
    return false;
  }
  const auto& flats = model_.unit(reduction.unit).flats;
  return std::ranges::all_of(flats, [](const FlatSpec& flat) {
    return flat.slot_dtype() == flat.gradient_dtype();
  });
}

void StreamReductions::put_by_caller(Reduction& reduction) {
  const auto into = destination_of(reduction);
  copy_gradients(
      model_.unit(reduction.unit), reduction.options, into,
      reduction.slot.flats);
  for (const auto& gradient : into) {
    if (gradient.defined() && reduction.options.scale != 1.0) {
      gradient.mul_(reduction.options.scale);
    }
  }
  buffers_.places.release(reduction.slot);
  ended_.push_back(reduction.unit);
}

std::optional<std::uint64_t> StreamReductions::begin_round() {
  const bool due = !starts_at_once_ && gathers_begun_ == gathers_at_last_start_;
  gathers_begun_ += due ? 1 : 0;
  gathers_at_last_start_ = gathers_begun_;
  return due ? std::optional(gathers_begun_) : std::nullopt;
}

std::vector<std::uint8_t> StreamReductions::open_units() const {
  std::vector<std::uint8_t> units(model_.units.size(), 0);
  const std::lock_guard lock(mu_);
  for (const auto& [unit, reduction] : open_) {
    units[static_cast<std::size_t>(unit)] = 1;
  }
  return units;
}

// The last unit first, as backward goes.
void StreamReductions::start_units(const std::vector<std::uint8_t>& units) {
  for (auto u = units.size(); u-- > 0;) {
    if (units[u] == 0) {
      continue;
    }
    std::unique_lock lock(mu_);
    auto node = open_.extract(static_cast<UnitId>(u));
    const bool abandoned = abandoned_;
    lock.unlock();
    if (abandoned) {
      return;  // While ranks agreed.
    }
    SHERD_ASSERT(!node.empty(), "ranks agreed on a reduction not asked for");
    put_into_stream(node.mapped());
    lock.lock();
    started_.push_back(std::move(node.mapped()));
  }
}

void StreamReductions::put_into_stream(Reduction& reduction) {
  const auto& stream = buffers_.reduce_stream;
  const device::CurrentStream on(stream);
  stream.wait(reduction.filled);
  const auto& options = reduction.options;
  const auto into = destination_of(reduction);
  sums_.put(
      model_, reduction.unit, reduction.slot.flats,
      {.scale = options.scale,
       .accumulate = options.accumulate,
       .into = into,
       .backend_may_write =
           options.into.empty() || !buffers_.allocators.reductions});
  buffers_.uses.record(place_of_slot(reduction.slot.flats), stream);
  if (options.across) {
    across_->add(reduction.unit, into, *options.across);
  }
}

std::vector<at::Tensor> StreamReductions::destination_of(
    const Reduction& reduction) {
  if (!reduction.options.into.empty()) {
    return reduction.options.into;
  }
  std::vector<at::Tensor> into;
  for (std::size_t f = 0; f < reduction.slot.flats.size(); ++f) {
    into.push_back(
        buffers_.places.shard(reduction.unit, static_cast<int>(f)).gradient);
  }
  return into;
}

void StreamReductions::start_rest_across() {
  if (across_) {
    across_->start_rest();
  }
}

void StreamReductions::reclaim() {
  release_started([this](const Reduction& reduction) {
    return starts_at_once_ || reduction.gathers_before < gathers_over_;
  });
}

void StreamReductions::release_started(
    const std::function<bool(const Reduction&)>& which) {
  std::vector<Reduction> taken;
  {
    const std::lock_guard lock(mu_);
    const auto rest = std::stable_partition(
        started_.begin(), started_.end(), std::not_fn(which));
    std::move(rest, started_.end(), std::back_inserter(taken));
    started_.erase(rest, started_.end());
  }
  for (auto& reduction : taken) {
    buffers_.places.release(reduction.slot);
    released_.push_back(reduction.unit);
  }
}

void StreamReductions::finish() {
  release_started([](const Reduction&) { return true; });
  const auto compute = device::Stream::current(buffers_.device);
  // The stream of sums across waits for this one anyway.
  if (std::exchange(ends_here_, false) && !released_.empty()) {
    const auto done = buffers_.reduce_stream.record();
    compute.wait(done);
    if (model_.shards_on_host && model_.host_reads_sums) {
      done.synchronize();  // An optimizer on the host reads the sums.
    }
  }
  if (across_ && across_->take_started()) {
    compute.wait(buffers_.across_stream.record());
  }
  ended_.insert(ended_.end(), released_.begin(), released_.end());
  released_.clear();
}

void StreamReductions::abandon() {
  sums_.abort();
  if (across_) {
    across_->abort();
  }
  const std::lock_guard lock(mu_);
  open_.clear();
  abandoned_ = true;
}

bool StreamReductions::under_way() const {
  const std::lock_guard lock(mu_);
  return !open_.empty() || !started_.empty();
}

}  // namespace sherd::exchange
