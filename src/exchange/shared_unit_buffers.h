// SPDX-License-Identifier: Apache-2.0
//
// SharedUnitBuffers allocates buffers for whole units in memory that the ranks of a host share. The
// host's first rank allocates for all of them, so one rank decides where a unit is gathered. A
// buffer is free again when every rank that got the unit has dropped it, as counters in that memory
// say. Nothing is waited for: if ranks do the same, a gather is agreed on only when each has room
// for it; if they do not, buffers in use exceed the limit by the units that only some of the ranks
// hold. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>
#include "exchange/buffer_pool.h"
#include "exchange/exchange.h"
#include "exchange/shared_layout.h"

namespace sherd::exchange {

class SharedUnitBuffers {
 public:
  // `dropped` is by local rank, by unit: how often that rank has dropped that unit. Pairs: the rank
  // does not read the buffer after its post; here the buffer is reused once the number was seen.
  // Both outlive this.
  SharedUnitBuffers(
      std::span<std::byte> region, std::span<std::uint64_t> dropped, int units);
  // Leaves the memory as it is, because others may still read it.
  ~SharedUnitBuffers() { ending_ = true; }
  SharedUnitBuffers(const SharedUnitBuffers&) = delete;
  SharedUnitBuffers& operator=(const SharedUnitBuffers&) = delete;

  struct Request {
    UnitId unit = 0;
    std::int64_t bytes = 0;
    std::vector<bool> wanted;  // By local rank.
    // The limit of the buffers in use or kept; 0: no limit.
    std::int64_t bytes_max = 0;
    // The buffer does not count for that limit, and is not kept.
    bool passing = false;
  };
  // Returns where the buffer begins in the region. Throws Error if there is no room.
  std::int64_t allocate(const Request& request);

  // The bytes of the buffers that are in use or kept.
  std::int64_t allocated_bytes() const { return pool_.allocated_bytes(); }
  // The same without buffers that only other ranks read; within the limit.
  std::int64_t allocated_bytes_of(int local) const;

 private:
  struct Lent {
    void* memory = nullptr;
    bool passing = false;
    std::int64_t bytes = 0;
    UnitId unit = 0;
    // By local rank: the buffer is dropped when the rank has dropped the unit this often. 0: the
    // rank does not have it.
    std::vector<std::uint64_t> until;
  };
  BufferSource source();
  bool is_read_by(const Lent& lent, std::size_t local) const;
  void reclaim();

  const std::span<std::byte> region_;
  const std::span<std::uint64_t> dropped_;
  const std::size_t units_;
  std::vector<std::uint64_t> lendings_;  // Indexed like dropped_.
  std::vector<Lent> lent_;
  bool ending_ = false;
  RegionAllocator allocator_;
  BufferPool pool_;
  BufferPool passing_;
};

}  // namespace sherd::exchange
