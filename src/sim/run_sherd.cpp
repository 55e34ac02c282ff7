// SPDX-License-Identifier: Apache-2.0
//
// Lets the failures happen to a world.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "base/restart_budget.h"
#include "ft/protocol/reduce_shape.h"
#include "sim/failures.h"
#include "sim/runs.h"
#include "sim/stragglers.h"

namespace sherd::sim {
namespace {

SimulatedWorldOptions world_options(const SimulationOptions& options) {
  SimulatedWorldOptions world;
  world.replicas = options.replicas;
  world.ranks_per_replica = static_cast<int>(options.gpus / options.replicas);
  world.times = times_of(options);
  world.coordinator.replicas_min = options.replicas_min;
  world.coordinator.replicas_start = options.replicas;
  world.coordinator.recovers = true;
  world.every_step = options.every_step;
  return world;
}

class SherdRun {
 public:
  SherdRun(const SimulationOptions& options, std::uint64_t seed)
      : options_(options),
        world_options_(world_options(options)),
        world_(world_options_),
        source_(options, seed),
        stragglers_(stragglers_of(options, seed)),
        coordinator_failures_(seed, "coordinator failures"),
        spares_(options.spares, minutes(options.repair_h * 60)),
        replicas_(
            static_cast<std::size_t>(options.replicas),
            {.budget = RestartBudget(
                 options.restarts_max, seconds_of(options.restart_window_s))}) {
  }

  RunOutcome run() {
    world_.set_on_record([this](const ft::Record& one) { recorded(one); });
    for (int i = 0; i < options_.replicas; ++i) {
      start(i, SimulatedWorld::first_state());
    }
    const auto end = kBegin + length_of(options_);
    world_.events().add_outside(kBegin, [this] { begin(); });
    // Steps count only if they end before this.
    world_.events().add_outside(end, [] {});
    world_.run_until(end);
    const auto progress = world_.progress();
    outcome_.elapsed_s = seconds(end - kBegin);
    const auto steps = progress.steps - before_.steps;
    outcome_.commits = steps;
    outcome_.steps_s = static_cast<double>(steps) * step_s_of(options_);
    outcome_.work_s = (progress.work - before_.work) * step_s_of(options_);
    outcome_.discarded = progress.rolled_back;
    outcome_.epochs = progress.epochs - before_.epochs;
    outcome_.too_few_s = seconds(progress.too_few_time - before_.too_few_time);
    outcome_.replica_s = seconds(progress.replica_time - before_.replica_time);
    outcome_.traffic = world_.traffic();
    outcome_.traffic->reports.subtract(traffic_before_.reports);
    outcome_.traffic->views.subtract(traffic_before_.views);
    outcome_.traffic->records.subtract(traffic_before_.records);
    return outcome_;
  }

 private:
  // What happens to one replica.
  struct ReplicaFate {
    std::uint64_t returns = 0;  // How often it was due to come back.
    RestartBudget budget;       // Of its launcher.
    bool given_up = false;      // It has used up its restarts.
    int slow_hosts = 0;
  };

  // All replicas train by then.
  static constexpr Duration kBegin = std::chrono::seconds(60);

  void begin() {
    before_ = world_.progress();
    traffic_before_ = world_.traffic();
    schedule_failure();
    schedule_checkpoint();
    schedule_coordinator_failure();
    for (const auto& one : stragglers_) {
      change_slow_hosts(kBegin + one.from, one.replica, 1);
      change_slow_hosts(kBegin + one.until, one.replica, -1);
    }
  }

  ReplicaFate& fate(int replica) {
    return replicas_[static_cast<std::size_t>(replica)];
  }

  void change_slow_hosts(Instant at, int replica, int change) {
    world_.events().add_outside(at, [this, replica, change] {
      auto& count = fate(replica).slow_hosts;
      count += change;
      world_.set_slowdown(
          static_cast<ft::ReplicaId>(replica),
          count > 0 ? options_.straggler_factor : 1);
    });
  }

  void schedule_failure() {
    const auto failure = source_.next();
    world_.events().add_outside(kBegin + failure.at, [this, failure] {
      ++outcome_.failures;
      if (failure.whole_job) {
        fail_whole_job();
      } else {
        fail(failure);
      }
      schedule_failure();
    });
  }

  void schedule_checkpoint() {
    if (options_.checkpoint_min > 0) {
      checkpoint_ = world_.log().canonical;
      world_.events().add_outside(
          world_.now() + minutes(options_.checkpoint_min),
          [this] { schedule_checkpoint(); });
    }
  }

  void schedule_coordinator_failure() {
    if (options_.coordinator_mtbf_h <= 0) {
      return;
    }
    constexpr double kSecondsPerHour = 3600;
    const auto mean_s = options_.coordinator_mtbf_h * kSecondsPerHour;
    const auto wait_s = options_.arrivals == Arrivals::kEven
        ? mean_s
        : coordinator_failures_.exponential(mean_s);
    world_.events().add_outside(world_.now() + seconds_of(wait_s), [this] {
      world_.lose_coordinator(seconds_of(options_.coordinator_down_s));
      schedule_coordinator_failure();
    });
  }

  void start(int replica, std::optional<ft::StateId> held = {}) {
    const auto id = static_cast<ft::ReplicaId>(replica);
    if (world_.runs(id)) {
      world_.lose(id, FailureKind::kProcess);  // It still hangs.
    }
    if (!held && world_.running() == 0) {
      held = checkpoint_ ? checkpoint_ : world_.log().canonical;
    }
    world_.start(id, held);
    if (held) {
      known_.insert(world_.replica(id)->report().incarnation);
    }
  }

