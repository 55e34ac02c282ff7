// SPDX-License-Identifier: Apache-2.0
//
// Replicas whose step is discarded as a whole when one of them fails in it, and is repeated by the
// others, as with torchft's should_commit().
#include <algorithm>
#include <vector>

#include "sim/failures.h"
#include "sim/runs.h"
#include "sim/stragglers.h"

namespace sherd::sim {
namespace {

class TorchftRun {
 public:
  TorchftRun(const SimulationOptions& options, std::uint64_t seed)
      : options_(options),
        end_(length_of(options)),
        checkpoint_(minutes(options.checkpoint_min)),
        step_(seconds_of(step_s_of(options))),
        slow_step_(seconds_of(options.straggler_factor * step_s_of(options))),
        stragglers_(stragglers_of(options, seed)),
        source_(options, seed),
        spares_(options.spares, minutes(options.repair_h * 60)),
        ready_at_(static_cast<std::size_t>(options.replicas)),
        heals_(static_cast<std::size_t>(options.replicas)) {}

  RunOutcome run() {
    failure_ = source_.next();
    while (now_ < end_) {
      const auto waits_until = fail_until(now_);
      if (waits_until > now_) {
        now_ = waits_until;
      } else {
        attempt();
      }
    }
    outcome_.elapsed_s = seconds(end_);
    outcome_.steps_s =
        static_cast<double>(outcome_.commits) * step_s_of(options_);
    return outcome_;
  }

 private:
  bool is_up(std::size_t replica) const { return ready_at_[replica] <= now_; }

  // Lets all failures up to that time happen; returns until when the survivors stand still.
  Instant fail_until(Instant until) {
    Instant still{};
    while (failure_.at <= until) {
      ++outcome_.failures;
      still = std::max(still, fail());
      failure_ = source_.next();
    }
    return still;
  }

  // Until when the others stand still; a time long ago if they are not affected.
  Instant fail() {
    const auto at = failure_.at;
    if (failure_.whole_job) {
      const auto there = spares_.replace(at) + minutes(options_.restart_min);
      std::fill(ready_at_.begin(), ready_at_.end(), there);
      std::fill(heals_.begin(), heals_.end(), false);
      save_if_due(at);
      go_back_to_checkpoint();
      return there;
    }
    Instant still{};
    for (const auto one : failure_.replicas) {
      const auto replica = static_cast<std::size_t>(one);
      if (is_up(replica)) {
        still = at +
            (options_.stall_min ? minutes(*options_.stall_min)
                                : torchft_stall(failure_.kind));
      }
      if (options_.stall_min || failure_.kind != FailureKind::kLink) {
        ready_at_[replica] = spares_.replace(at) + minutes(options_.down_min);
        heals_[replica] = true;
      }
    }
    return still;
  }

  Duration step_time() const {
    const auto slow = slow_at(stragglers_, now_);
    const bool waits = std::any_of(slow.begin(), slow.end(), [&](int one) {
      return is_up(static_cast<std::size_t>(one));
    });
    return waits ? slow_step_ : step_;
  }

  void attempt() {
    save_if_due(now_);
    std::vector<std::size_t> healing;
    int trains = 0;
    for (std::size_t i = 0; i < ready_at_.size(); ++i) {
      if (is_up(i) && heals_[i]) {
        healing.push_back(i);
      } else if (is_up(i)) {
        ++trains;
      }
    }
    if (trains + static_cast<int>(healing.size()) < options_.replicas_min) {
      wait_for_one_more();
      return;
    }
    if (trains == 0) {  // There is no donor.
      go_back_to_checkpoint();
    }
    if (trains == 0 || (!healing.empty() && options_.rejoin_min > 0)) {
      for (const auto one : healing) {
        heals_[one] = false;
      }
      now_ += minutes(options_.rejoin_min);
      return;
    }
    make_step(healing, trains);
  }

  void make_step(const std::vector<std::size_t>& healing, int trains) {
    const auto end = now_ + step_time();
    const auto still = fail_until(std::min(end, end_));
    // A failure ends the attempt when the reduction notices it; then the others stand still.
    now_ = std::max(end, still);
    if (still > Instant(0)) {
      ++outcome_.discarded;
      return;
    }
    if (end > end_) {
      return;
    }
    ++outcome_.commits;
    outcome_.work_s += step_s_of(options_) * trains / options_.replicas;
    for (const auto one : healing) {
      heals_[one] = false;  // Its gradients were zeros in this step.
    }
  }

  // REQUIRES: a replica is away.
  void wait_for_one_more() {
    auto until = end_;
    for (const auto ready_at : ready_at_) {
      if (ready_at > now_) {
        until = std::min(until, ready_at);
      }
    }
    outcome_.too_few_s += seconds(until - now_);
    now_ = until;
  }

  // Saves what was committed, if a checkpoint was due by then.
  void save_if_due(Instant at) {
    if (checkpoint_ > Duration(0) && at >= saves_at_) {
      saved_commits_ = outcome_.commits;
      saved_work_s_ = outcome_.work_s;
      saves_at_ = (at / checkpoint_ + 1) * checkpoint_;
    }
  }

  // Without a time between checkpoints nothing is lost.
  void go_back_to_checkpoint() {
    if (checkpoint_ > Duration(0)) {
      outcome_.discarded += outcome_.commits - saved_commits_;
      outcome_.commits = saved_commits_;
      outcome_.work_s = saved_work_s_;
    }
  }

  const SimulationOptions& options_;
  const Instant end_;
  const Duration checkpoint_;
  const Duration step_;
  const Duration slow_step_;
  const std::vector<Straggler> stragglers_;
  FailureSource source_;
  SparePool spares_;
  Failure failure_;
  Instant now_{0};
  std::vector<Instant> ready_at_;
  std::vector<bool> heals_;  // It has come back but made no step yet.
  // What the last checkpoint has, and when the next one is due.
  std::int64_t saved_commits_ = 0;
  double saved_work_s_ = 0;
  Instant saves_at_{0};
  RunOutcome outcome_;
};

}  // namespace

Duration torchft_stall(FailureKind kind) {
  // The lighthouse's heartbeat timeout, and the operation timeout.
  const bool noticed_at_once =
      kind == FailureKind::kProcess || kind == FailureKind::kLink;
  return std::chrono::seconds(noticed_at_once ? 5 : 60);
}

RunOutcome run_torchft(const SimulationOptions& options, std::uint64_t seed) {
  return TorchftRun(options, seed).run();
}

}  // namespace sherd::sim
