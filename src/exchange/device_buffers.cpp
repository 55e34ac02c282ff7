// SPDX-License-Identifier: Apache-2.0
#include "exchange/device_buffers.h"

#include <utility>

namespace sherd::exchange {
namespace {

BufferSource source_of(device::StreamMemory& memory) {
  return {
      .take = [&memory](std::int64_t bytes) { return memory.take(bytes); },
      .give_back = [&memory](
                       void* address,
                       std::int64_t /*bytes*/) { memory.give_back(address); }};
}

device::AllocateTensor under_lock(device::AllocateTensor by, std::mutex& mu) {
  if (!by) {
    return by;
  }
  return [by = std::move(by), &mu](
             std::int64_t numel, const at::TensorOptions& options) {
    const std::lock_guard lock(mu);
    return by(numel, options);
  };
}

}  // namespace

device::Place place_of_slot(const std::vector<at::Tensor>& flats) {
  device::Place place;
  for (const auto& flat : flats) {
    if (flat.defined() && flat.numel() > 0) {
      const auto part = device::Place::of(flat);
      place.begin = place.end == 0 ? part.begin : place.begin;
      place.end = part.end;
    }
  }
  return place;
}

DeviceBuffers::DeviceBuffers(
    const ModelSpec& model,
    int rank,
    c10::Device where,
    const device::Stream& reductions,
    const device::Stream& across,
    DeviceAllocators make)
    : device(where),
      allocators{
          .gathers = under_lock(std::move(make.gathers), backend_mu),
          .reductions = under_lock(std::move(make.reductions), backend_mu),
          .across = under_lock(std::move(make.across), backend_mu)},
      gather_stream(device::Stream::with_high_priority(where)),
      reduce_stream(
          reductions.is_null() ? device::Stream::with_high_priority(where)
                               : reductions),
      across_stream(across),
      unit_memory(where, gather_stream, uses, allocators.gathers),
      gradient_memory(where, reduce_stream, uses, allocators.reductions),
      places(
          model,
          rank,
          {.device = where,
           .units = source_of(unit_memory),
           .gradients = source_of(gradient_memory),
           .make_shard = allocators.gathers,
           .make_gradient = allocators.reductions}) {}

void DeviceBuffers::synchronize() {
  for (const auto& stream :
       {device::Stream::current(device), gather_stream, reduce_stream,
        across_stream}) {
    stream.record().synchronize();
  }
  uses.clear();
}

}  // namespace sherd::exchange
