// SPDX-License-Identifier: Apache-2.0
//
// StreamReductions reduces gradients of a device by collectives in a stream of its own, while
// backward continues; a rank alone may copy them in the caller's stream instead. Collectives must
// start in one order on all ranks, which may be ready in different orders. So a requested reduction
// stays open until all ranks know that all of them have requested it. Without whole units, ranks
// have nothing that they would do in different orders, and a single rank has no peers: then a
// reduction starts at once. REQUIRES in these cases: one order on all ranks. A communication hook
// can replace the sum; the thread that starts a reduction calls it. Sums of a replica go on across
// replicas from here (replica_sums.h). Thread rule: open_units() and start_units() are called by the
// thread that gathers or, while that one has nothing to do, by the caller's, the rest by the latter.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
#include "exchange/device_buffers.h"
#include "exchange/replica_sums.h"
#include "exchange/stream_unit_transport.h"

namespace sherd::exchange {

class StreamReductions {
 public:
  // The model and the buffers must outlive it.
  StreamReductions(
      const ModelSpec& model,
      const DeviceBackends& backends,
      DeviceBuffers& buffers);

  // Takes the unit's gradient slot, whose values come from the current stream. Never waits.
  void start(UnitId unit, const ReduceOptions& options);

  // Called when the caller starts another gather, whose number it returns, and when the caller
  // continues after the gather with a number. After waiting for a gather, the caller knows that
  // everything requested before it has started, on all ranks.
  std::uint64_t gather_begins() { return ++gathers_begun_; }
  void gather_is_over(std::uint64_t number) {
    gathers_over_ = std::max(gathers_over_, number);
  }

  // As in UnitTransport. Rounds have numbers like gathers.
  std::optional<std::uint64_t> begin_round();

  // One byte per unit: whether its reduction was requested here and is still open.
  std::vector<std::uint8_t> open_units() const;
  // Queues those units' reductions on the stream. The same on all ranks; all of them have these
  // units open.
  void start_units(const std::vector<std::uint8_t>& units);
  // At the end, when all have started: starts the sums across replicas that waited for others.
  void start_rest_across();

  // Takes back the memory of all reductions that were started, and makes the current stream wait
  // for them.
  void finish();
  // Takes back the memory of reductions that have certainly started, because the number of slots in
  // a backward must not depend on when the thread that gathers starts reductions.
  void reclaim();

  // Ends collectives that wait for peers, and drops reductions that were not started.
  void abandon();

  // The units, since the last call, whose sums come before the work that the current stream was
  // given since finish().
  std::vector<UnitId> take_ended() { return std::exchange(ended_, {}); }
  bool under_way() const;
  std::int64_t under_way_peak() const { return under_way_peak_; }

 private:
  struct Reduction {
    UnitId unit = 0;
    ReduceOptions options;
    PrivateBuffers::Slot slot;
    device::Event filled;
    std::uint64_t gathers_before = 0;  // Started before it was requested.
  };

  bool is_alone_and_fits(const Reduction& reduction) const;
  // In the current stream.
  void put_by_caller(Reduction& reduction);
  void put_into_stream(Reduction& reduction);
  // By flat, where the sum of this rank's replica goes.
  std::vector<at::Tensor> destination_of(const Reduction& reduction);
  void release_started(const std::function<bool(const Reduction&)>& which);

  const ModelSpec& model_;
  DeviceBuffers& buffers_;
  StreamSums sums_;
  std::optional<ReplicaSums> across_;
  const bool starts_at_once_;
  std::vector<UnitId> released_;  // Their memory was returned.
  std::vector<UnitId> ended_;     // For take_ended().
  bool ends_here_ = false;        // Some do not go on across replicas.
  std::int64_t under_way_peak_ = 0;
  std::uint64_t gathers_begun_ = 0;  // And rounds.
  std::uint64_t gathers_at_last_start_ = 0;
  std::uint64_t gathers_over_ = 0;
  mutable std::mutex mu_;
  // Guarded by mu_:
  std::map<UnitId, Reduction> open_;
  std::vector<Reduction> started_;
  bool abandoned_ = false;
};

}  // namespace sherd::exchange
