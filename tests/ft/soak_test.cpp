// SPDX-License-Identifier: Apache-2.0
//
// Runs for a long time: `make soak`. Seeds are printed.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <random>
#include <string>
#include <gtest/gtest.h>
#include "base/rank_environment.h"
#include "ft/cluster.h"
#include "ft/run_summary.h"

namespace sherd::ft::test {
namespace {

using sherd::test::Direction;
using std::chrono::milliseconds;
using std::chrono::minutes;

constexpr int kReplicas = 3;
constexpr int kRanks = 2;

struct InjectedFaults {
  int ranks = 0;
  int coordinators = 0;
  int partitions = 0;
  std::int64_t frames = 0;  // Frames in which a bit was flipped.
};

// A rank is killed every 10 to 30 s, bits of frames are flipped, replicas are cut off, and now and
// then the coordinator is killed.
class Soak {
 public:
  Soak(std::uint64_t seed, std::chrono::seconds lasts)
      : random_(seed), cluster_(cluster_options(lasts)) {
    cluster_.when_held(10, [this, lasts] {
      cluster_.after(lasts, [this] { end(); });
      kill_later();
      flip_later();
      part_later();
      kill_coordinator_later();
    });
  }

  Outcome run() {
    auto outcome = cluster_.run();
    struck_.frames = strikes();
    return outcome;
  }
  const InjectedFaults& struck() const { return struck_; }

 private:
  static ClusterOptions cluster_options(std::chrono::seconds lasts) {
    ClusterOptions options;
    options.replicas = kReplicas;
    options.ranks = kRanks;
    options.steps = std::int64_t{1} << 40;  // Until end().
    options.step_time = milliseconds(50);
    options.restarts = true;
    options.restart_after = milliseconds(500);
    options.links = true;
    options.coordinator.hold_time = std::chrono::seconds(10);
    options.coordinator.dead_after = kSilence;
    options.coordinator.hang_after = std::chrono::seconds(3);
    options.limit = lasts + minutes(5);
    return options;
  }

  // A random time between these, in ms.
  milliseconds between(std::int64_t from, std::int64_t to) {
    return milliseconds(
        std::uniform_int_distribution<std::int64_t>(from, to)(random_));
  }
  ReplicaId any_replica() {
    return static_cast<ReplicaId>(random_() % kReplicas);
  }
  int any_rank() { return static_cast<int>(random_() % kRanks); }

  void kill_later() {
    cluster_.after(between(10000, 30000), [this] {
      if (!ends_) {
        ++struck_.ranks;
        cluster_.signal(any_replica(), any_rank(), SIGKILL);
        kill_later();
      }
    });
  }

  void flip_later() {
    cluster_.after(between(3000, 10000), [this] {
      if (!ends_) {
        const auto from = any_replica();
        const ReplicaId to = (from + 1) % kReplicas;
        cluster_.link(from, to, any_rank())
            .set(
                Direction::kToTarget,
                {.flip_bit_at = static_cast<std::int64_t>(random_() % 10000000),
                 .strikes_max = 1});
        flip_later();
      }
    });
  }

  void part_later() {
    cluster_.after(between(20000, 60000), [this] {
      if (!ends_) {
        ++struck_.partitions;
        const auto alone = any_replica();
        for (ReplicaId other = 0; other < kReplicas; ++other) {
          if (other != alone) {
            cluster_.part(alone, other);
          }
        }
        cluster_.coordinator_link(alone).set_both({.paused = true});
        cluster_.after(between(500, 4000), [this] { cluster_.heal(); });
        part_later();
      }
    });
  }

  void kill_coordinator_later() {
    cluster_.after(between(40000, 120000), [this] {
      if (!ends_) {
        ++struck_.coordinators;
        cluster_.signal_coordinator(SIGKILL);
        cluster_.after(
            between(0, 1000), [this] { cluster_.start_coordinator(); });
        kill_coordinator_later();
      }
    });
  }

  // Makes some steps without faults, so that all replicas reach the end.
  void end() {
    ends_ = true;
    cluster_.heal();
    cluster_.after(std::chrono::seconds(10), [this] {
      cluster_.set_steps(cluster_.last_held() + 200);
    });
  }

  std::int64_t strikes() {
    std::int64_t sum = 0;
    for (ReplicaId from = 0; from < kReplicas; ++from) {
      for (int rank = 0; rank < kRanks; ++rank) {
        sum += cluster_.link(from, (from + 1) % kReplicas, rank)
                   .traffic()
                   .strikes[0];
      }
    }
    return sum;
  }

