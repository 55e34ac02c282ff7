// SPDX-License-Identifier: Apache-2.0
//
// Measures bytes per second of the all-reduce: members in one process on loopback, one bucket of a
// step after another, over TCP or with floats that neighbours read in place. `cpu_ns_per_byte` is
// the processor time of all members per byte of a member's bucket; on a busy machine it tells more
// than the elapsed time. `memcpy` is a bound that TCP never beats: each byte copied into a socket
// and out of it, once for each step of the ring. With a delay, members connect through proxies that
// delay each piece by that time, as a network would.
#include <sys/resource.h>
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>
#include <benchmark/benchmark.h>
#include "ft/ring/ring.h"
#include "ft/ring/shared_floats.h"
#include "support/fault_proxy.h"

namespace sherd::ft {
namespace {

// Counts the events of rings, for a thread that waits.
class Gate {
 public:
  void come() {
    const std::lock_guard lock(mu_);
    ++count_;
    changed_.notify_one();
  }
  bool wait(int count) {
    std::unique_lock lock(mu_);
    const bool all = changed_.wait_for(
        lock, std::chrono::seconds(60), [&] { return count_ >= count; });
    count_ = 0;
    return all;
  }

 private:
  // come() counts and notifies the only waiting thread with mu_ held, under which that thread reads
  // the count.
  std::mutex mu_;
  std::condition_variable changed_;
  int count_ = 0;
};

double cpu_seconds() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
        1e-6 * static_cast<double>(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

using Proxies = std::vector<std::unique_ptr<test::FaultProxy>>;

Proxies proxies_of(std::size_t members, std::int64_t delay_us) {
  Proxies proxies;
  for (std::size_t m = 0; delay_us > 0 && m < members; ++m) {
    proxies.push_back(
        std::make_unique<test::FaultProxy>(test::FaultProxyOptions()));
    proxies[m]->set_both({.delay = std::chrono::microseconds(delay_us)});
  }
  return proxies;
}

// The port where the member is reached.
std::uint16_t port_of(
    const Ring& ring, const Proxies& proxies, std::size_t member) {
  if (proxies.empty()) {
    return ring.port();
  }
  proxies[member]->set_target_port(ring.port());
  return static_cast<std::uint16_t>(proxies[member]->port());
}

void reduce(benchmark::State& state) {
  const auto members = static_cast<std::size_t>(state.range(0));
  const auto bytes = static_cast<std::size_t>(state.range(1));
  const auto buckets = static_cast<std::size_t>(state.range(2));
  const std::size_t count = bytes / sizeof(float);
  Gate joined;
  Gate reduced;
  // Started before there are threads.
  const auto proxies = proxies_of(members, state.range(5));
  // For each member its buckets, followed by the places of their sums. They outlive the rings.
  std::vector<std::unique_ptr<ring::SharedFloats>> floats;
  std::vector<std::unique_ptr<Ring>> rings;
  RingMembership epoch{{1, 1}, {}};
  for (std::size_t m = 0; m < members; ++m) {
    RingOptions options;
    options.replica = static_cast<ReplicaId>(m);
    options.elements.assign(buckets, static_cast<std::int64_t>(count));
    options.chunk_bytes = static_cast<std::size_t>(state.range(3)) << 10U;
    floats.push_back(std::make_unique<ring::SharedFloats>(2 * buckets * count));
    std::fill_n(floats[m]->data(), buckets * count, static_cast<float>(m + 1));
    std::fill_n(floats[m]->data() + buckets * count, buckets * count, 0.0F);
    if (state.range(4) != 0) {
      options.memory = floats[m].get();
    }
    rings.push_back(std::make_unique<Ring>(
        options,
        RingEvents{
            [&](Epoch) { joined.come(); },
            [&](Attempt, std::uint64_t) { reduced.come(); },
            [](const Epoch&, const RingEnding&) {}}));
    rings[m]->set_run(1);
    epoch.members.push_back(
        {options.replica, 0, "127.0.0.1", port_of(*rings[m], proxies, m)});
  }
  for (auto& ring : rings) {
    ring->join(epoch);
  }
  bool fine = joined.wait(static_cast<int>(members));
  std::int64_t step = 0;
  const double before = cpu_seconds();
  for (auto _ : state) {
    ++step;
    for (std::size_t m = 0; m < members && fine; ++m) {
      for (std::size_t b = 0; b < buckets; ++b) {
        float* in = floats[m]->data() + b * count;
        rings[m]->give(static_cast<int>(b), in, in + buckets * count);
      }
      rings[m]->begin({epoch.epoch, step}, std::vector<double>(members, 1.0));
    }
    fine = fine && reduced.wait(static_cast<int>(members));
    if (!fine) {
      state.SkipWithError("a ring has failed");
      break;
    }
    for (auto& ring : rings) {
      ring->forget();
    }
  }
  const auto all =
      static_cast<std::int64_t>(bytes * buckets) * state.iterations();
  state.SetBytesProcessed(all);
  state.counters["cpu_ns_per_byte"] =
      (cpu_seconds() - before) * 1e9 / static_cast<double>(all);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames(
      {"members", "bytes", "buckets", "chunk_KiB", "shared", "delay_us"});
  for (const int shared : {0, 1}) {
    for (const int members : {2, 3}) {
      for (const std::int64_t kib : {64, 1024, 16384, 65536}) {
        bench->Args({members, kib << 10U, 1, 512, shared, 0});
      }
      bench->Args({members, 64 << 10, 64, 512, shared, 0});
      bench->Args({members, 4 << 20, 8, 512, shared, 0});
    }
    for (const int members : {16, 24}) {
      for (const std::int64_t kib : {4, 64, 1024, 16384}) {
        bench->Args({members, kib << 10U, 1, 512, shared, 0});
      }
    }
    for (const std::int64_t chunk : {64, 128, 256, 1024, 2048}) {
      bench->Args({2, 16 << 20, 1, chunk, shared, 0});
    }
  }
  for (const int members : {16, 24}) {
    for (const std::int64_t kib : {4, 64}) {
      bench->Args({members, kib << 10U, 1, 512, 0, 2000});
    }
  }
}
BENCHMARK(reduce)->Apply(sizes)->UseRealTime()->Unit(benchmark::kMicrosecond);

void copy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::vector<char> from(bytes, 'x');
  std::vector<char> to(bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(
      static_cast<std::int64_t>(bytes) * state.iterations());
}
BENCHMARK(copy)
    ->Name("memcpy")
    ->RangeMultiplier(16)
    ->Range(64 << 10, 64 << 20)
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sherd::ft

BENCHMARK_MAIN();
