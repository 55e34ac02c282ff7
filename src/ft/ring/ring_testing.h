// SPDX-License-Identifier: Apache-2.0
//
// For tests of rings: a ring that records its events, groups of rings with buckets, and a
// single-process reference for their result. Thread rule: one thread, except for events.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include "base/descriptor.h"
#include "ft/ring/ring.h"
#include "ft/ring/shared_floats.h"

namespace sherd::ft::ring {

constexpr std::uint64_t kTestRun = 4711;
constexpr Duration kTestDeadline = std::chrono::seconds(20);

// Looks each millisecond whether this holds; returns false if the deadline of tests has passed.
bool wait_until(const std::function<bool()>& holds);

// How many slices of the reduction under way are done.
inline std::int64_t slices_done_of(const Ring& ring) {
  return ring.progress().place.value_or(RingPosition()).slices_done;
}

// Waits on a condition variable with the deadline of tests.
class EventRecorder {
 public:
  RingEvents events();
  // Each waits for its event; returns false or nothing when the deadline has passed.
  bool joined(const Epoch& epoch);
  std::optional<std::uint64_t> reduced(const Attempt& attempt);
  std::optional<RingEnding> failed(const Epoch& epoch);
  // Waits for either event and returns whether it was reduced().
  bool reduced_unless_failed(const Attempt& attempt);
  // Whether the epoch has failed by now.
  bool has_failed(const Epoch& epoch);
  bool has_reduced(const Attempt& attempt);

 private:
  template <typename Map, typename Key>
  std::optional<typename Map::mapped_type> wait(Map& map, const Key& key);
  // An event adds to a map and notifies with mu_ held, and a wait looks into that map under mu_. No
  // event comes after this object is gone, since its ring is destroyed first.
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<Epoch, bool> joined_;
  std::map<Attempt, std::uint64_t> reduced_;
  std::map<Epoch, RingEnding> failed_;
};

using Layout = std::vector<std::int64_t>;
// In shared memory or on the heap.
// Indexed by bucket.
using BucketValues = std::pmr::vector<float>;
using Floats = std::vector<BucketValues>;

// How neighbours exchange floats: all over TCP, all in place in shared memory, or one member over
// TCP only.
enum class DataPath { kTcp, kShared, kMixed };
std::string name_of(DataPath way);
// For tests that run over each of them.
inline const auto kAllDataPaths =
    testing::Values(DataPath::kTcp, DataPath::kShared, DataPath::kMixed);

// Random buckets from a seed: ordinary numbers of many magnitudes, and zeros of both signs.
Floats random_buckets(const Layout& layout, std::uint64_t seed);
Floats zero_buckets(const Layout& layout);

// The weighted mean, summed in the order of the shape that this many members have: what every
// member must get, bit for bit. The chunk matters only in trees, which take turns.
Floats reference(
    const std::vector<const Floats*>& in,
    const std::vector<double>& weights,
    std::size_t chunk_bytes = 4096);
std::uint64_t digest_of(const Floats& floats);
bool same_bits(const Floats& a, const Floats& b);

// Hands out memory from front to back and never frees.
class SharedResource : public std::pmr::memory_resource {
 public:
  explicit SharedResource(std::size_t floats) : floats_(floats) {}
  SharedFloats& floats() { return floats_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override;
  void do_deallocate(void*, std::size_t, std::size_t) override {}
  bool do_is_equal(const memory_resource& other) const noexcept override {
    return this == &other;
  }

  SharedFloats floats_;
  std::size_t used_ = 0;
};

enum class Memory { kOwn, kShared };

struct TestMember {
  TestMember(
      RingOptions options,
      const Layout& layout,
      std::uint64_t seed,
      Memory memory = Memory::kOwn);
  void give_all();

  EventRecorder events_seen;
  std::unique_ptr<SharedResource> memory;
  Floats in;
  Floats out;
  Ring ring;  // Destroyed first.
};

struct RingGroupOptions {
  Layout layout;
  std::size_t chunk_bytes = 4096;
  int slots = 4;
  std::uint64_t seed = 1;
  DataPath way = DataPath::kTcp;
  Duration connect_timeout = kTestDeadline;
};

// Members with the replica ids 0, 1, ...
class RingGroup {
 public:
  RingGroup(int members, const RingGroupOptions& options);

  TestMember& operator[](int i) {
    return *members_[static_cast<std::size_t>(i)];
  }
  int size() const { return static_cast<int>(members_.size()); }
  std::size_t chunk_bytes() const { return chunk_bytes_; }
  // An epoch with these replicas, in this order.
  RingMembership epoch(std::uint64_t number, const std::vector<int>& replicas);
  RingMembership epoch(std::uint64_t number);  // With all replicas.
  void give_all();
  // Returns false if some member has not joined.
  bool join(const RingMembership& epoch);
  void begin(
      const RingMembership& epoch,
      std::int64_t step,
      const std::vector<double>& weights);
  Floats expected(
      const RingMembership& epoch, const std::vector<double>& weights);
  // Expects that all members of the epoch have the right bits and reported their digest.
  void expect_reduced(
      const RingMembership& epoch,
      std::int64_t step,
      const std::vector<double>& weights);

 private:
  const std::size_t chunk_bytes_;
  std::vector<std::unique_ptr<TestMember>> members_;
};

// The number of open descriptors of this process.
std::size_t descriptors();
// The number of mappings of shared floats in it.
std::size_t mappings();
// Waits until there are at most `count`; returns the number at the end.
std::size_t descriptors_down_to(std::size_t count);

// ---- for hand-made peers ----

struct Connected {
  Descriptor socket;  // Blocking, with timeouts of a few seconds.
  // Returns false if the peer closed it first.
  bool send(std::string_view bytes);
  // Receives until the peer closes it or `bytes` have arrived.
  std::string receive(std::size_t bytes);
};
Connected connect_to(std::uint16_t port);

// Forwards the connections made to it byte for byte, except for the fault that is injected into the
// bytes of the first connecting side.
struct InjectedFault {
  std::optional<std::size_t> flip_at = {};  // Inverts this byte.
  // Forwards nothing from here on until it is released, and reads no more than it must to see that
  // something was held back.
  std::optional<std::size_t> hold_at = {};
  // Also holds back that the connecting side has closed.
  bool holds_end = false;
};
class Proxy {
 public:
  Proxy(std::uint16_t target, InjectedFault fault);
  ~Proxy();
  std::uint16_t port() const;
  // Waits until it holds bytes back; returns false if the deadline has passed.
  bool holds();
  void release();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Both members of a group join its first epoch, the first one through the other's proxy, and give
// everything.
RingMembership join_behind(RingGroup& group, const Proxy& proxy);

}  // namespace sherd::ft::ring
