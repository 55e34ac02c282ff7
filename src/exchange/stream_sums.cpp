// SPDX-License-Identifier: Apache-2.0
#include "exchange/stream_sums.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/status.h"

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

StreamSums::StreamSums(
    ReduceBackend backend,
    bool in_rank_order,
    device::AllocateTensor allocate,
    DeviceBuffers& buffers)
    : backend_(std::move(backend.backend)),
      hook_(std::move(backend.hook)),
      messages_(std::move(backend.messages)),
      in_rank_order_(in_rank_order && backend_->getSize() > 1),
      allocate_(std::move(allocate)),
      buffers_(buffers) {
  if (hook_) {
    collectives_.emplace(buffers.device, backend_, std::move(backend.connect));
  }
}

int StreamSums::ranks() const { return backend_->getSize(); }

void StreamSums::put(
    const ModelSpec& model,
    UnitId unit,
    const std::vector<at::Tensor>& flats,
    const SumDestination& to) {
  if (hook_) {
    call_hook(model, unit, flats);
  }
  const double scale = hook_ ? scale_of_mean(to.scale, ranks()) : to.scale;
  for (std::size_t f = 0; f < flats.size(); ++f) {
    const auto& slot = flats[f];
    if (!slot.defined()) {
      continue;
    }
    const auto& into = to.into[f];
    const bool on_host = into.is_cpu() && !slot.is_cpu();
    const bool accumulate = to.accumulate.at(f);
    const bool fits = !on_host && !accumulate && to.backend_may_write &&
        into.scalar_type() == slot.scalar_type();
    const auto sum = result_of(
        model, unit, static_cast<int>(f), slot, fits ? into : at::Tensor());
    // Rounded once.
    const bool is_wider = sum.element_size() > into.element_size();
    if (is_wider && scale != 1.0) {
      sum.mul_(scale);
    }
    const auto put = on_host ? put_sum_on_host : put_sum;
    put(sum, is_wider ? 1.0 : scale, accumulate, into);
  }
}

void StreamSums::call_hook(
    const ModelSpec& model, UnitId unit, const std::vector<at::Tensor>& flats) {
  status_of(
      [&] {
        const at::NoGradGuard no_grad;
        const std::lock_guard lock(buffers_.backend_mu);
        hook_->reduce(
            unit, flats,
            {.messages = *messages_, .collectives = &*collectives_});
      },
      ErrorCode::kFailedPrecondition,
      "[exchange] the hook that reduces " + model.unit(unit).name + " failed: ")
      .throw_if_failed();
}

at::Tensor StreamSums::result_of(
    const ModelSpec& model,
    UnitId unit,
    int flat,
    const at::Tensor& slot,
    const at::Tensor& into) {
  if (hook_) {
    const auto kept = owned(model, unit, flat, backend_->getRank());
    return slot.narrow(0, kept.begin, kept.numel());
  }
  const auto& layout =
      model.unit(unit).flats[static_cast<std::size_t>(flat)].layout;
  const auto to = into.defined() || in_rank_order_ || model.replicates()
      ? into
      : memory_for_sum(model, layout, slot);
  const std::lock_guard lock(buffers_.backend_mu);
  if (in_rank_order_) {
    return model.replicates()
        ? sum_for_all_in_rank_order(backend_, layout, slot)
        : sum_for_owner_in_rank_order(backend_, layout, slot);
  }
  if (!model.replicates()) {
    return sum_for_owner(backend_, layout, slot, to);
  }
  sum_for_all(backend_, slot);
  return slot;
}

// All sums of an axis follow one another in one stream, so they can share this memory.
at::Tensor StreamSums::memory_for_sum(
    const ModelSpec& model,
    const plan::FlatLayout& layout,
    const at::Tensor& slot) {
  if (!allocate_) {
    return {};  // Of LibTorch's allocator, which keeps it anyway.
  }
  const int rank = backend_->getRank();
  if (!sum_memory_.defined()) {
    std::int64_t bytes = 0;
    for (const auto& unit : model.units) {
      for (const auto& flat : unit.flats) {
        bytes = std::max(
            bytes,
            flat.layout.shard(rank).numel() *
                static_cast<std::int64_t>(c10::elementSize(flat.slot_dtype())));
      }
    }
    sum_memory_ = allocate_(bytes, slot.options().dtype(at::kByte));
  }
  return device::tensor_at(
      sum_memory_.mutable_data_ptr(), layout.shard(rank).numel(),
      slot.options());
}

void StreamSums::abort() {
  if (collectives_) {
    collectives_->abort();
  } else {
    backend_->abort();
  }
}

}  // namespace sherd::exchange
