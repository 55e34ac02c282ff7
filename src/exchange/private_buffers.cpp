// SPDX-License-Identifier: Apache-2.0
#include "exchange/private_buffers.h"

#include <sys/mman.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "base/check.h"
#include "device/memory.h"

namespace sherd::exchange {
namespace {

// The gradient of a parameter that starts frozen takes memory only once it is written. The kernel
// sees to that for pageable memory; elsewhere the gradient has none until give_memory().
at::Tensor gradient_zeros(
    const device::AllocateTensor& by,
    const FlatSpec& flat,
    std::int64_t numel,
    const at::TensorOptions& where) {
  const auto options = where.dtype(flat.gradient_dtype());
  if (!flat.starts_frozen || numel == 0) {
    return device::allocate(by, numel, options).zero_();
  }
  const bool pageable = options.device().is_cpu() && !options.pinned_memory();
  return pageable ? untouched_zeros(numel, options)
                  : device::tensor_at(nullptr, numel, options);
}

// LibTorch uses helper threads from 32,768 elements on, and the thread that
// gathers would get a set of its own, beside those that compute.
constexpr std::int64_t kCastBlock = 32'704;

void cast_in_blocks(const at::Tensor& from, const at::Tensor& to) {
  if (!from.is_cpu()) {
    to.copy_(from);
    return;
  }
  for (std::int64_t at = 0; at < from.numel(); at += kCastBlock) {
    const auto count = std::min(kCastBlock, from.numel() - at);
    to.narrow(0, at, count).copy_(from.narrow(0, at, count));
  }
}

}  // namespace

void give_memory(const at::Tensor& gradient, bool pinned) {
  if (!gradient.defined() || gradient.numel() == 0 ||
      gradient.storage().data() != nullptr) {
    return;
  }
  const auto zeros =
      at::zeros_like(gradient, gradient.options().pinned_memory(pinned));
  auto memory =
      zeros.storage().set_data_ptr(at::DataPtr(nullptr, gradient.device()));
  gradient.storage().set_data_ptr(std::move(memory));
}

at::Tensor untouched_zeros(
    std::int64_t numel, const at::TensorOptions& options) {
  const auto bytes =
      static_cast<std::size_t>(numel) * options.dtype().itemsize();
  if (bytes == 0) {
    return at::zeros({0}, options);
  }
  void* memory = ::mmap(
      nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
      0);
  SHERD_CHECK_AS(
      kUnavailable, memory != MAP_FAILED, "[exchange] no memory for ", bytes,
      " bytes of gradients: ", std::strerror(errno));
  return at::from_blob(
      memory, {numel}, [bytes](void* at) { (void)::munmap(at, bytes); },
      options);
}

std::vector<at::Tensor> flats_at(
    void* memory,
    const UnitSpec& unit,
    FlatDtype dtype,
    c10::Device device,
    bool only_trainable,
    const std::shared_ptr<void>& owner) {
  const auto offsets = flat_offsets(unit, dtype);
  std::vector<at::Tensor> flats(unit.flats.size());
  for (std::size_t f = 0; f < flats.size(); ++f) {
    const auto& flat = unit.flats[f];
    if (flat.trainable || !only_trainable) {
      auto* at = static_cast<char*>(memory) + offsets[f];
      const auto options = at::device(device).dtype((flat.*dtype)());
      flats[f] = owner && device.is_cpu()
          ? at::from_blob(
                at, {flat.layout.numel}, [owner](void*) {}, options)
          : device::tensor_at(at, flat.layout.numel, options);
    }
  }
  return flats;
}

PrivateBuffers::PrivateBuffers(
    const ModelSpec& model, int rank, BufferPlace place)
    : model_(model),
      rank_(rank),
      device_(place.device),
      unit_pool_(model.unsharded_bytes_max, std::move(place.units)),
      gradient_pool_(
          std::make_shared<BufferPool>(0, std::move(place.gradients))) {
  const bool on_host = model.shards_on_host;
  const auto by = on_host ? device::AllocateTensor() : place.make_shard;
  const auto gradients_by =
      on_host ? device::AllocateTensor() : place.make_gradient;
  shards_.resize(model.units.size());
  cast_shards_.resize(model.units.size());
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const auto unit = static_cast<UnitId>(u);
    for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
      const auto& flat = model.units[u].flats[f];
      const auto numel = owned(unit, static_cast<int>(f)).numel();
      const auto options = (on_host ? at::TensorOptions().pinned_memory(true)
                                    : at::device(device_))
                               .dtype(flat.dtype);
      shards_[u].push_back(
          {model.own_shards ? device::allocate(by, numel, options).zero_()
                            : at::Tensor(),
           model.own_gradients && flat.trainable
               ? gradient_zeros(gradients_by, flat, numel, options)
               : at::Tensor()});
      auto& cast = cast_shards_[u].emplace_back();
      if (model.own_shards && flat.is_cast() && !on_host) {
        cast.values =
            device::allocate(by, numel, options.dtype(flat.unsharded_dtype()));
      }
    }
  }
}

plan::ElementRange PrivateBuffers::owned(UnitId unit, int flat) const {
  return exchange::owned(model_, unit, flat, rank_);
}

ShardMemory PrivateBuffers::shard(UnitId unit, int flat) const {
  return shards_.at(static_cast<std::size_t>(unit))
      .at(static_cast<std::size_t>(flat));
}

