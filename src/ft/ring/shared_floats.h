// SPDX-License-Identifier: Apache-2.0
//
// SharedFloats is memory of floats that other processes of this host may read
// where it lies, and PeerFloats is such memory of another process, as this one
// reads it. A lease is how long what a reduction shows there stays as it is: a
// reader asks for it after it has read, and throws away what it has read when it
// is over, so that nobody needs to wait for a reader. docs/design/ring_reduce.md
// has the proof. Segments have no names: the kernel frees them with the last
// process that maps them. Thread rule: leases one thread at a time, else any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>
#include "base/status.h"
#include "shm/segment.h"

namespace sherd::ft::ring {

// Where a process of this host finds it, if it may.
struct IpcHandle {
  std::uint32_t process = 0;
  std::uint32_t descriptor = 0;
  std::uint64_t bytes = 0;  // 0: nowhere.
  bool operator==(const IpcHandle&) const = default;
};

class SharedFloats {
 public:
  // So many zeros. Where no segment is to be had they are private: nobody can
  // read them, all else is the same.
  explicit SharedFloats(std::size_t count);
  SharedFloats(const SharedFloats&) = delete;
  SharedFloats& operator=(const SharedFloats&) = delete;

  float* data() { return floats_; }
  std::size_t size() const { return count_; }

  IpcHandle name() const;
  // Drawn when it is made, and written into it: who knows it has opened it. Never
  // 0; of private floats nobody knows it.
  std::uint64_t key() const { return key_; }
  // Of the first of `count` floats; none: they lie elsewhere.
  std::optional<std::uint64_t> place_of(
      const float* floats, std::size_t count) const;

  // What is shown from now on; all shown before is over. Comes before the first
  // write to what was shown.
  void begin_lease();
  void end_lease();
  std::uint64_t lease() const { return lease_; }  // 0: none.

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
  // Maps it, to be read alone. The status says why not: another host or network
  // namespace, no right to, or something else of that name.
  static Result<PeerFloats> open(const IpcHandle& name);

  std::uint64_t key() const;
  // Null: they do not lie inside.
  const float* at(std::uint64_t place, std::size_t count) const;
  // Whether all that was read before this call, under this lease, was what its
  // owner had shown.
  bool holds(std::uint64_t lease) const;

 private:
  explicit PeerFloats(shm::Segment segment)
      : segment_(std::move(segment)) {}

  shm::Segment segment_;
};

}  // namespace sherd::ft::ring
