// SPDX-License-Identifier: Apache-2.0
//
// ReplicaSums sums gradients across replicas that shard, on devices, in a stream beside that of the
// sums within a replica, while backward continues. Collectives must start in one order on all ranks
// of both axes. Ranks of a replica agree when sums within it start, and add() a unit right after
// its sum; all replicas then take the units in one order that does not depend on what happens in
// any of them. docs/design/gpu.md. Thread rule: one thread at a time; abort() any thread.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>
#include "device/stream.h"
#include "exchange/device_buffers.h"
#include "exchange/stream_sums.h"

namespace sherd::exchange {

// The order of units: the last one first, as backward goes. A unit that is not reduced would hold
// up the others until the end, so those of the last backward are expected again; the first one
// expects none. Only numbers; the same on all ranks if they reduce the same units in each round of
// a backward, and call backward_ended() at the same moments.
class ReplicaOrder {
 public:
  // Returns what may start now that this unit could.
  std::vector<UnitId> add(UnitId unit);
  // The same at the end: everything that could start and has not.
  std::vector<UnitId> take_rest();
  void backward_ended();

 private:
  std::vector<UnitId> expected_;
  std::size_t next_ = 0;         // Of expected_.
  std::vector<UnitId> waiting_;  // Could start.
  std::vector<UnitId> started_;  // In this backward.
};

class ReplicaSums {
 public:
  // Memory that collectives write comes from DeviceBuffers' allocator of this axis. The buffers have
  // its stream.
  ReplicaSums(
      ReduceBackend backend, bool in_rank_order, DeviceBuffers& buffers);

  // The current stream has made the unit's `sums` of this replica, by flat, undefined if frozen.
  // They may be overwritten. A hook may make the host wait for other replicas, so all of them are
  // called by start_rest(), when ranks have nothing left to agree on.
  void add(
      UnitId unit,
      const std::vector<at::Tensor>& sums,
      const SumAcross& across);
  // At the end of a backward, and of each late round: starts all others.
  void start_rest();
  // Whether the stream was given sums since the last call.
  bool take_started() { return std::exchange(started_, false); }

  void abort() { sums_.abort(); }

 private:
  struct Waiting {
    std::vector<at::Tensor> sums;
    SumAcross across;
    device::Event made;
  };

  void start(const std::vector<UnitId>& units);
  std::vector<at::Tensor> to_send(UnitId unit, const Waiting& waiting);
  // On the device, in the dtype of what is sent.
  at::Tensor sent_as(const at::Tensor& sum, const FlatSpec& flat) const;

  DeviceBuffers& buffers_;
  StreamSums sums_;
  ReplicaOrder order_;
  std::map<UnitId, Waiting> waiting_;
  at::Tensor memory_;  // Of the allocator, for the unit that is sent.
  std::uint64_t backward_ = 0;
  bool started_ = false;
};

}  // namespace sherd::exchange
