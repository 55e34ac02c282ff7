// SPDX-License-Identifier: Apache-2.0
//
// SharedFloats is memory of floats that other processes of this host may read in place; PeerFloats
// is a reader's view of it. A lease is the period in which shared data do not change: a reader
// checks it after reading, and discards what it has read when the lease is over
// (docs/design/ring_reduce.md has the proof). The kernel frees segments with the last process that
// maps them. Thread rule: leases from one thread at a time, everything else from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>
#include "base/status.h"
#include "shm/segment.h"

namespace sherd::ft::ring {

// How another process of this host finds the memory.
struct IpcHandle {
  std::uint32_t process = 0;
  std::uint32_t descriptor = 0;
  std::uint64_t bytes = 0;  // 0 if there is no memory.
  bool operator==(const IpcHandle&) const = default;
};

class SharedFloats {
 public:
  // Makes `count` zeros. Without a segment they are private: no other process can read them, but
  // everything else works the same.
  explicit SharedFloats(std::size_t count);
  SharedFloats(const SharedFloats&) = delete;
  SharedFloats& operator=(const SharedFloats&) = delete;

  float* data() { return floats_; }
  std::size_t size() const { return count_; }

  IpcHandle name() const;
  // A random number in the segment: a process that knows it has opened the segment. Never 0; nobody
  // can know it for private floats.
  std::uint64_t key() const { return key_; }
  // The place of the first of `count` floats; nullopt if they lie elsewhere.
  std::optional<std::uint64_t> place_of(
      const float* floats, std::size_t count) const;

  // Begins a new lease, which ends the previous one. Must be called before the first write to
  // shared data.
  void begin_lease();
  void end_lease();
  std::uint64_t lease() const { return lease_; }  // 0 if there is none.

 private:
  void publish(std::uint64_t lease);

  const std::size_t count_;
  std::uint64_t key_ = 0;
  shm::Segment segment_;
  std::vector<float> private_;
  float* floats_ = nullptr;
  std::uint64_t leases_ = 0;
  std::uint64_t lease_ = 0;
};

class PeerFloats {
 public:
  // Maps the memory read-only. The status says why it cannot: another host or network namespace, no
  // permission, or something else under that name.
  static Result<PeerFloats> open(const IpcHandle& name);

  std::uint64_t key() const;
  // Null if they lie outside.
  const float* at(std::uint64_t place, std::size_t count) const;
  // Whether everything that was read before this call is what its owner shared under this lease.
  bool holds(std::uint64_t lease) const;

 private:
  explicit PeerFloats(shm::Segment segment) : segment_(std::move(segment)) {}

  shm::Segment segment_;
};

}  // namespace sherd::ft::ring