  void fail(const Failure& failure) {
    if (!options_.stall_min && failure.kind == FailureKind::kLink) {
      fail_link(failure.replicas[0]);
      return;
    }
    for (const int replica : failure.replicas) {
      if (fate(replica).given_up) {
        continue;
      }
      lose(replica, failure.kind);
      if (!may_start_again(replica, failure.kind)) {
        ++fate(replica).returns;
        ++outcome_.given_up;
        fate(replica).given_up = true;
        continue;
      }
      start_at(
          replica, spares_.replace(world_.now()) + minutes(options_.down_min),
          {});
    }
  }

  // The launcher on the next host starts its count again if the old one was lost with its host.
  bool may_start_again(int replica, FailureKind kind) {
    auto& budget = fate(replica).budget;
    if (kind == FailureKind::kHost) {
      budget.renew();
      return true;
    }
    return budget.take(world_.now());
  }

  // Fails its link to the first member that it sends gradients to.
  void fail_link(int replica) {
    const auto one = static_cast<ft::ReplicaId>(replica);
    const auto receivers = ft::receivers_of(options_.replicas, replica);
    const auto next =
        receivers.empty() ? one : static_cast<ft::ReplicaId>(receivers.front());
    if (options_.link_down_min <= 0 || one == next) {
      world_.reset_link(one, next);
      return;
    }
    const std::pair<ft::ReplicaId, ft::ReplicaId> link = std::minmax(one, next);
    world_.cut_link(one, next);
    ++cuts_[link];
    world_.events().add_outside(
        world_.now() + minutes(options_.link_down_min), [this, link] {
          if (--cuts_[link] == 0) {
            world_.mend_link(link.first, link.second);
          }
        });
  }

  void lose(int replica, FailureKind kind) {
    const auto id = static_cast<ft::ReplicaId>(replica);
    if (!world_.runs(id)) {
      return;
    }
    if (options_.stall_min) {
      const auto stall = minutes(*options_.stall_min);
      world_.stall(stall);
      world_.lose(
          id, FailureKind::kProcess,
          std::max(stall - time_of_epoch_change(), Duration(0)));
    } else {
      world_.lose(id, kind);
    }
  }

  // The requested stall includes it.
  Duration time_of_epoch_change() const {
    constexpr int kMessages = 8;
    const auto& times = world_options_.times;
    return world_options_.coordinator.settle + times.connect +
        kMessages * (times.message + times.sync + times.leader_fan_out);
  }

  // A later failure of the replica replaces the time.
  void start_at(int replica, Instant at, std::optional<ft::StateId> held) {
    const auto turn = ++fate(replica).returns;
    world_.events().add_outside(at, [this, replica, turn, held] {
      if (fate(replica).returns == turn) {
        start(replica, held);
      }
    });
  }

  void fail_whole_job() {
    // The replicas are there a little earlier, and agree on what they hold.
    constexpr Duration kAgreement = std::chrono::milliseconds(1500);
    const auto there = spares_.replace(world_.now());
    const auto away = there - world_.now() + minutes(options_.restart_min);
    const auto held = checkpoint_ ? checkpoint_ : world_.log().canonical;
    world_.stall(away);
    for (int i = 0; i < options_.replicas; ++i) {
      const auto id = static_cast<ft::ReplicaId>(i);
      fate(i).given_up = false;
      fate(i).budget.renew();
      if (world_.runs(id)) {
        world_.lose(id, FailureKind::kProcess, Duration(0));
      }
      start_at(
          i, world_.now() + std::max(away - kAgreement, Duration(0)), held);
    }
  }

  // Replicas that come back while others train may delay them.
  void recorded(const ft::Record& record) {
    const auto* epoch = std::get_if<ft::EpochRecord>(&record);
    if (epoch == nullptr) {
      return;
    }
    bool comes_back = false;
    for (const auto& member : epoch->members) {
      comes_back = known_.insert(member.incarnation).second || comes_back;
    }
    if (comes_back) {
      world_.stall(minutes(options_.rejoin_min));
    }
  }

  const SimulationOptions& options_;
  const SimulatedWorldOptions world_options_;
  SimulatedWorld world_;
  FailureSource source_;
  const std::vector<Straggler> stragglers_;
  Random coordinator_failures_;
  SparePool spares_;
  std::vector<ReplicaFate> replicas_;
  // How many failures of a link have not ended.
  std::map<std::pair<ft::ReplicaId, ft::ReplicaId>, int> cuts_;
  std::set<ft::Incarnation> known_;  // Incarnations that have been members.
  std::optional<ft::StateId> checkpoint_;
  // What there was when all replicas trained.
  SimulatedWorld::Progress before_;
  Traffic::Totals traffic_before_;
  RunOutcome outcome_;
};

}  // namespace

WorldTimes times_of(const SimulationOptions& options) {
  WorldTimes times;
  times.step = seconds_of(step_s_of(options));
  times.leader_fan_out = leader_fan_out_of(options);
  if (!options.stall_min) {
    constexpr double kBitsPerMegabyte = 8e6;
    const double sent = ft::sent_share_of(options.replicas) *
        options.gradient_mb * kBitsPerMegabyte;
    times.reduce = seconds_of(sent / (options.link_gbit_per_s * 1e9)) +
        ft::reduce_hops_of(options.replicas) * times.message;
  }
  return times;
}

RunOutcome run_sherd(const SimulationOptions& options, std::uint64_t seed) {
  return SherdRun(options, seed).run();
}

}  // namespace sherd::sim
