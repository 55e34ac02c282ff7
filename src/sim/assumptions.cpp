// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <string>

#include "base/check.h"
#include "ft/coordinator/failure_detector.h"
#include "ft/protocol/coordinator.h"
#include "sim/failures.h"
#include "sim/runs.h"

namespace sherd::sim {
namespace {

constexpr const char* kGiven = "given";
constexpr const char* kFtHsdp =
    "FT-HSDP, arXiv 2602.00277, and public notes about it";
constexpr const char* kOwn = "sherd's default";
constexpr const char* kMeasured =
    "measured on a 2-core x86 virtual machine, docs/design/simulate.md";
constexpr const char* kAssumed = "assumed";

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string with_unit(double value, const char* unit) {
  return number(value) + " " + unit;
}

class Assumptions {
 public:
  explicit Assumptions(const SimulationOptions& options) : options_(options) {}

  std::vector<SimulationResult::Assumption> take() {
    add_cluster();
    add_failures();
    if (options_.policy == FailurePolicy::kSherd) {
      add_sherd();
    } else if (options_.policy == FailurePolicy::kTorchft) {
      add_torchft();
    } else {
      add("everybody stops at a failure",
          "and is back after the time away, all or none of them", kFtHsdp);
    }
    return std::move(all_);
  }

 private:
  void add(const char* name, std::string value, const char* source) {
    all_.push_back({name, std::move(value), source});
  }
  void add(const char* name, Duration value, const char* source) {
    add(name, with_unit(seconds(value), "s"), source);
  }
  // An option whose default has that source.
  template <typename Number>
  void add(
      const char* name,
      Number SimulationOptions::* option,
      const char* unit,
      const char* source) {
    const Number value = options_.*option;
    add(name, number(static_cast<double>(value)) + unit,
        value == SimulationOptions().*option ? source : kGiven);
  }

  // Then options about those that go on have no meaning.
  bool everybody_restarts() const {
    return options_.policy == FailurePolicy::kRestart;
  }

  void add_cluster() {
    const SimulationOptions usual;
    add("GPUs", str(options_.gpus), kGiven);
    add("replicas", &SimulationOptions::replicas, "", kFtHsdp);
    add("GPUs in a host", &SimulationOptions::gpus_per_host, "", kFtHsdp);
    const auto* step_source = options_.step_s ? kGiven
        : step_s_of(options_) == step_s_of(usual)
        ? kFtHsdp
        : "the published formulas know no steps";
    add("a step without failures", with_unit(step_s_of(options_), "s"),
        step_source);
    add("a step of some replicas", "counts as their share of it",
        "the published formula");
  }

  void add_failures() {
    if (!options_.mtbf_min) {
      add("failures per 1000 hosts and day",
          &SimulationOptions::failures_per_1000_host_days, "",
          "RSC clusters, arXiv 2410.21680; the same gives FT-HSDP's 18 min "
          "at 98,304 GPUs");
    }
    add("time between failures", with_unit(mtbf_min_of(options_), "min"),
        options_.mtbf_min ? kGiven : "from the rate of hosts");
    add("arrivals",
        options_.arrivals == Arrivals::kEven
            ? "even, replicas in turn"
            : "Poisson, replicas at random, also while others are away",
        kGiven);
    if (!everybody_restarts()) {
      add("failures that stop the whole job",
          &SimulationOptions::whole_job_share, "", kAssumed);
    }
    add("failures that take two replicas",
        &SimulationOptions::two_replica_share, "", kAssumed);
    add_stragglers();
    add("time until the lost are back", &SimulationOptions::down_min, " min",
        kFtHsdp);
    add("a failure of what is away", "begins that time anew", kAssumed);
    if (!everybody_restarts()) {
      add("stall at a return", &SimulationOptions::rejoin_min, " min",
          "sherd stops nobody for it; FT-HSDP's is 100 s");
      add("restart of the whole job", &SimulationOptions::restart_min, " min",
          kFtHsdp);
      add("fewest replicas that make a step", &SimulationOptions::replicas_min,
          "", kOwn);
    }
    add("between checkpoints",
        options_.checkpoint_min > 0 ? with_unit(options_.checkpoint_min, "min")
                                    : "no time: nothing is lost",
        options_.checkpoint_min > 0 ? kGiven : "the published formula");
    add_spares();
    add_stall();
  }

