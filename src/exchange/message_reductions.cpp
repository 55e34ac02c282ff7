// SPDX-License-Identifier: Apache-2.0
#include "exchange/message_reductions.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include "base/check.h"
#include "base/status.h"
#include "plan/arithmetic.h"
#include "world/rank_order_sum.h"

namespace sherd::exchange {
namespace {

constexpr std::int64_t kPieceAlignment = 64;

// Bytes of one staged piece, rounded up so that the next one is aligned.
std::int64_t piece_bytes(
    const FlatSpec& flat, const plan::ElementRange& range) {
  return plan::round_up(
      range.numel() *
          static_cast<std::int64_t>(c10::elementSize(flat.slot_dtype())),
      kPieceAlignment);
}

}  // namespace

int flat_number(const ModelSpec& model, UnitId unit, std::size_t flat) {
  for (UnitId before = 0; before < unit; ++before) {
    flat += model.unit(before).flats.size();
  }
  return static_cast<int>(flat);
}

MessageReductions::MessageReductions(
    const ModelSpec& model,
    world::Transport& via,
    PrivateBuffers& memories,
    std::optional<ReduceHook> hook)
    : model_(model),
      via_(via),
      memories_(memories),
      hook_(std::move(hook)),
      worker_(hook_ ? "sherd-hook" : "sherd-reduce") {
  for (const auto& unit : model.units) {
    chunks_.push_back(chunks_of(unit));
  }
}

std::int64_t MessageReductions::staging_bytes(UnitId unit) const {
  std::int64_t bytes = 0;
  for (std::size_t f = 0; f < model_.unit(unit).flats.size(); ++f) {
    const auto& flat = model_.unit(unit).flats[f];
    const auto own = flat.layout.shard(via_.index());
    for (const auto& chunk : chunks_[static_cast<std::size_t>(unit)][f]) {
      bytes +=
          piece_bytes(flat, intersection(chunk.range, own)) * (via_.size() - 1);
    }
  }
  return bytes;
}

// A late round adds to what the first has left there.
bool MessageReductions::may_reduce_in_place(UnitId unit) const {
  return hook_ && model_.overwrites_gradients && model_.replicates() &&
      !reduced_once_.contains(unit) &&
      std::ranges::all_of(model_.unit(unit).flats, [](const FlatSpec& flat) {
           return !flat.trainable || flat.slot_dtype() == flat.dtype;
         });
}

const std::vector<at::Tensor>& MessageReductions::slot(UnitId unit) {
  return may_reduce_in_place(unit) ? memories_.open_gradients_in_place(unit)
                                   : memories_.open_gradients(unit);
}

// A peer that is behind sends what is waited for in any case. One that does other things first may
// wait for something that this rank does next. Hooks are called in the same order on all ranks, so
// that the oldest reduction always ends, but where units are gathered: there a peer may need this
// rank for a gather before it reduces.
void MessageReductions::wait_for_room(const ReduceOptions& options) {
  const auto most = static_cast<std::uint64_t>(options.under_way_max);
  if (most == 0 || last_job_ < most) {
    return;
  }
  const auto oldest = last_job_ + 1 - most;
  if (hook_ && model_.replicates()) {
    (void)worker_.wait(oldest);
  } else if (!room_wait_timed_out_) {
    room_wait_timed_out_ = !worker_.wait_for(oldest, options.room_wait());
  }
}

void MessageReductions::start(UnitId unit, const ReduceOptions& options) {
  wait_for_room(options);
  reclaim();
  const auto shared = std::make_shared<Reduction>();
  auto& reduction = *shared;
  reduction.unit = unit;
  reduction.options = options;
  reduction.slot = memories_.take_gradients(unit);
  if (hook_) {
    reduced_once_.insert(unit);
  } else {
    reduction.staging = memories_.borrow_staging(staging_bytes(unit));
    post_unit(reduction);
  }
  // Read before the job is posted: one that ends at once was under way, too.
  const auto ended = worker_.ended();
  last_job_ = worker_.post([this, shared] {
    auto status = hook_ ? complete_by_hook(*shared) : complete(*shared);
    shared->summed = status.ok();
    const std::lock_guard lock(mu_);
    summed_.push_back(shared);
    return status;
  });
  under_way_peak_ =
      std::max(under_way_peak_, static_cast<std::int64_t>(last_job_ - ended));
}

void MessageReductions::post_unit(Reduction& reduction) {
  auto* staging = static_cast<char*>(reduction.staging.memory);
  const auto& chunks = chunks_[static_cast<std::size_t>(reduction.unit)];
  for (std::size_t f = 0; f < chunks.size(); ++f) {
    for (const auto& chunk : chunks[f]) {
      const auto given = reduction.options.gradient(chunk.parameter);
      post_segment(
          reduction, f, chunk,
          given.defined() ? given
                          : reduction.slot.flats[f].narrow(
                                0, chunk.range.begin, chunk.range.numel()),
          staging);
    }
  }
}

// `gradient` has the chunk's elements; every rank gets those it owns.
void MessageReductions::post_segment(
    Reduction& reduction,
    std::size_t f,
    const GradientChunk& chunk,
    const at::Tensor& gradient,
    char*& staging) {
  const auto& flat = model_.unit(reduction.unit).flats[f];
  SHERD_ASSERT(gradient.numel() == chunk.range.numel());
  const int tag = flat_number(model_, reduction.unit, f);
  const auto part_of = [&](int rank) {
    const auto part = intersection(chunk.range, flat.layout.shard(rank));
    return gradient.narrow(0, part.begin - chunk.range.begin, part.numel());
  };
  Sum sum;
  sum.flat = f;
  sum.range = intersection(chunk.range, flat.layout.shard(via_.index()));
  for (int peer = 0; peer < via_.size(); ++peer) {
    const auto part = part_of(peer);
    if (peer == via_.index()) {
      sum.pieces.push_back(part);
      continue;
    }
    reduction.transfers.push_back(via_.send(part, peer, tag));
    if (sum.range.empty()) {
      continue;
    }
    sum.pieces.push_back(
        at::from_blob(staging, {sum.range.numel()}, gradient.options()));
    staging += piece_bytes(flat, sum.range);
    reduction.transfers.push_back(via_.receive(sum.pieces.back(), peer, tag));
  }
  if (!sum.range.empty()) {
    reduction.sums.push_back(std::move(sum));
  }
}

Status MessageReductions::progress() {
  reclaim();
  return worker_.failure();
}

void MessageReductions::reclaim() {
  std::vector<std::shared_ptr<Reduction>> summed;
  {
    const std::lock_guard lock(mu_);
    summed.swap(summed_);
  }
  for (const auto& reduction : summed) {
    memories_.release(reduction->slot);
    memories_.release(reduction->staging);
    if (!reduction->summed) {
      continue;
    }
    ended_.push_back(reduction->unit);
    if (model_.replicates() && !hook_) {
      // Gradients that travelled alone are still held here, all of a model's
      // where it is replicated.
      reduction->sums.clear();
      reduction->transfers.clear();
      reduction->options.gradients.clear();
      share(*reduction);
      shared_.push_back(reduction);
    }
  }
}

at::Tensor MessageReductions::sum_of(
    const Reduction& reduction,
    std::size_t f,
    const plan::ElementRange& range) const {
  const auto flat = static_cast<int>(f);
  const auto& into = reduction.options.into;
  const auto& all =
      into.empty() ? memories_.shard(reduction.unit, flat).gradient : into[f];
  return all.narrow(
      0, range.begin - memories_.owned(reduction.unit, flat).begin,
      range.numel());
}

Status MessageReductions::complete(const Reduction& reduction) {
  SHERD_RETURN_IF_FAILED(world::wait_all(
      reduction.transfers,
      "gradients of unit " + model_.unit(reduction.unit).name));
  for (const auto& sum : reduction.sums) {
    world::sum_in_rank_order(
        sum.pieces, reduction.options.scale,
        reduction.options.accumulate.at(sum.flat),
        sum_of(reduction, sum.flat, sum.range));
  }
  return {};
}

// Gradients that travelled alone are freed as soon as they are reduced.
Status MessageReductions::complete_by_hook(Reduction& reduction) {
  const at::NoGradGuard no_grad;
  const auto& unit = model_.unit(reduction.unit);
  const auto& flats = reduction.slot.flats;
  copy_gradients(unit, reduction.options, flats);
  reduction.options.gradients.clear();
  SHERD_RETURN_IF_FAILED(status_of(
      [&] { hook_->reduce(reduction.unit, flats, {.messages = via_}); },
      ErrorCode::kFailedPrecondition,
      str("[exchange] the hook that reduces ", unit.name, " failed: ")));
  for (std::size_t f = 0; f < flats.size(); ++f) {
    if (flats[f].defined()) {
      take_result(reduction, f);
    }
  }
  return {};
}

void MessageReductions::take_result(const Reduction& reduction, std::size_t f) {
  const auto kept = memories_.owned(reduction.unit, static_cast<int>(f));
  const auto& flat = reduction.slot.flats[f];
  const auto result = flat.narrow(0, kept.begin, kept.numel());
  if (const auto scale = scale_of_mean(reduction.options.scale, via_.size());
      scale != 1.0) {
    result.mul_(scale);
  }
  const auto out = sum_of(reduction, f, kept);
  if (out.is_alias_of(flat)) {
    return;
  }
  reduction.options.accumulate.at(f) ? out.add_(result) : out.copy_(result);
}

Status MessageReductions::finish() {
  const auto status = worker_.wait(last_job_);
  room_wait_timed_out_ = false;
  reclaim();
  SHERD_RETURN_IF_FAILED(status);
  SHERD_RETURN_IF_FAILED(
      world::wait_all(sharing_, "gradients that every rank keeps"));
  sharing_.clear();
  shared_.clear();
  return {};
}

// Gradients of this unit have been sent and received under the same tag before,
// on both sides. Where the sum goes to where they lay, they are sent by now.
void MessageReductions::share(const Reduction& reduction) {
  const auto& flats = model_.unit(reduction.unit).flats;
  for (std::size_t f = 0; f < flats.size(); ++f) {
    if (!flats[f].trainable) {
      continue;
    }
    const int tag = flat_number(model_, reduction.unit, f);
    const auto part_of = [&](int rank) {
      return sum_of(reduction, f, flats[f].layout.shard(rank));
    };
    for (int peer = 0; peer < via_.size(); ++peer) {
      if (peer != via_.index()) {
        sharing_.push_back(via_.send(part_of(via_.index()), peer, tag));
        sharing_.push_back(via_.receive(part_of(peer), peer, tag));
      }
    }
  }
}

}  // namespace sherd::exchange
