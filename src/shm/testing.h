// SPDX-License-Identifier: Apache-2.0
//
// For tests of shared memory: ranks that share a segment, as threads (one
// mapping, so that ThreadSanitizer sees both sides) or as forked processes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <thread>
#include <vector>
#include <gtest/gtest.h>
#include "base/clock.h"
#include "shm/counter.h"
#include "shm/join.h"
#include "shm/peers.h"
#include "shm/segment.h"
#include "shm/waiter.h"
#include "support/child_process.h"

namespace sherd::shm::test {

using sherd::test::ChildEnd;
using sherd::test::ChildLink;
using sherd::test::ChildrenOptions;
using sherd::test::ChildrenReport;
using sherd::test::run_children;

inline const SteadyClock kClock;

inline std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// A segment created before its ranks, with room for peers, `counters` counters and `bytes` bytes.
struct Table {
  int ranks = 1;
  std::size_t counters = 0;
  std::size_t bytes = 0;
  Segment segment{};

  Table(int ranks_wanted, std::size_t counters_wanted, std::size_t bytes_wanted)
      : ranks(ranks_wanted), counters(counters_wanted), bytes(bytes_wanted) {
    segment =
        Segment::create({.bytes = data_offset() + bytes + kCacheLine}).value();
  }
  std::size_t cells_offset() const { return Peers::bytes(ranks); }
  std::size_t data_offset() const {
    return cells_offset() + counters * sizeof(CounterCell);
  }
  std::span<std::byte> peers_memory() const {
    return segment.at<std::byte>(0, Peers::bytes(ranks));
  }
  std::span<CounterCell> cells() const {
    return segment.at<CounterCell>(cells_offset(), counters);
  }
  Counter counter(std::size_t i) const { return Counter(cells()[i]); }
  std::span<std::byte> data() const {
    return segment.at<std::byte>(data_offset(), bytes);
  }
};

// Runs `body(rank, peers)` in a thread per rank. Threads share one process id, so none of them can
// be seen to die.
inline void run_threads(
    const Table& table, const std::function<void(int, Peers&)>& body) {
  std::vector<std::unique_ptr<Peers>> peers;
  for (int r = 0; r < table.ranks; ++r) {
    peers.push_back(std::make_unique<Peers>(
        table.peers_memory(), PeersOptions{.rank = r, .ranks = table.ranks}));
    peers.back()->enter();
  }
  std::vector<std::jthread> threads;
  for (int r = 0; r < table.ranks; ++r) {
    Peers& own = *peers[static_cast<std::size_t>(r)];
    own.watch().throw_if_failed();
    threads.emplace_back([&body, r, &own] { body(r, own); });
  }
}

// The exit code of a forked rank that runs `body`: 1 if an EXPECT in it failed, 3 if it threw an
// exception.
inline int exit_code_of(const std::function<int()>& body) {
  try {
    const int code = body();
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return test->result()->Failed() ? 1 : code;
  } catch (const std::exception& error) {
    std::cerr << "exception: " << error.what() << '\n';
    return 3;
  }
}

// Runs `body(rank, peers, link)` in a forked process per rank; all watch each other when it begins.
// Uses the last counter of `table` itself.
inline ChildrenReport run_forked(
    const Table& table,
    const std::function<int(int, Peers&, ChildLink&)>& body,
    std::vector<sherd::test::Strike> strikes = {}) {
  return sherd::test::run_children(
      {.count = table.ranks,
       .timeout = std::chrono::seconds(60),
       .strikes = std::move(strikes)},
      [&](int rank, ChildLink& link) {
        const SteadyClock clock;
        Peers peers(table.peers_memory(), {.rank = rank, .ranks = table.ranks});
        peers.enter();
        Counter here = table.counter(table.counters - 1);
        const auto all = static_cast<std::uint64_t>(table.ranks);
        here.advance();
        const Instant limit = clock.now() + std::chrono::seconds(30);
        while (!here.reached(all) && clock.now() < limit) {
          here.sleep_below(all, std::chrono::milliseconds(10));
        }
        return exit_code_of([&] {
          peers.watch().throw_if_failed();
          return body(rank, peers, link);
        });
      });
}

// Forks ranks that have nothing in common yet.
inline ChildrenReport run_apart(
    int ranks,
    const std::function<int(int, ChildLink&)>& body,
    std::vector<sherd::test::Strike> strikes = {}) {
  return sherd::test::run_children(
      {.count = ranks,
       .timeout = std::chrono::seconds(60),
       .strikes = std::move(strikes)},
      [&](int rank, ChildLink& link) {
        return exit_code_of([&] { return body(rank, link); });
      });
}

inline void expect_all_ok(const ChildrenReport& report) {
  for (std::size_t i = 0; i < report.children.size(); ++i) {
    const ChildEnd& end = report.children[i];
    EXPECT_EQ(end.exit_code, 0)
        << "rank " << i << " of " << report.children.size()
        << (end.timed_out ? " ran into the time limit" : "") << ", signal "
        << end.signal << ", output:\n"
        << end.output << end.result;
  }
}

// A store for forked processes; one of them puts.
class TestStore {
 public:
  StringStore store() {
    return {
        .put =
            [this](const std::string& value) {
              put(value);
              return Status();
            },
        .get = [this](Duration at_most) { return get(at_most); }};
  }
  void put(const std::string& value) {
    Counter version(segment_.at<CounterCell>(0, 1)[0]);
    const std::span<char> slot = slot_of(version.value() + 1);
    ASSERT_LT(value.size(), slot.size());
    std::copy(value.begin(), value.end(), slot.begin());
    slot[value.size()] = '\0';
    version.advance();
  }
  Result<std::string> get(Duration at_most) {
    const Counter version(segment_.at<CounterCell>(0, 1)[0]);
    const SteadyClock clock;
    const Instant limit = clock.now() + at_most;
    while (!version.reached(1)) {
      const Duration rest = limit - clock.now();
      if (rest <= Duration(0)) {
        return Status(ErrorCode::kDeadlineExceeded, "no such key");
      }
      version.sleep_below(1, rest);
    }
    return std::string(slot_of(version.value()).data());
  }

 private:
  static constexpr std::size_t kSlots = 8;
  static constexpr std::size_t kSlotBytes = 2048;
  std::span<char> slot_of(std::uint64_t version) const {
    return segment_.at<char>(kSlotBytes * (1 + version % kSlots), kSlotBytes);
  }
  Segment segment_ =
      Segment::create({.bytes = (kSlots + 1) * kSlotBytes}).value();
};

// A clock that moves only when told to.
class ManualClock final : public Clock {
 public:
  Instant now() const override { return now_ += step; }
  Instant step{0};  // Passes each time it is read.

 private:
  mutable Instant now_{0};
};

}  // namespace sherd::shm::test
