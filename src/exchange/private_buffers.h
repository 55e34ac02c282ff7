// SPDX-License-Identifier: Apache-2.0
//
// The three memories of an exchange that keeps them private to its process: shards, unsharded units
// and gradient slots, on the CPU or on another device. It knows only addresses and sizes, and moves
// nothing. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>
#include "device/memory.h"
#include "exchange/buffer_pool.h"
#include "exchange/exchange.h"

namespace sherd::exchange {

// Where the memories lie, and what allocates slots, shards and sharded gradients.
struct BufferPlace {
  c10::Device device = c10::kCPU;
  BufferSource units = BufferSource::of_system();
  BufferSource gradients = BufferSource::of_system();
  // Not for those on the host of a device.
  device::AllocateTensor make_shard = {};
  device::AllocateTensor make_gradient = {};
};

// The flats of a unit in memory that begins here, as flat_offsets() says. With `only_trainable` the
// others are undefined. On the CPU they keep the `owner` of the memory, if there is one.
std::vector<at::Tensor> flats_at(
    void* memory,
    const UnitSpec& unit,
    FlatDtype dtype,
    c10::Device device = c10::kCPU,
    bool only_trainable = false,
    const std::shared_ptr<void>& owner = nullptr);

// 1-D zeros in host memory whose pages are allocated only when they are written, for gradients that
// may never come: those that go to an optimizer's sinks, and those of parameters that start frozen.
// Throws Error if there is no memory.
at::Tensor untouched_zeros(
    std::int64_t numel, const at::TensorOptions& options);

// Gives zeros to a gradient that has no memory yet, as that of a parameter that starts frozen, and to
// all that share its storage. Does nothing for others.
void give_memory(const at::Tensor& gradient, bool pinned);

class PrivateBuffers {
 public:
  PrivateBuffers(const ModelSpec& model, int rank, BufferPlace place = {});

  ShardMemory shard(UnitId unit, int flat) const;
  // This rank's elements of the flat; all of them if it is replicated.
  plan::ElementRange owned(UnitId unit, int flat) const;

  // The limit for slots of units; 0: no limit.
  void set_unsharded_bytes_max(std::int64_t bytes) {
    unit_pool_.set_bytes_max(bytes);
    if (bytes > 0) {  // Frees what was kept under a larger limit.
      unit_pool_.trim(bytes);
    }
  }
  // What others receive of this rank's shard: the shard itself, or its elements in the dtype of
  // whole units, cast once per `generation` and kept, except for shards on the host of a device.
  // Called by the thread that gathers.
  at::Tensor published_shard(
      UnitId unit, int flat, Precision precision, std::uint64_t generation);
  // A slot for the whole unit, as one 1-D tensor per flat. For a replicated unit it is its
  // (published) shard.
  const std::vector<at::Tensor>& open_unit(
      UnitId unit, Precision precision = Precision::kParameter);
  // A replicated unit is the cast of its shards: brings it up to date.
  void refresh(UnitId unit, std::uint64_t generation);
  // All replicated units that are open.
  void refresh_open_units(std::uint64_t generation);
  void drop_unit(UnitId unit);

  // A gradient slot (undefined tensors for frozen flats), or the one that is already open.
  const std::vector<at::Tensor>& open_gradients(UnitId unit);
  // The same, but a new slot is the sharded gradients themselves. REQUIRES: the unit is replicated
  // and its slots have the dtype of its gradients.
  const std::vector<at::Tensor>& open_gradients_in_place(UnitId unit);
  bool gradients_are_open(UnitId unit) const {
    return gradients_.contains(unit);
  }
  // Separates the slot from the unit, so that the unit may open another one; the memory stays until
  // release().
  struct Slot {
    void* memory = nullptr;
    std::vector<at::Tensor> flats;
  };
  Slot take_gradients(UnitId unit);
  // Memory for what peers send for one reduction; returned by release().
  Slot borrow_staging(std::int64_t bytes);
  void release(Slot& slot);

  void add_to(ExchangeCounters& counters) const;

 private:
  Slot unit_slot(UnitId unit, Precision precision);
  Slot gradient_slot(UnitId unit);
  void give_memory_to_gradients(UnitId unit);

  const ModelSpec& model_;
  const int rank_;
  const c10::Device device_;
  std::vector<std::vector<ShardMemory>> shards_;
  // Used if whole units have another dtype than shards.
  struct CastShard {
    at::Tensor values;  // Undefined: not cast.
    std::optional<std::uint64_t> generation;
  };
  std::vector<std::vector<CastShard>> cast_shards_;
  BufferPool unit_pool_;
  // Shared with the slots: a hook may keep its bucket.
  const std::shared_ptr<BufferPool> gradient_pool_;
  std::map<UnitId, Slot> units_;
  std::map<UnitId, Slot> gradients_;
};

}  // namespace sherd::exchange
