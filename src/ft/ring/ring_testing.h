// SPDX-License-Identifier: Apache-2.0
//
// For tests of rings: a ring with what it has told, groups of them with buckets,
// and what one process makes of these. Thread rule: one thread, but for what a
// ring tells.
#pragma once

#include <condition_variable>
#include <cstdint>
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

// Waits on a condition variable with the deadline of tests.
class EventRecorder {
 public:
  RingEvents events();
  // Each waits until it is told; nothing: the deadline has passed.
  bool joined(const Epoch& epoch);
  std::optional<std::uint64_t> reduced(const Attempt& attempt);
  std::optional<RingFailure> failed(const Epoch& epoch);
  // The same, for either: whether it was reduced.
  bool reduced_unless_failed(const Attempt& attempt);
  // At this moment.
  bool has_failed(const Epoch& epoch);
  bool has_reduced(const Attempt& attempt);

 private:
  template <typename Map, typename Key>
  std::optional<typename Map::mapped_type> wait(Map& map, const Key& key);
  // An event adds to a map and notifies with mu_ held, under which a wait looks
  // into that map; events end before this does, for their ring goes first.
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<Epoch, bool> joined_;
  std::map<Attempt, std::uint64_t> reduced_;
  std::map<Epoch, RingFailure> failed_;
};

using Layout = std::vector<std::int64_t>;
using BucketValues = std::pmr::vector<float>;  // In shared memory, or anywhere.
using Floats = std::vector<BucketValues>;      // By bucket.

// How neighbours get each other's floats: all over TCP, all from where they lie,
// or one member over TCP alone.
enum class DataPath { kTcp, kShared, kMixed };
std::string name_of(DataPath way);
// For tests that run over each of them.
inline const auto kAllDataPaths =
    testing::Values(DataPath::kTcp, DataPath::kShared, DataPath::kMixed);

// Drawn from a seed: ordinary numbers of many sizes, and zeros of both signs.
Floats random_buckets(const Layout& layout, std::uint64_t seed);
Floats zero_buckets(const Layout& layout);

// The weighted mean, in the order of the shape that so many members have: what every member must
// get, bit for bit. The chunk matters in trees alone, which take turns.
Floats reference(
    const std::vector<const Floats*>& in,
    const std::vector<double>& weights,
    std::size_t chunk_bytes = 4096);
std::uint64_t digest_of(const Floats& floats);
bool same_bits(const Floats& a, const Floats& b);

// Hands out memory from front to back; frees nothing.
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
  Ring ring;  // Ends first.
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
  // With these replicas, in this order.
  RingMembership epoch(std::uint64_t number, const std::vector<int>& replicas);
  RingMembership epoch(std::uint64_t number);  // With all.
  // False: somebody has not joined.
  bool join(const RingMembership& epoch);
  void begin(
      const RingMembership& epoch,
      std::int64_t step,
      const std::vector<double>& weights);
  Floats expected(
      const RingMembership& epoch, const std::vector<double>& weights);
  // All members of it have the expected bits, and told their digest.
  void expect_reduced(
      const RingMembership& epoch,
      std::int64_t step,
      const std::vector<double>& weights);

 private:
  const std::size_t chunk_bytes_;
  std::vector<std::unique_ptr<TestMember>> members_;
};

// Open descriptors of this process.
std::size_t descriptors();
// Mappings of shared floats in it.
std::size_t mappings();
// Waits until there are at most so many; the number at the end.
std::size_t descriptors_down_to(std::size_t count);

// ---- for hand-made peers ----

struct Connected {
  Descriptor socket;  // Blocking, with timeouts of a few seconds.
  // False: it was closed first.
  bool send(std::string_view bytes);
  // What comes until the peer closes it or `bytes` are there.
  std::string receive(std::size_t bytes);
};
Connected connect_to(std::uint16_t port);

// Forwards connections made to it, byte for byte, except for what it is told to
// do with those of the first one that it gets from its caller's side.
struct InjectedFault {
  std::optional<std::size_t> flip_at = {};  // Inverts this byte.
  // Forwards nothing from here on, until it is told to, and reads no more than it
  // must to see that something was held back.
  std::optional<std::size_t> hold_at = {};
  bool holds_end = false;  // Nor that the caller has closed.
};
class Proxy {
 public:
  Proxy(std::uint16_t target, InjectedFault fault);
  ~Proxy();
  std::uint16_t port() const;
  // Waits until it holds bytes back; false: the deadline has passed.
  bool holds();
  void release();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sherd::ft::ring
