// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_memory_reductions.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "base/copy_bytes.h"

namespace sherd::exchange {
namespace {

// How long the thread sleeps before it looks whether it shall stop.
constexpr std::chrono::milliseconds kThreadDoze{2};

}  // namespace

SharedMemoryReductions::SharedMemoryReductions(
    SharedGradientSlots::Mapping mapping, const SharedUnits& units, bool thread)
    : model_(*mapping.model),
      rank_(mapping.rank),
      units_(units),
      slots_(std::move(mapping)) {
  if (thread) {
    worker_.emplace("sherd-sums");
  }
}

void SharedMemoryReductions::post(UnitId unit, const ReduceOptions& options) {
  // What others take lies where they see it: in the gradient, or beside it.
  SHERD_ASSERT(
      !model_.replicates() || options.into.empty() == model_.own_gradients);
  const auto number =
      slots_.post(unit, options, [&](int owner) { return owner == rank_; });
  pending_.push_back({unit, number, options});
  if (worker_) {
    {
      const std::scoped_lock lock(mu_);
      for_thread_.push_back(pending_.back());
    }
    worker_->post([this] { return sum_next(); });
  }
  under_way_peak_ = std::max(under_way_peak_, under_way());
}

std::optional<SharedGradientSlots::Missing> SharedMemoryReductions::missing()
    const {
  if (!pending_.empty()) {
    const auto& first = pending_.front();
    return slots_.missing(first.unit, first.number, &SharedSlotState::posted);
  }
  if (!summed_.empty()) {
    const auto& first = summed_.front();
    return slots_.missing(first.unit, first.number, &SharedSlotState::summed);
  }
  return std::nullopt;
}

void SharedMemoryReductions::progress() {
  std::erase_if(pending_, [&](const Pending& pending) {
    const bool done = try_sum(pending);
    if (done) {
      if (model_.replicates()) {
        summed_.push_back({pending.unit, pending.number, pending.options.into});
      } else {
        ended_.push_back(pending.unit);
      }
    }
    return done;
  });
  std::erase_if(summed_, [&](const Summed& summed) {
    const bool by_all =
        !slots_.missing(summed.unit, summed.number, &SharedSlotState::summed);
    if (by_all) {
      take(summed);
      ended_.push_back(summed.unit);
    }
    return by_all;
  });
  slots_.reclaim();
}

bool SharedMemoryReductions::try_sum(const Pending& pending) {
  if (worker_) {
    return worker_->failure().ok() &&
        slots_.own_summed(pending.unit).reached(pending.number);
  }
  if (slots_.missing(pending.unit, pending.number, &SharedSlotState::posted)) {
    return false;
  }
  sum(pending);
  slots_.post_summed(pending.unit, pending.number);
  return true;
}

// The thread's job, one for each post. Ranks may reduce in different orders, and one that waits for
// room may need a later sum of this rank before it posts for the oldest one. So a job makes
// whichever sum it can.
Status SharedMemoryReductions::sum_next() {
  const at::NoGradGuard no_grad;
  for (;;) {
    // Relaxed: who sets it waits for this job to end.
    if (stopping_.load(std::memory_order_relaxed)) {
      return {ErrorCode::kFailedPrecondition, "[exchange] it was closed"};
    }
    std::optional<SharedGradientSlots::Missing> missing;
    if (const auto next = take_posted(missing); !next.empty()) {
      sum(next.front());
      slots_.post_summed(next.front().unit, next.front().number);
      return {};
    }
    missing->counter.sleep_below(missing->number, kThreadDoze);
  }
}

// Takes the oldest one that all ranks have posted. If there is none, returns nothing and sets what
// the oldest one of all waits for.
std::list<SharedMemoryReductions::Pending> SharedMemoryReductions::take_posted(
    std::optional<SharedGradientSlots::Missing>& missing) {
  const std::scoped_lock lock(mu_);
  for (auto one = for_thread_.begin(); one != for_thread_.end(); ++one) {
    const auto lacks =
        slots_.missing(one->unit, one->number, &SharedSlotState::posted);
    if (!lacks) {
      std::list<Pending> taken;
      taken.splice(taken.begin(), for_thread_, one);
      return taken;
    }
    if (!missing) {
      missing = lacks;
    }
  }
  return {};
}

void SharedMemoryReductions::stop() {
  slots_.close();
  stopping_.store(true, std::memory_order_relaxed);
  if (worker_) {
    worker_->settle();
  }
}

void SharedMemoryReductions::wait_for_thread(
    std::chrono::milliseconds time) const {
  if (worker_ && !pending_.empty()) {
    const auto& oldest = pending_.front();
    slots_.own_summed(oldest.unit).sleep_below(oldest.number, time);
  }
}

void SharedMemoryReductions::sum(const Pending& pending) const {
  const auto& options = pending.options;
  for (std::size_t f = 0; f < model_.unit(pending.unit).flats.size(); ++f) {
    const auto& flat = model_.unit(pending.unit).flats[f];
    if (!flat.trainable) {
      continue;
    }
    const auto number = static_cast<int>(f);
    const auto own = flat.layout.shard(rank_);
    const auto out = options.into.empty()
        ? units_.shard(pending.unit, number).gradient
        : options.into[f];
    const auto out_begin = owned(model_, pending.unit, number, rank_).begin;
    const auto part = out.narrow(0, own.begin - out_begin, own.numel());
    slots_.sum(
        {.unit = pending.unit,
         .flat = f,
         .owner = rank_,
         .scale = options.scale,
         .accumulate = options.accumulate.at(f)},
        options, part);
    if (model_.replicates() && !options.into.empty()) {
      const auto shown = units_.gradient_of(rank_, pending.unit, number)
                             .narrow(0, own.begin, own.numel());
      copy_bytes(
          shown.mutable_data_ptr(), part.const_data_ptr(), part.nbytes());
    }
  }
}

// Each owner shows its slice of the sum.
void SharedMemoryReductions::take(const Summed& summed) const {
  for (std::size_t f = 0; f < model_.unit(summed.unit).flats.size(); ++f) {
    const auto& flat = model_.unit(summed.unit).flats[f];
    const auto gradient_of = [&](int of) {
      return units_.gradient_of(of, summed.unit, static_cast<int>(f));
    };
    for (int rank = 0; flat.trainable && rank < slots_.ranks(); ++rank) {
      const auto range = flat.layout.shard(rank);
      if (rank == rank_ || range.empty()) {
        continue;
      }
      const auto to = summed.into.empty() ? gradient_of(rank_) : summed.into[f];
      const auto theirs =
          gradient_of(rank).narrow(0, range.begin, range.numel());
      copy_bytes(
          to.narrow(0, range.begin, range.numel()).mutable_data_ptr(),
          theirs.const_data_ptr(), theirs.nbytes());
    }
  }
}

}  // namespace sherd::exchange