  void add_spares() {
    add("spare hosts",
        options_.spares ? str(*options_.spares) : "as many as are needed",
        options_.spares ? kGiven : "the published formula");
    if (options_.spares) {
      add("repair of a host", &SimulationOptions::repair_h, " h",
          "assumed, 6 to 24 h are usual");
    }
  }

  void add_stall() {
    const SimulationOptions usual;
    if (!everybody_restarts()) {
      if (options_.stall_min) {
        add("stall after a failure", with_unit(*options_.stall_min, "min"),
            kGiven);
      } else {
        add_causes();
      }
    }
    if (options_.policy == FailurePolicy::kSherd) {
      add("a replica is given up after",
          str(options_.restarts_max, " restarts within ",
              number(options_.restart_window_s), " s"),
          options_.restarts_max == usual.restarts_max &&
                  options_.restart_window_s == usual.restart_window_s
              ? kOwn
              : kGiven);
    }
    if (options_.policy == FailurePolicy::kSherd && !options_.stall_min) {
      add("a network that fails carries nothing for",
          &SimulationOptions::link_down_min, " min",
          "assumed: connections are made again at once");
    }
  }

  void add_stragglers() {
    if (options_.stragglers_per_1000_host_days <= 0) {
      add("slow hosts", "none", kAssumed);
      return;
    }
    add("hosts that become slow, per 1000 and day",
        number(options_.stragglers_per_1000_host_days), kGiven);
    add("a step with a slow host takes", &SimulationOptions::straggler_factor,
        " times as long", kAssumed);
    add("a host is slow for", &SimulationOptions::straggler_min, " min",
        kAssumed);
  }

  void add_causes() {
    static constexpr const char* kKinds[] = {
        "a process ends", "a host vanishes", "a replica hangs",
        "a link breaks once"};
    for (const auto& cause : failure_causes()) {
      add("cause of failures",
          str(cause.name, " ", number(cause.share * 100),
              " %: ", kKinds[static_cast<int>(cause.kind)]),
          "678 interruptions in FT-HSDP's notes; what each does is assumed");
    }
  }

  void add_sherd() {
    const ft::CoordinatorOptions coordinator;
    const ft::FailureDetectorOptions detector;
    const auto times = times_of(options_);
    add("connections are closed after a process ends by",
        times.end_of_connection, kMeasured);
    add("a silent replica is lost after", detector.dead_after, kOwn);
    add("a replica hangs after",
        str("10 usual phases, ", number(seconds(detector.hard_floor)),
            " s at least"),
        kOwn);
    add("failures that come together within", coordinator.settle, kOwn);
    add("connecting the ring of an epoch", times.connect, kAssumed);
    add("a reduction that nothing hides", times.reduce,
        options_.stall_min
            ? "in the stall"
            : "gradients of --gradient-mb over --link-gbit-per-s, and a "
              "message's time for each hop");
    add("a message to or from the coordinator", times.message, kAssumed);
    add("a record on the disk", times.sync, kMeasured);
    add("a leader's message to all its ranks", times.leader_fan_out,
        "10 us a rank, measured: leader_load");
    add("a message costs its receiver", "5 us, 1 ns a byte", kAssumed);
    add("a report costs the coordinator", "0.15 us for each replica",
        "estimated from the simulator's own profile");
    if (options_.coordinator_mtbf_h > 0) {
      add("time between failures of the coordinator",
          with_unit(options_.coordinator_mtbf_h, "h"), kGiven);
      add("the coordinator is away for",
          with_unit(options_.coordinator_down_s, "s"), kAssumed);
    } else {
      add("the coordinator", "does not fail", kAssumed);
    }
  }

  void add_torchft() {
    add("a step in which a replica fails", "is discarded, and made again",
        "torchft's should_commit()");
    if (!options_.stall_min) {
      add("stall when a connection breaks",
          torchft_stall(FailureKind::kProcess),
          "torchft's default heartbeat timeout");
      add("stall when nothing is heard", torchft_stall(FailureKind::kHost),
          "torchft's default operation timeout");
    }
  }

  const SimulationOptions& options_;
  std::vector<SimulationResult::Assumption> all_;
};

}  // namespace

std::vector<SimulationResult::Assumption> assumptions_of(
    const SimulationOptions& options) {
  return Assumptions(options).take();
}

}  // namespace sherd::sim
