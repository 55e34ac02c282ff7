// SPDX-License-Identifier: Apache-2.0
//
// Gradient slots in memory that ranks share. Each rank fills a slot of its own and posts it, and
// the others read it there; it is free again when all have summed what they need of it. Ranks are
// numbered among those that share the memory. Thread rule: one thread; sum() and missing() may run
// on any thread after the post.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>
#include "exchange/gradient_chunks.h"
#include "exchange/gradient_heap.h"
#include "exchange/shared_layout.h"
#include "shm/counter.h"

namespace sherd::exchange {

// The state of one rank's slot of one unit, in shared memory.
struct SharedSlotState {
  // The number of reductions that this rank has posted. Pairs: `begin` and the slot's bytes are
  // written before, and read by others after they have seen it.
  shm::CounterCell posted;
  // The number of reductions of which this rank has summed its part. Pairs: afterwards it reads no
  // slot of that reduction; posters write there again once they have seen it. Replicated: the
  // owner's part of its gradient is written before, and read by the others after.
  shm::CounterCell summed;
  // Where the last posted slot begins in the rank's region. Not written again before all have
  // summed, because that ends the backward.
  std::int64_t begin;
};

class SharedGradientSlots {
 public:
  struct Mapping {
    const ModelSpec* model;
    int rank;
    std::vector<std::byte*> regions;  // Of gradient slots, by rank.
    std::int64_t region_bytes;
    SharedSlotState* slots;  // By rank, by unit.
    // The size of the heap that follows each rank's slots, and what keeps it mapped.
    std::int64_t heap_bytes;
    std::shared_ptr<const void> segment;
  };
  explicit SharedGradientSlots(Mapping mapping);

  int ranks() const { return static_cast<int>(mapping_.regions.size()); }

  // From now on until GradientHeap::leave() large gradients of this thread may lie in the heap.
  void begin_backward();
  // From now on none does.
  void close();

  // This rank's slot; undefined for frozen flats. The same until post().
  std::vector<at::Tensor> slot(UnitId unit);
  // Shows the slot to the others, together with the gradients that `options` has elsewhere, except
  // for the slices of those owners for which this rank makes the sum. Gradients in the heap stay
  // there, others are copied into the slot. Returns its number.
  std::uint64_t post(
      UnitId unit,
      const ReduceOptions& options,
      const std::function<bool(int owner)>& sums_itself);

  // The first rank whose counter is below `number`.
  struct Missing {
    UnitId unit;
    int rank;
    shm::Counter counter;
    std::uint64_t number;
  };
  using CounterOf = shm::CounterCell SharedSlotState::*;
  std::optional<Missing> missing(
      UnitId unit, std::uint64_t number, CounterOf counter) const;

  // By trainable parameter: whether some rank had a gradient. REQUIRES: all have posted.
  std::vector<bool> used(UnitId unit) const;

  // Sums the owner's slice of what all ranks posted, in rank order, into `out` or into the sinks of
  // `options`; this rank's part comes from where `options` has it. REQUIRES: all have posted.
  struct OwnedSlice {
    UnitId unit = 0;
    std::size_t flat = 0;
    int owner = 0;
    double scale = 1.0;
    bool accumulate = false;
  };
  void sum(
      const OwnedSlice& slice,
      const ReduceOptions& options,
      const at::Tensor& out) const;
  void post_summed(UnitId unit, std::uint64_t number) const;
  // The number that was last passed to post_summed() for this unit.
  shm::Counter own_summed(UnitId unit) const {
    return shm::Counter(shared(mapping_.rank, unit).summed);
  }

  // Takes back slots that nobody reads any more.
  void reclaim();
  // What slots have, except the room of large gradients that lie elsewhere, and blocks of the heap.
  std::int64_t bytes() const;
  std::int64_t bytes_peak() const;

 private:
  struct Open {
    std::int64_t begin = 0;
    std::int64_t bytes = 0;  // As far as they are written.
    std::vector<at::Tensor> flats;
  };
  // A slot that others may still read.
  struct Lent {
    UnitId unit = 0;
    std::uint64_t number = 0;
    std::int64_t begin = 0;
    std::int64_t bytes = 0;           // As in Open.
    std::vector<at::Tensor> in_heap;  // The gradients that lie there.
  };

  SharedSlotState& shared(int rank, UnitId unit) const {
    return mapping_.slots
        [static_cast<std::size_t>(rank) * mapping_.model->units.size() +
         static_cast<std::size_t>(unit)];
  }
  // What follows the slot that the rank has posted last.
  std::uint8_t* marks(int rank, UnitId unit) const;
  std::int64_t* places(int rank, UnitId unit) const;
  void count(Open& open, std::int64_t bytes);
  // Where the gradient begins in this rank's region, if it lies in the heap.
  std::optional<std::int64_t> place(const at::Tensor& gradient) const;
  at::Tensor piece(
      UnitId unit,
      int rank,
      std::size_t flat,
      const GradientChunk& chunk,
      const plan::ElementRange& range) const;

  const Mapping mapping_;
  std::vector<std::vector<std::int64_t>> offsets_;  // slot_offsets().
  // By unit: what a slot has besides the room of large gradients.
  std::vector<std::int64_t> small_bytes_;
  // By unit, flat.
  std::vector<std::vector<std::vector<GradientChunk>>> chunks_;
  RegionAllocator region_;
  std::int64_t bytes_ = 0;  // Of slots, as in Open.
  std::int64_t bytes_peak_ = 0;
  std::shared_ptr<GradientHeap> heap_;     // Null if no gradient is large.
  std::vector<std::optional<Open>> open_;  // By unit.
  std::vector<std::uint64_t> posted_;      // By unit.
  std::deque<Lent> lent_;
};

}  // namespace sherd::exchange
