// SPDX-License-Identifier: Apache-2.0
//
// SharedSums reduces gradients that lie in shared memory: a rank posts its slot,
// and the owner of a slice sums it over the slots of all ranks, in rank order,
// once all have posted. A slot is free again when every owner has summed. Where
// gradients are replicated, every rank then takes the slices of the others.
// Thread rule: one thread. Ordering: docs/design/shared_memory.md.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>
#include "comm/shm/counter.h"
#include "exchange/segments.h"
#include "exchange/shared_layout.h"
#include "exchange/shared_units.h"

namespace sherd::exchange {

// Of one rank and unit, in shared memory.
struct SharedSlot {
  // Reductions this rank has posted. Pairs: `begin` and the slot's bytes are
  // written before, and read by owners after they have seen it.
  comm::shm::CounterCell posted;
  // Reductions this rank, as an owner, has summed its slice of. Pairs: it reads
  // no slot of that reduction after; posters write there again once they have
  // seen it. Replicated: the owner's part of its gradient is written before, and
  // read by the others after.
  comm::shm::CounterCell summed;
  // Where the slot posted last begins in the rank's region. Not written again
  // before all owners have summed, since that ends the backward.
  std::int64_t begin;
};

class SharedSums {
 public:
  struct Place {
    const ModelSpec* model;
    int rank;
    int ranks;
    std::vector<std::byte*> regions;  // Of gradient slots, by rank.
    std::int64_t region_bytes;
    SharedSlot* slots;  // By rank, by unit.
    const SharedUnits* units;
  };
  explicit SharedSums(Place place);

  // Of this rank; undefined where frozen. The same until post().
  std::vector<at::Tensor> slot(UnitId unit);
  void post(UnitId unit, const ReduceOptions& options);

  // Sums what all ranks have posted, takes what all have summed. Never waits.
  void progress();
  // The units summed since it was last asked, in that order.
  std::vector<UnitId> take_ended() { return std::exchange(ended_, {}); }
  // Of the oldest sum under way, the first rank that it waits for; nothing when
  // there is none, or progress() could do it.
  struct Missing {
    UnitId unit;
    int rank;
    comm::shm::Counter counter;
    std::uint64_t number;
  };
  std::optional<Missing> missing() const;

  // Posted here and not summed, or taken, here.
  std::int64_t under_way() const {
    return static_cast<std::int64_t>(pending_.size() + summed_.size());
  }
  std::int64_t under_way_peak() const { return under_way_peak_; }
  std::int64_t slot_bytes() const { return region_.taken_bytes(); }
  std::int64_t slot_bytes_peak() const { return region_.taken_bytes_peak(); }

 private:
  struct Open {
    std::int64_t begin = 0;
    std::vector<at::Tensor> flats;
  };
  struct Pending {
    UnitId unit = 0;
    std::uint64_t number = 0;
    ReduceOptions options;
    std::int64_t begin = 0;
  };
  // A slot that owners may still read.
  struct Lent {
    UnitId unit = 0;
    std::uint64_t number = 0;
    std::int64_t begin = 0;
  };
  // Replicated: summed here, not taken yet.
  struct Summed {
    UnitId unit = 0;
    std::uint64_t number = 0;
  };

  const UnitSpec& spec(UnitId unit) const {
    return place_.model->units[static_cast<std::size_t>(unit)];
  }
  SharedSlot& shared(int rank, UnitId unit) const {
    return place_.slots
        [static_cast<std::size_t>(rank) * place_.model->units.size() +
         static_cast<std::size_t>(unit)];
  }
  using CounterOf = comm::shm::CounterCell SharedSlot::*;
  std::optional<Missing> missing(
      UnitId unit, std::uint64_t number, CounterOf counter) const;
  void reclaim();
  void copy_given(const Pending& pending, const Open& open) const;
  void sum(const Pending& pending) const;
  void take(UnitId unit) const;
  at::Tensor piece(
      const Pending& pending,
      int rank,
      std::size_t flat,
      const plan::ElementRange& range) const;

  const Place place_;
  std::vector<std::vector<std::int64_t>> offsets_;           // slot_offsets().
  std::vector<std::vector<std::vector<Segment>>> segments_;  // By unit, flat.
  RegionAllocator region_;
  std::vector<std::optional<Open>> open_;  // By unit.
  std::vector<std::uint64_t> posted_;      // By unit.
  std::deque<Pending> pending_;            // Not summed here yet.
  std::deque<Summed> summed_;
  std::deque<Lent> lent_;
  std::vector<UnitId> ended_;
  std::int64_t under_way_peak_ = 0;
};

}  // namespace sherd::exchange
