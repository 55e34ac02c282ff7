// SPDX-License-Identifier: Apache-2.0
#include "exchange/hierarchical_reductions.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "exchange/message_reductions.h"
#include "plan/arithmetic.h"
#include "world/rank_order_sum.h"

namespace sherd::exchange {
namespace {

constexpr std::int64_t kSumAlignment = 64;

// The dtype of a host's sum: what sum_in_rank_order() accumulates in.
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

HierarchicalReductions::HierarchicalReductions(
    const ModelSpec& model,
    const HostTopology& map,
    PrivateBuffers& memories,
    world::Transport& via,
    const shm::Waiter& waiter,
    SharedGradientSlots::Mapping mapping)
    : model_(model),
      map_(map),
      memories_(memories),
      via_(via),
      waiter_(waiter),
      slots_(std::move(mapping)) {}

// A peer that is behind sends what is waited for in any case. One that does
// other things first may wait for something that this rank does next.
void HierarchicalReductions::wait_for_room(const ReduceOptions& options) {
  const auto most = static_cast<std::uint64_t>(options.under_way_max);
  if (most == 0 || started_ < most || room_wait_timed_out_) {
    return;
  }
  constexpr std::chrono::milliseconds kSlice(50);
  const SteadyClock clock;
  const Instant end = clock.now() + options.room_wait();
  // After a failed sum nothing reaches the other thread any more.
  while (!completer_.wait_for(started_ + 1 - most, kSlice) &&
         !room_wait_timed_out_) {
    room_wait_timed_out_ = clock.now() >= end || !summer_.failure().ok();
  }
}

void HierarchicalReductions::start(UnitId unit, const ReduceOptions& options) {
  wait_for_room(options);
  const auto reduction = std::make_shared<Reduction>();
  reduction->unit = unit;
  reduction->number = slots_.post(unit, options, [&](int owner) {
    return map_.proxy_of(owner, map_.host()) == map_.rank();
  });
  reduction->options = options;
  stage(*reduction);
  receive(*reduction);
  ++started_;
  summer_.post([this, reduction] { return sum_here(reduction); });
  under_way_peak_ = std::max(
      under_way_peak_, static_cast<std::int64_t>(started_ - completed()));
}

// Room for the sums this rank makes, and for those that it receives.
void HierarchicalReductions::stage(Reduction& reduction) {
  std::int64_t bytes = 0;
  const auto each = [&](const auto& visit) {
    const auto& flats = model_.unit(reduction.unit).flats;
    for (std::size_t f = 0; f < flats.size(); ++f) {
      for (const int owner : map_.proxied_ranks()) {
        if (flats[f].trainable) {
          visit(f, flats[f], owner, map_.host());
        }
      }
      for (int host = 0; host < map_.hosts(); ++host) {
        if (flats[f].trainable && host != map_.host()) {
          visit(f, flats[f], map_.rank(), host);
        }
      }
    }
  };
  each([&](std::size_t, const FlatSpec& flat, int owner, int) {
    bytes += sum_bytes(flat, owner);
  });
  reduction.staging = memories_.borrow_staging(bytes);
  reduction.own.resize(model_.unit(reduction.unit).flats.size());
  for (auto& by_host : reduction.own) {
    by_host.resize(static_cast<std::size_t>(map_.hosts()));
  }
  auto* at = static_cast<char*>(reduction.staging.memory);
  each([&](std::size_t f, const FlatSpec& flat, int owner, int host) {
    const auto sum =
        at::from_blob(at, {flat.layout.shard(owner).numel()}, sum_dtype(flat));
    at += sum_bytes(flat, owner);
    if (host == map_.host()) {
      reduction.sums.push_back({f, owner, sum});
    }
    if (owner == map_.rank()) {
      reduction.own[f][static_cast<std::size_t>(host)] = sum;
    }
  });
}

void HierarchicalReductions::receive(Reduction& reduction) {
  const std::lock_guard lock(transport_mu_);
  for (std::size_t f = 0; f < reduction.own.size(); ++f) {
    for (int host = 0; host < map_.hosts(); ++host) {
      const auto& sum = reduction.own[f][static_cast<std::size_t>(host)];
      if (host != map_.host() && sum.defined()) {
        reduction.transfers.push_back(via_.receive(
            sum, map_.proxy_of(map_.rank(), host),
            flat_number(model_, reduction.unit, f)));
      }
    }
  }
}

Status HierarchicalReductions::sum_here(
    const std::shared_ptr<Reduction>& reduction) {
  const auto unit = reduction->unit;
  const std::string what =
      str("the gradients of unit ", model_.unit(unit).name);
  while (const auto missing = slots_.missing(
             unit, reduction->number, &SharedSlotState::posted)) {
    SHERD_RETURN_IF_FAILED(waiter_.wait(
        missing->counter, missing->number,
        {.rank = missing->rank, .what = what}));
  }
  for (const auto& into : reduction->sums) {
    slots_.sum(
        {.unit = unit, .flat = into.flat, .owner = into.owner},
        reduction->options, into.sum);
    if (into.owner != map_.rank()) {
      const std::lock_guard lock(transport_mu_);
      reduction->transfers.push_back(via_.send(
          into.sum, into.owner, flat_number(model_, unit, into.flat)));
    }
  }
  slots_.post_summed(unit, reduction->number);
  completer_.post([this, reduction] {
    auto status = complete(*reduction);
    reduction->summed = status.ok();
    const std::lock_guard lock(mu_);
    completed_.push_back(reduction);
    return status;
  });
  return {};
}

Status HierarchicalReductions::complete(const Reduction& reduction) {
  auto status = world::wait_all(
      reduction.transfers,
      "gradients of unit " + model_.unit(reduction.unit).name);
  for (std::size_t f = 0; status.ok() && f < reduction.own.size(); ++f) {
    if (reduction.own[f].front().defined()) {
      const auto& into = reduction.options.into;
      world::sum_in_rank_order(
          reduction.own[f], reduction.options.scale,
          reduction.options.accumulate.at(f),
          into.empty()
              ? memories_.shard(reduction.unit, static_cast<int>(f)).gradient
              : into[f]);
    }
  }
  return status;
}

Status HierarchicalReductions::progress() {
  reclaim();
  auto status = summer_.failure();
  return status.ok() ? completer_.failure() : status;
}

void HierarchicalReductions::reclaim() {
  std::vector<std::shared_ptr<Reduction>> completed;
  {
    const std::lock_guard lock(mu_);
    completed.swap(completed_);
  }
  for (const auto& reduction : completed) {
    memories_.release(reduction->staging);
    if (reduction->summed) {
      ended_.push_back(reduction->unit);
    }
  }
  slots_.reclaim();
}

Status HierarchicalReductions::finish() {
  auto status = summer_.wait(started_);
  if (status.ok()) {
    status = completer_.wait(started_);
  }
  room_wait_timed_out_ = false;
  reclaim();
  return status;
}

// The one that sums posts to the other.
void HierarchicalReductions::settle() {
  slots_.close();
  summer_.settle();
  completer_.settle();
}

void HierarchicalReductions::add_to(ExchangeCounters& counters) const {
  counters.gradient_bytes += slots_.bytes();
  counters.gradient_bytes_peak += slots_.bytes_peak();
  counters.reduces_under_way_peak = under_way_peak_;
}

}  // namespace sherd::exchange
