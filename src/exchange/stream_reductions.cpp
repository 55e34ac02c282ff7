// SPDX-License-Identifier: Apache-2.0
#include "exchange/stream_reductions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/check.h"
#include "base/status_from_exception.h"
#include "exchange/gradient_chunks.h"

namespace sherd::exchange {
namespace {

// What is added to a gradient, or replaces it.
void put_sum(
    const at::Tensor& sum,
    double scale,
    bool accumulate,
    const at::Tensor& gradient) {
  if (accumulate) {
    gradient.add_(sum, scale);
    return;
  }
  if (!sum.is_same(gradient)) {
    gradient.copy_(sum);
  }
  if (scale != 1.0) {
    gradient.mul_(scale);
  }
}

// The same into memory of the host, by copies that it does not wait for. `sum` may be overwritten.
void put_sum_on_host(
    const at::Tensor& sum,
    double scale,
    bool accumulate,
    const at::Tensor& gradient) {
  const auto dtype = gradient.scalar_type();
  at::Tensor value;
  if (accumulate) {
    // In the wider dtype, and rounded once.
    value = gradient.to(sum.device(), dtype, /*non_blocking=*/true)
                .add(sum, scale)
                .to(dtype);
  } else {
    value = sum.to(dtype);
    if (scale != 1.0) {
      value.mul_(scale);
    }
  }
  gradient.copy_(value, /*non_blocking=*/true);
}

}  // namespace

StreamReductions::StreamReductions(
    const ModelSpec& model,
    const DeviceBackends& backends,
    std::shared_ptr<world::Transport> messages,
    DeviceBuffers& buffers)
    : model_(model),
      backend_(backends.reduce),
      buffers_(buffers),
      hook_(backends.hook),
      messages_(std::move(messages)),
      starts_at_once_(!model.own_shards || backend_->getSize() == 1),
      sums_in_rank_order_(
          backends.sums_in_rank_order && backend_->getSize() > 1) {
  if (hook_) {
    collectives_.emplace(backends.device, backend_, backends.connect);
  }
}

void StreamReductions::start(UnitId unit, const ReduceOptions& options) {
  reclaim();
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
  if (!model_.replicates() || backend_->getSize() > 1 || hook_ ||
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
  std::vector<at::Tensor> into;
  for (std::size_t f = 0; f < reduction.slot.flats.size(); ++f) {
    into.push_back(
        buffers_.places.shard(reduction.unit, static_cast<int>(f)).gradient);
  }
  copy_gradients(
      model_.unit(reduction.unit), reduction.options, into,
      reduction.slot.flats);
  for (const auto& gradient : into) {
    if (gradient.defined()) {
      put_sum(gradient, reduction.options.scale, false, gradient);
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
  if (hook_) {
    call_hook(reduction);
  }
  const double scale =
      hook_ ? scale_of_mean(options, backend_->getSize()) : options.scale;
  for (std::size_t f = 0; f < reduction.slot.flats.size(); ++f) {
    const auto& slot = reduction.slot.flats[f];
    if (!slot.defined()) {
      continue;
    }
    const auto flat = static_cast<int>(f);
    const auto into = options.into.empty()
        ? buffers_.places.shard(reduction.unit, flat).gradient
        : options.into[f];
    const bool accumulate = options.accumulate.at(f);
    const bool is_ours = options.into.empty() || !buffers_.allocators.reductions;
    const bool fits = !model_.shards_on_host && !accumulate && is_ours &&
        into.scalar_type() == slot.scalar_type();
    const auto sum =
        result_of(reduction.unit, flat, slot, fits ? into : at::Tensor());
    // Rounded once.
    const bool is_wider = sum.element_size() > into.element_size();
    if (is_wider && scale != 1.0) {
      sum.mul_(scale);
    }
    const auto put = model_.shards_on_host ? put_sum_on_host : put_sum;
    put(sum, is_wider ? 1.0 : scale, accumulate, into);
  }
  buffers_.uses.record(place_of_slot(reduction.slot.flats), stream);
}

void StreamReductions::call_hook(const Reduction& reduction) {
  status_of(
      [&] {
        const at::NoGradGuard no_grad;
        const std::lock_guard lock(buffers_.backend_mu);
        hook_->reduce(
            reduction.unit, reduction.slot.flats,
            {.messages = *messages_, .collectives = &*collectives_});
      },
      ErrorCode::kFailedPrecondition,
      "[exchange] the hook that reduces " + model_.unit(reduction.unit).name +
          " failed: ")
      .throw_if_failed();
}

at::Tensor StreamReductions::result_of(
    UnitId unit, int flat, const at::Tensor& slot, const at::Tensor& into) {
  if (hook_) {
    const auto kept = owned(model_, unit, flat, backend_->getRank());
    return slot.narrow(0, kept.begin, kept.numel());
  }
  const auto& layout =
      model_.unit(unit).flats[static_cast<std::size_t>(flat)].layout;
  const auto to = into.defined() || sums_in_rank_order_ || model_.replicates()
      ? into
      : memory_for_sum(layout, slot);
  const std::lock_guard lock(buffers_.backend_mu);
  if (sums_in_rank_order_) {
    return model_.replicates()
        ? sum_for_all_in_rank_order(backend_, layout, slot)
        : sum_for_owner_in_rank_order(backend_, layout, slot);
  }
  if (!model_.replicates()) {
    return sum_for_owner(backend_, layout, slot, to);
  }
  sum_for_all(backend_, slot);
  return slot;
}

// All sums follow one another in the stream of reductions, so they can share this memory.
at::Tensor StreamReductions::memory_for_sum(
    const plan::FlatLayout& layout, const at::Tensor& slot) {
  const auto& allocate = buffers_.allocators.reductions;
  if (!allocate) {
    return {};  // Of LibTorch's allocator, which keeps it anyway.
  }
  if (!sum_memory_.defined()) {
    std::int64_t bytes = 0;
    for (const auto& unit : model_.units) {
      for (const auto& flat : unit.flats) {
        bytes = std::max(
            bytes,
            flat.layout.shard(backend_->getRank()).numel() *
                static_cast<std::int64_t>(c10::elementSize(flat.slot_dtype())));
      }
    }
    sum_memory_ = allocate(bytes, slot.options().dtype(at::kByte));
  }
  return device::tensor_at(
      sum_memory_.mutable_data_ptr(), layout.shard(backend_->getRank()).numel(),
      slot.options());
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
  if (!released_.empty()) {
    const auto done = buffers_.reduce_stream.record();
    device::Stream::current(buffers_.device).wait(done);
    if (model_.shards_on_host && model_.host_reads_sums) {
      done.synchronize();  // An optimizer on the host reads the sums.
    }
  }
  ended_.insert(ended_.end(), released_.begin(), released_.end());
  released_.clear();
}

void StreamReductions::abandon() {
  if (collectives_) {
    collectives_->abort();
  } else {
    backend_->abort();
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
