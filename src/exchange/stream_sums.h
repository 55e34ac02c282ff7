// SPDX-License-Identifier: Apache-2.0
//
// Sums of gradients over the ranks of one axis, by collectives in the current stream, or what a
// communication hook makes instead. StreamReductions and ReplicaSums decide when. Thread rule: one thread at a
// time; abort() any thread.
#pragma once

#include <memory>
#include <optional>
#include <vector>
#include "exchange/device_buffers.h"
#include "exchange/flat_collectives.h"
#include "exchange/reduce_hook.h"

namespace sherd::exchange {

// Connects the ranks of an axis for their gradients. Nothing else may use the backend meanwhile.
struct ReduceBackend {
  BackendPtr backend;
  // Reduces gradients over this backend, or over those that `connect` makes if it reduces only
  // among some ranks.
  std::optional<ReduceHook> hook = std::nullopt;
  DeviceCollectives::Connect connect = {};
  // By which a hook sends tensors on the CPU.
  std::shared_ptr<world::Transport> messages = nullptr;
};

// Where the sums of a unit go; the vectors are by flat.
struct SumDestination {
  double scale = 1.0;
  std::vector<bool> accumulate;  // Adds to what is there.
  std::vector<at::Tensor>
      into;  // On the device, or in pinned memory of the host.
  bool backend_may_write = true;  // The backend may make a sum there.
};

class StreamSums {
 public:
  // Sums have the bits of those on the CPU if they are made `in_rank_order`. `allocate` makes the
  // memory that collectives write; empty: LibTorch's allocator.
  StreamSums(
      ReduceBackend backend,
      bool in_rank_order,
      device::AllocateTensor allocate,
      DeviceBuffers& buffers);

  int ranks() const;
  bool has_hook() const { return hook_.has_value(); }

  // Sums the gradients of all ranks, `flats` of a unit of the model, and puts this rank's part
  // where it goes. `flats` may be overwritten; those of frozen parameters are undefined.
  void put(
      const ModelSpec& model,
      UnitId unit,
      const std::vector<at::Tensor>& flats,
      const SumDestination& to);

  // Ends collectives that wait for peers.
  void abort();

 private:
  // Leaves this rank's part of the mean in `flats`.
  void call_hook(
      const ModelSpec& model,
      UnitId unit,
      const std::vector<at::Tensor>& flats);
  // What this rank keeps of the sum over ranks or, with a hook, of their mean. It is `into` if that
  // is defined and the sum could be made there.
  at::Tensor result_of(
      const ModelSpec& model,
      UnitId unit,
      int flat,
      const at::Tensor& slot,
      const at::Tensor& into);
  // Where the backend sums what this rank owns, until the next sum; undefined: anywhere.
  at::Tensor memory_for_sum(
      const ModelSpec& model,
      const plan::FlatLayout& layout,
      const at::Tensor& slot);

  const BackendPtr backend_;
  const std::optional<ReduceHook> hook_;
  const std::shared_ptr<world::Transport> messages_;
  const bool in_rank_order_;
  const device::AllocateTensor allocate_;
  DeviceBuffers& buffers_;
  std::optional<DeviceCollectives> collectives_;  // The hook's.
  at::Tensor sum_memory_;                         // Of memory_for_sum().
};

}  // namespace sherd::exchange
