// SPDX-License-Identifier: Apache-2.0
//
// The cost of telling another process how far this one has come, between two processes on one host,
// each with a counter in a shared segment.
//
//   asleep_one_core     there and back; both sleep at once, on the same core
//   asleep_two_cores    the same with a core each: two wake-ups
//   spinning_two_cores  both spin before they sleep, for the default time
//   spinning_one_core   the cost of spinning when there is no core to spin on
//   post_nobody_sleeps  a post that wakes nobody
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <memory>
#include <benchmark/benchmark.h>
#include "shm/counter.h"
#include "shm/peers.h"
#include "shm/segment.h"
#include "shm/waiter.h"

namespace sherd::shm {
namespace {

constexpr std::uint64_t kEnd = std::uint64_t{1} << 60U;

struct Shared {
  Segment segment =
      Segment::create({.bytes = Peers::bytes(2) + 2 * sizeof(CounterCell)})
          .value();
  Counter counter(std::size_t i) const {
    return Counter(segment.at<CounterCell>(Peers::bytes(2), 2)[i]);
  }
  std::unique_ptr<Peers> peers(int rank) const {
    return std::make_unique<Peers>(
        segment.at<std::byte>(0, Peers::bytes(2)),
        PeersOptions{.rank = rank, .ranks = 2});
  }
};

void echo(const Shared& shared, const WaitOptions& options) {
  const SteadyClock clock;
  const auto peers = shared.peers(1);
  const Waiter waiter(*peers, clock, options);
  const Counter ping = shared.counter(0);
  Counter pong = shared.counter(1);
  for (std::uint64_t i = 1;; ++i) {
    if (!waiter.wait(ping, i, {.rank = 0}).ok() || ping.value() >= kEnd) {
      return;
    }
    pong.post(i);
  }
}

// Binds this process to the `n`-th core on which it may run.
bool pin(int n, const cpu_set_t& allowed) {
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed) && n-- == 0) {
      cpu_set_t only;
      CPU_ZERO(&only);
      CPU_SET(core, &only);
      return ::sched_setaffinity(0, sizeof(only), &only) == 0;
    }
  }
  return false;
}

void round_trip(benchmark::State& state, Duration spin, int cores) {
  const Shared shared;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0 ||
      CPU_COUNT(&allowed) < cores || !pin(0, allowed)) {
    state.SkipWithError("not enough cores");
    return;
  }
  const WaitOptions options{.deadline = std::chrono::seconds(10), .spin = spin};
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(cores - 1, allowed);
    echo(shared, options);
    ::_exit(0);
  }
  const SteadyClock clock;
  const auto peers = shared.peers(0);
  const Waiter waiter(*peers, clock, options);
  Counter ping = shared.counter(0);
  const Counter pong = shared.counter(1);
  std::uint64_t i = 0;
  for (auto _ : state) {
    ping.post(++i);
    if (!waiter.wait(pong, i, {.rank = 1}).ok()) {
      state.SkipWithError("the other process does not answer");
      break;
    }
  }
  ping.post(kEnd);
  ::waitpid(child, nullptr, 0);
  ::sched_setaffinity(0, sizeof(allowed), &allowed);
}

void post(benchmark::State& state) {
  const Shared shared;
  Counter counter = shared.counter(0);
  std::uint64_t i = 0;
  for (auto _ : state) {
    counter.post(++i);
  }
}

BENCHMARK_CAPTURE(round_trip, asleep_one_core, Duration(0), 1)->UseRealTime();
BENCHMARK_CAPTURE(round_trip, asleep_two_cores, Duration(0), 2)->UseRealTime();
BENCHMARK_CAPTURE(round_trip, spinning_two_cores, WaitOptions().spin, 2)
    ->UseRealTime();
BENCHMARK_CAPTURE(round_trip, spinning_one_core, WaitOptions().spin, 1)
    ->UseRealTime();
BENCHMARK(post)->Name("post_nobody_sleeps");

}  // namespace
}  // namespace sherd::shm

BENCHMARK_MAIN();
