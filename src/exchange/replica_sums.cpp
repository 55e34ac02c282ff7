// SPDX-License-Identifier: Apache-2.0
#include "exchange/replica_sums.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include "base/check.h"
#include "exchange/private_buffers.h"

namespace sherd::exchange {

std::vector<UnitId> ReplicaOrder::add(UnitId unit) {
  waiting_.push_back(unit);
  std::vector<UnitId> ready;
  while (next_ < expected_.size() &&
         std::erase(waiting_, expected_[next_]) > 0) {
    ready.push_back(expected_[next_]);
    ++next_;
  }
  started_.insert(started_.end(), ready.begin(), ready.end());
  return ready;
}

// Those that were expected come first: other replicas have started them by now, or will do so in
// this order.
std::vector<UnitId> ReplicaOrder::take_rest() {
  std::vector<UnitId> rest;
  for (; next_ < expected_.size(); ++next_) {
    if (std::erase(waiting_, expected_[next_]) > 0) {
      rest.push_back(expected_[next_]);
    }
  }
  std::ranges::sort(waiting_, std::greater<>());
  std::ranges::move(std::exchange(waiting_, {}), std::back_inserter(rest));
  started_.insert(started_.end(), rest.begin(), rest.end());
  return rest;
}

void ReplicaOrder::backward_ended() {
  next_ = 0;
  if (started_.empty()) {
    return;  // Nothing went across, as in all but the last of accumulated backwards.
  }
  std::ranges::sort(started_, std::greater<>());
  const auto again = std::ranges::unique(started_);
  started_.erase(again.begin(), again.end());
  expected_ = std::exchange(started_, {});
}

ReplicaSums::ReplicaSums(
    ReduceBackend backend, bool in_rank_order, DeviceBuffers& buffers)
    : buffers_(buffers),
      sums_(
          std::move(backend),
          in_rank_order,
          buffers.allocators.across,
          buffers) {}

void ReplicaSums::add(
    UnitId unit, const std::vector<at::Tensor>& sums, const SumAcross& across) {
  if (std::exchange(backward_, across.backward) != across.backward &&
      !sums_.has_hook()) {
    order_.backward_ended();
  }
  const auto made = device::Stream::current(buffers_.device).record();
  const bool is_new =
      waiting_.emplace(unit, Waiting{sums, across, made}).second;
  SHERD_ASSERT(is_new, "a unit goes across replicas twice at once");
  start(order_.add(unit));
}

void ReplicaSums::start_rest() { start(order_.take_rest()); }

void ReplicaSums::start(const std::vector<UnitId>& units) {
  const auto& stream = buffers_.across_stream;
  const device::CurrentStream on(stream);
  for (const auto unit : units) {
    started_ = true;
    const auto waiting = std::move(waiting_.extract(unit).mapped());
    stream.wait(waiting.made);
    const auto& across = waiting.across;
    sums_.put(
        *across.model, unit, to_send(unit, waiting),
        {.scale = across.scale,
         .accumulate = across.accumulate,
         .into = across.into,
         // Without replicated shards it has allocated the destination.
         .backend_may_write =
             !buffers_.allocators.across || !across.model->replicates()});
  }
}

std::vector<at::Tensor> ReplicaSums::to_send(
    UnitId unit, const Waiting& waiting) {
  const auto& model = *waiting.across.model;
  const auto& spec = model.unit(unit);
  std::vector<at::Tensor> flats(spec.flats.size());
  if (buffers_.allocators.across) {
    if (!memory_.defined()) {
      std::int64_t bytes = 0;
      for (const auto& each : model.units) {
        bytes =
            std::max(bytes, flat_offsets(each, &FlatSpec::slot_dtype).back());
      }
      memory_ = buffers_.allocators.across(
          bytes, at::device(buffers_.device).dtype(at::kByte));
    }
    flats = flats_at(
        memory_.mutable_data_ptr(), spec, &FlatSpec::slot_dtype,
        buffers_.device, /*only_trainable=*/true);
  }
  for (std::size_t f = 0; f < flats.size(); ++f) {
    const auto& flat = spec.flats[f];
    if (!flat.trainable) {
      continue;
    }
    const auto sum = sent_as(waiting.sums[f], flat);
    if (flats[f].defined()) {
      flats[f].copy_(sum);
    } else {
      flats[f] = sum;
    }
  }
  return flats;
}

at::Tensor ReplicaSums::sent_as(
    const at::Tensor& sum, const FlatSpec& flat) const {
  // A copy that casts as well would be made by the host, which would wait.
  return sum.to(buffers_.device, sum.scalar_type(), /*non_blocking=*/true)
      .to(flat.slot_dtype());
}

}  // namespace sherd::exchange