at::Tensor PrivateBuffers::published_shard(
    UnitId unit, int flat, Precision precision, std::uint64_t generation) {
  const auto& shard = shards_.at(static_cast<std::size_t>(unit))
                          .at(static_cast<std::size_t>(flat))
                          .shard;
  auto& cast = cast_shards_.at(static_cast<std::size_t>(unit))
                   .at(static_cast<std::size_t>(flat));
  if (precision == Precision::kFull || !cast.values.defined()) {
    return shard;
  }
  if (cast.generation != generation) {
    cast_in_blocks(shard, cast.values);
    cast.generation = generation;
  }
  return cast.values;
}

PrivateBuffers::Slot PrivateBuffers::unit_slot(
    UnitId unit, Precision precision) {
  const auto& spec = model_.unit(unit);
  Slot slot;
  if (precision == Precision::kFull && is_cast(spec)) {
    for (const auto& flat : spec.flats) {
      slot.flats.push_back(at::empty(
          {flat.layout.numel}, at::device(device_).dtype(flat.dtype)));
    }
    return slot;
  }
  slot.memory = unit_pool_.borrow(unit_bytes(spec));
  slot.flats = flats_at(slot.memory, spec, &FlatSpec::unsharded_dtype, device_);
  return slot;
}

PrivateBuffers::Slot PrivateBuffers::gradient_slot(UnitId unit) {
  const auto& spec = model_.unit(unit);
  Slot slot;
  slot.memory =
      gradient_pool_->borrow(flat_offsets(spec, &FlatSpec::slot_dtype).back());
  slot.flats = flats_at(
      slot.memory, spec, &FlatSpec::slot_dtype, device_,
      /*only_trainable=*/true, gradient_pool_);
  return slot;
}

const std::vector<at::Tensor>& PrivateBuffers::open_unit(
    UnitId unit, Precision precision) {
  SHERD_ASSERT(!units_.contains(unit));
  if (model_.replicates()) {
    const auto u = static_cast<std::size_t>(unit);
    Slot slot;
    for (std::size_t f = 0; f < shards_[u].size(); ++f) {
      const auto& cast = cast_shards_[u][f].values;
      slot.flats.push_back(
          precision == Precision::kParameter && cast.defined()
              ? cast
              : shards_[u][f].shard);
    }
    return units_.emplace(unit, std::move(slot)).first->second.flats;
  }
  return units_.emplace(unit, unit_slot(unit, precision)).first->second.flats;
}

void PrivateBuffers::refresh(UnitId unit, std::uint64_t generation) {
  for (std::size_t f = 0; f < model_.unit(unit).flats.size(); ++f) {
    (void)published_shard(
        unit, static_cast<int>(f), Precision::kParameter, generation);
  }
}

void PrivateBuffers::refresh_open_units(std::uint64_t generation) {
  for (const auto& [unit, slot] : units_) {
    if (model_.replicates()) {
      refresh(unit, generation);
    }
  }
}

void PrivateBuffers::drop_unit(UnitId unit) {
  const auto found = units_.find(unit);
  SHERD_ASSERT(found != units_.end());
  if (found->second.memory != nullptr) {
    unit_pool_.give_back(found->second.memory);
  }
  units_.erase(found);
}

void PrivateBuffers::give_memory_to_gradients(UnitId unit) {
  for (const auto& memory : shards_.at(static_cast<std::size_t>(unit))) {
    give_memory(memory.gradient, model_.shards_on_host);
  }
}

const std::vector<at::Tensor>& PrivateBuffers::open_gradients(UnitId unit) {
  auto found = gradients_.find(unit);
  if (found == gradients_.end()) {
    give_memory_to_gradients(unit);
    found = gradients_.emplace(unit, gradient_slot(unit)).first;
  }
  return found->second.flats;
}

const std::vector<at::Tensor>& PrivateBuffers::open_gradients_in_place(
    UnitId unit) {
  const auto [found, is_new] = gradients_.try_emplace(unit);
  if (is_new) {
    give_memory_to_gradients(unit);
    for (const auto& memory : shards_[static_cast<std::size_t>(unit)]) {
      found->second.flats.push_back(memory.gradient);
    }
  }
  return found->second.flats;
}

PrivateBuffers::Slot PrivateBuffers::take_gradients(UnitId unit) {
  auto node = gradients_.extract(unit);
  SHERD_ASSERT(!node.empty(), "a unit is reduced without a gradient slot");
  return std::move(node.mapped());
}

PrivateBuffers::Slot PrivateBuffers::borrow_staging(std::int64_t bytes) {
  Slot slot;
  slot.memory = bytes > 0 ? gradient_pool_->borrow(bytes) : nullptr;
  return slot;
}

void PrivateBuffers::release(Slot& slot) {
  slot.flats.clear();
  if (slot.memory != nullptr) {
    gradient_pool_->give_back(std::exchange(slot.memory, nullptr));
  }
}

void PrivateBuffers::add_to(ExchangeCounters& counters) const {
  counters.slot_bytes = unit_pool_.allocated_bytes();
  counters.slot_bytes_peak = unit_pool_.allocated_bytes_peak();
  counters.gradient_bytes = gradient_pool_->allocated_bytes();
  counters.gradient_bytes_peak = gradient_pool_->allocated_bytes_peak();
}

}  // namespace sherd::exchange