  std::mt19937_64 random_;
  Cluster cluster_;
  InjectedFaults struck_;
  bool ends_ = false;
};

// SHERD_TEST_SOAK_S sets for how long faults come.
std::chrono::seconds soak_time() {
  return std::chrono::seconds(
      std::stoll(process_environment()("SHERD_TEST_SOAK_S").value_or("1800")));
}

TEST(FaultsChaos, DISABLED_SoakDivergesNothingAndLosesNoSample) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  Soak soak(seed, soak_time());
  const auto outcome = soak.run();
  outcome.check({});
  const auto summary = summary_of(outcome, kReplicas);
  const auto& struck = soak.struck();
  std::printf(
      "  %lld steps in %.0f s; fewest commits in a minute %lld\n"
      "  struck: %d ranks, %d coordinators, %d partitions, %lld frames\n"
      "  %lld samples, %lld lost, %lld repeated; %lld rollbacks\n"
      "  effective training time %.1f %%\n",
      static_cast<long long>(summary.steps), summary.seconds,
      static_cast<long long>(summary.commits_in_a_minute_min), struck.ranks,
      struck.coordinators, struck.partitions,
      static_cast<long long>(struck.frames),
      static_cast<long long>(summary.samples),
      static_cast<long long>(summary.samples_lost),
      static_cast<long long>(summary.samples_repeated),
      static_cast<long long>(outcome.rollbacks()), 100 * summary.effective);
  EXPECT_EQ(summary.samples_lost, 0);
  EXPECT_EQ(summary.samples_repeated, 0);
  EXPECT_NE(summary.commits_in_a_minute_min, 0);
  EXPECT_GT(struck.frames, 0);
  for (ReplicaId one = 0; one < kReplicas; ++one) {
    EXPECT_TRUE(outcome.lives_of(one).back()->done) << "replica " << one;
  }
}

Duration time_until_it_computes(const Life& life) {
  for (const auto& event : life.trace) {
    if (event.kind == TraceEvent::Kind::kComputes) {
      return event.at - life.trace.front().at;
    }
  }
  return Duration::max();
}

// It is kept out for 1 s, 2 s, 4 s and so on, up to a minute: a quarter of an hour in total.
TEST(FaultsJoining, DISABLED_F48TwentyFlapsLeaveTheOthersAlone) {
  ClusterOptions options;
  options.steps = std::int64_t{1} << 40;
  options.step_time = milliseconds(50);
  options.restarts = true;
  options.limit = minutes(30);
  Cluster cluster(options);
  constexpr int kFlaps = 20;
  for (int life = 2; life <= kFlaps + 1; ++life) {
    cluster.at(
        {.replica = 1, .point = "forward", .step = -1, .life = life}, [&] {
          cluster.after(
              std::chrono::seconds(1), [&] { cluster.signal_all(1, SIGKILL); });
          return std::string();
        });
  }
  constexpr int kCalm = 100;  // Steps without faults, for comparison.
  const SteadyClock clock;
  Instant calm_from{0};
  Instant calm_to{0};
  Instant over{0};
  std::int64_t steps = 0;
  cluster.when_held(10, [&] { calm_from = clock.now(); });
  cluster.when_held(10 + kCalm, [&] {
    calm_to = clock.now();
    cluster.signal_all(1, SIGKILL);
  });
  // After the last flap it comes back for good.
  cluster.at(
      {.replica = 1, .point = "forward", .step = -1, .life = kFlaps + 2}, [&] {
        over = clock.now();
        steps = cluster.last_held();
        cluster.set_steps(steps + 100);
        return std::string();
      });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  const auto lives = outcome.lives_of(1);
  ASSERT_EQ(lives.size(), static_cast<std::size_t>(kFlaps) + 2);
  ASSERT_GT(steps, 0);
  EXPECT_LT(time_until_it_computes(*lives[1]), std::chrono::seconds(1));
  EXPECT_GT(time_until_it_computes(*lives.back()), std::chrono::seconds(50));
  const double calm = kCalm / sherd::seconds(calm_to - calm_from);
  const double flapping =
      static_cast<double>(steps - 10 - kCalm) / sherd::seconds(over - calm_to);
  std::printf(
      "  %.2f steps a second without faults, %.2f with\n", calm, flapping);
  EXPECT_GT(flapping, 0.8 * calm);
}

TEST(FaultsJoining, DISABLED_F63LeavingEveryTenStepsAbortsNothing) {
  ClusterOptions options;
  options.steps = 500;
  options.returns = true;
  options.restart_after = 10 * milliseconds(20);
  Cluster cluster(options);
  constexpr int kLives = 30;
  for (int life = 1; life <= kLives; ++life) {
    cluster.order_at(
        {.replica = 1, .point = "forward", .step = -1, .life = life},
        "leave in 9");
  }
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  const auto lives = outcome.lives_of(1);
  std::printf("  %zu lives\n", lives.size());
  EXPECT_GE(lives.size(), 10U);
  for (const auto* life : lives) {
    EXPECT_TRUE(life->done) << life->failure;
  }
  // One epoch when it has left and one when it has come: none was broken.
  EXPECT_LE(outcome.epochs(), 2 * static_cast<std::int64_t>(lives.size()) + 1);
  EXPECT_EQ(summary_of(outcome, 3).samples_lost, 0);
}

}  // namespace
}  // namespace sherd::ft::test
