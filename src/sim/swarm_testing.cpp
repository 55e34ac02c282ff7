// SPDX-License-Identifier: Apache-2.0
#include "sim/swarm_testing.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <variant>

#include "base/check.h"
#include "sim/random.h"
#include "sim/swarm_checks_testing.h"

namespace sherd::sim {
namespace {

constexpr std::size_t kLast = 60;

struct TextOfRecord {
  std::string operator()(const ft::TermRecord& record) const {
    return str("term ", record.term);
  }
  std::string operator()(const ft::IncarnationRecord& record) const {
    return str("replica ", record.replica, " is ", record.incarnation);
  }
  std::string operator()(const ft::EpochRecord& record) const {
    auto text =
        str(ft::text_of(record.epoch), " begins at ", ft::text_of(record.base),
            " with");
    for (const auto& one : record.members) {
      text += str(" ", one.replica, one.samples.empty() ? " (follows)" : "");
    }
    return text;
  }
  std::string operator()(const ft::CommitRecord& record) const {
    return str("commit of ", ft::text_of(record.commit.attempt));
  }
  std::string operator()(const ft::RollbackRecord& record) const {
    return str(
        "rollback from ", ft::text_of(record.lost), " to ",
        ft::text_of(record.canonical));
  }
  std::string operator()(const ft::RecoveryRecord& record) const {
    return str("goes on from ", ft::text_of(record.canonical()));
  }
};

class SwarmRun {
 public:
  SwarmRun(std::uint64_t seed, std::int64_t steps, bool traced)
      : options_(draw_swarm_options(seed)),
        steps_(steps),
        traced_(traced),
        random_(seed, "swarm faults"),
        messages_(seed, "swarm messages"),
        world_(options_.world),
        checks_(options_.world, 4 * options_.heartbeat + kSecond),
        replicas_(static_cast<std::size_t>(options_.world.replicas)),
        lost_before_(2 * replicas_.size()) {
    result_.faults.resize(kSwarmFaults);
  }

  SwarmResult run() {
    try {
      begin();
      under_faults();
      restore();
      goes_on();
    } catch (const Error& error) {
      result_.violation =
          str(error.what(), " (after ", sherd::seconds(world_.now()), " s)");
    }
    result_.digest = checks_.digest();
    result_.commits = checks_.commits();
    result_.rollbacks = checks_.rollbacks();
    result_.recoveries = checks_.recoveries();
    result_.last.assign(last_.begin(), last_.end());
    return std::move(result_);
  }

 private:
  static constexpr Duration kSecond = std::chrono::seconds(1);
  struct Entry {
    bool leaves = false;
    bool returns = false;             // Its start is already an event.
    std::optional<ft::StateId> held;  // When it ran last.
    // A state that it held at some time.
    std::optional<ft::StateId> checkpoint;
  };

  void begin() {
    world_.set_on_record([this](const ft::Record& record) {
      note([&] { return "decided: " + std::visit(TextOfRecord(), record); });
      checks_.decided(world_, record);
    });
    world_.set_on_written([this](const ft::Record& record) {
      checks_.written(world_, record);
      // What the coordinator sends about this record reaches only some replicas.
      if (dies_when_it_tells_ &&
          std::holds_alternative<ft::CommitRecord>(record)) {
        dies_when_it_tells_ = false;
        told_before_death_ = static_cast<int>(random_.below(replicas_.size()));
        lose_coordinator();
      }
    });
    world_.set_after_event([this](const SimulatedWorld& world) {
      ++result_.events;
      checks_.after_event(world);
    });
    world_.set_delivery([this](const SimulatedWorld::Envelope& envelope) {
      return deliver(envelope);
    });
    for (ft::ReplicaId id = 0; id < replicas_.size(); ++id) {
      replicas_[id].checkpoint = SimulatedWorld::first_state();
      world_.start(id, SimulatedWorld::first_state());
    }
    heartbeats();
    world_.run_until(
        world_.now() + options_.world.coordinator.start_timeout + 4 * kSecond);
  }

  void under_faults() {
    if (!one_at_a_time().empty()) {
      schedule_fault();
    }
    faults_ = true;
    // Some worlds have faults all the time.
    const auto end =
        world_.now() + 3 * steps_ * options_.world.times.step + 60 * kSecond;
    while (checks_.commits() < steps_ && world_.now() < end) {
      world_.run_until(world_.now() + 5 * options_.world.times.step);
    }
    faults_ = false;
  }

  // ---- what replicas do on their own ----

  void heartbeats() {
    for (ft::ReplicaId id = 0; id < replicas_.size(); ++id) {
      if (world_.runs(id)) {
        auto& one = replicas_[id];
        one.held = world_.replica(id)->held();
        if (one.held && one.held->step > 0 && random_.below(100) == 0) {
          one.checkpoint = one.held;
        }
        world_.repeat_report(id);
      } else {
        comes_back(id);
      }
    }
    world_.events().add(
        world_.now() + options_.heartbeat, [this] { heartbeats(); });
  }

  void comes_back(ft::ReplicaId id) {
    if (!std::exchange(replicas_[id].returns, true)) {
      world_.events().add(world_.now() + some(options_.away), [this, id] {
        if (std::exchange(replicas_[id].returns, false)) {
          start(id, drawn_state(id));
        }
      });
    }
  }

  std::optional<ft::StateId> drawn_state(ft::ReplicaId id) {
    const auto& one = replicas_[id];
    if (random_.uniform() < options_.keeps_state && one.held &&
        one.held->step > 0) {
      return one.held;
    }
    return random_.uniform() < options_.has_checkpoint ? one.checkpoint
                                                       : std::nullopt;
  }

  void start(ft::ReplicaId id, const std::optional<ft::StateId>& held) {
    if (world_.runs(id)) {
      lose(id, FailureKind::kProcess);  // It hangs, or will be replaced.
    }
    note([&] {
      return str(
          "replica ", id, " starts with ",
          held ? ft::text_of(*held) : std::string("nothing"));
    });
    replicas_[id].leaves = false;
    replicas_[id].returns = false;
    world_.start(id, held);
  }

  void lose(ft::ReplicaId id, FailureKind kind) {
    if (world_.runs(id)) {
      replicas_[id].held = world_.replica(id)->held();
      world_.lose(id, kind);
    }
  }

  // ---- faults ----

  std::vector<SwarmFault> one_at_a_time() const {
    auto kinds = options_.faults;
    std::erase_if(
        kinds, [](SwarmFault one) { return one >= SwarmFault::kDelays; });
    return kinds;
  }

  bool has(SwarmFault kind) const {
    return std::find(options_.faults.begin(), options_.faults.end(), kind) !=
        options_.faults.end();
  }

  void count(SwarmFault kind) {
    ++result_.faults[static_cast<std::size_t>(kind)];
  }

  Duration some(Duration mean) {
    const auto drawn = random_.exponential(static_cast<double>(mean.count()));
    return Duration(static_cast<Duration::rep>(drawn)) +
        std::chrono::milliseconds(1);
  }

  ft::ReplicaId any() {
    return static_cast<ft::ReplicaId>(random_.below(replicas_.size()));
  }

  void schedule_fault() {
    world_.events().add(world_.now() + some(options_.between_faults), [this] {
      if (faults_) {
        const auto kinds = one_at_a_time();
        fault(kinds[random_.below(kinds.size())]);
        schedule_fault();
      }
    });
  }

  void fault(SwarmFault kind) {
    const auto one = any();
    const auto other = any();
    note([&] {
      return str("fault ", static_cast<int>(kind), " ", one, " ", other);
    });
    switch (kind) {
      case SwarmFault::kEnds:
      case SwarmFault::kVanishes:
      case SwarmFault::kHangs:
      case SwarmFault::kLeaves:
        lose_one(kind, one);
        break;
      case SwarmFault::kPair:
        lose(one, FailureKind::kProcess);
        lose(other, FailureKind::kProcess);
        break;
      case SwarmFault::kAll:
        // The next faults come a little later, before the effects have ended.
        if (random_.below(4) != 0) {
          return;
        }
        for (ft::ReplicaId id = 0; id < replicas_.size(); ++id) {
          lose(id, FailureKind::kProcess);
        }
        break;
      case SwarmFault::kCoordinator:
        lose_coordinator();
        break;
      case SwarmFault::kCoordinatorTells:
        dies_when_it_tells_ = true;
        break;
      case SwarmFault::kLog:
        lose_log();
        break;
      case SwarmFault::kStall:
        world_.stall(some(kSecond));
        break;
      default:
        disturb(kind, one, other);
    }
    count(kind);
  }

  void lose_one(SwarmFault kind, ft::ReplicaId one) {
    if (!world_.runs(one)) {
      return;
    }
    if (kind == SwarmFault::kLeaves) {
      replicas_[one].leaves = true;
      world_.leave(one);
      end_later(one, 3 * options_.world.times.step);
    } else if (kind == SwarmFault::kHangs) {
      lose(one, FailureKind::kHang);
      end_later(one, some(10 * kSecond));
    } else {
      lose(
          one,
          kind == SwarmFault::kEnds ? FailureKind::kProcess
                                    : FailureKind::kHost);
    }
  }

  void end_later(ft::ReplicaId id, Duration time) {
    world_.events().add(
        world_.now() + time, [this, id, incarnation = world_.incarnation(id)] {
          if (world_.incarnation(id) == incarnation) {
            lose(id, FailureKind::kProcess);
          }
        });
  }

  void disturb(SwarmFault kind, ft::ReplicaId one, ft::ReplicaId other) {
    if (kind == SwarmFault::kSlow) {
      world_.set_slowdown(one, 1 + 5 * random_.uniform());
      world_.events().add(world_.now() + some(10 * kSecond), [this, one] {
        world_.set_slowdown(one, 1);
      });
    } else if (kind == SwarmFault::kConnectionReset) {
      if (world_.runs(one)) {
        world_.reset_connection(one);
      }
    } else if (one != other && kind == SwarmFault::kLinkReset) {
      world_.reset_link(one, other);
    } else if (one != other && kind == SwarmFault::kLinkCut) {
      world_.cut_link(one, other);
      world_.events().add(world_.now() + some(5 * kSecond), [this, one, other] {
        world_.mend_link(one, other);
      });
    }
  }

  void lose_coordinator() {
    // An event of its own, since the coordinator may be carrying out decisions.
    world_.events().add(world_.now(), [this] {
      told_before_death_.reset();
      world_.lose_coordinator(some(kSecond));
    });
  }

  void lose_log() {
    world_.events().add(world_.now(), [this] {
      note([] { return std::string("the log is lost"); });
      told_before_death_.reset();
      checks_.log_lost();
      world_.lose_coordinator_and_log(some(kSecond));
    });
  }

  // ---- messages ----

  std::vector<Duration> deliver(const SimulatedWorld::Envelope& envelope) {
    if (told_before_death_ && !envelope.to_coordinator &&
        --*told_before_death_ < 0) {
      return {};
    }
    std::vector<Duration> copies = {Duration(0)};
    if (!faults_) {
      return copies;
    }
    // At most every second one may be lost.
    auto&& lost_before =
        lost_before_[2 * envelope.replica + (envelope.to_coordinator ? 1 : 0)];
    if (happens(SwarmFault::kLosses) && !lost_before) {
      lost_before = true;
      return {};
    }
    lost_before = false;
    if (happens(SwarmFault::kDelays)) {
      copies[0] = late();
    }
    if (happens(SwarmFault::kRepeats)) {
      copies.push_back(late());
    }
    return copies;
  }

  bool happens(SwarmFault kind) {
    if (has(kind) && messages_.uniform() < options_.per_message) {
      count(kind);
      return true;
    }
    return false;
  }

  Duration late() {
    return Duration(static_cast<Duration::rep>(
        messages_.exponential(static_cast<double>(options_.delay.count()))));
  }

  // ---- when all faults have ended ----

  void restore() {
    note([] { return std::string("everything is restored"); });
    dies_when_it_tells_ = false;
    for (ft::ReplicaId id = 0; id < replicas_.size(); ++id) {
      world_.set_slowdown(id, 1);
      for (ft::ReplicaId other = 0; other < id; ++other) {
        world_.mend_link(id, other);
      }
      if (!world_.runs(id) || world_.hangs(id) || replicas_[id].leaves) {
        const auto held =
            world_.runs(id) ? world_.replica(id)->held() : drawn_state(id);
        start(id, held && held->step > 0 ? held : std::nullopt);
      }
    }
    if (checks_.log_is_lost()) {
      world_.run_until(world_.now() + 10 * kSecond);
    }
    if (somebody_holds()) {
      return;
    }
    if (checks_.log_losses() == 0) {
      start(0, replicas_[0].checkpoint);  // An operator does this.
      return;
    }
    // An operator ends all replicas, and begins a new run with the newest state.
    lose_log();
    std::optional<ft::StateId> newest;
    for (ft::ReplicaId id = 0; id < replicas_.size(); ++id) {
      newest = std::max(newest, world_.replica(id)->held());
    }
    for (ft::ReplicaId id = 0; id < replicas_.size(); ++id) {
      start(id, newest);
    }
    world_.run_until(world_.now() + kSecond);
  }

  bool somebody_holds() const {
    for (ft::ReplicaId id = 0; id < replicas_.size(); ++id) {
      const auto* one = world_.replica(id);
      if (one != nullptr && one->held() && world_.log().knows(*one->held())) {
        return true;
      }
    }
    return false;
  }

  // Several times each of the longest waits that there are.
  Duration patience() const {
    const auto& rules = options_.world.coordinator;
    constexpr int kTimes = 5;
    constexpr int kSteps = 60;
    return kTimes *
        (rules.hold_time + 4 * rules.join_timeout + rules.reconnect_timeout +
         rules.backoff_max + rules.vote_timeout + options_.world.times.fetch +
         5 * kSecond) +
        kSteps * (options_.world.times.step + options_.world.times.reduce);
  }

  void goes_on() {
    constexpr std::int64_t kMore = 10;
    const auto steps = checks_.commits();
    const auto end = world_.now() + patience();
    while (checks_.commits() < steps + kMore || !missing().empty()) {
      SHERD_CHECK(
          world_.now() < end, "Liveness: ", checks_.commits() - steps,
          " steps in ", sherd::seconds(patience()), " s without faults; ",
          missing());
      world_.run_until(world_.now() + options_.world.times.step / 2);
    }
    // Nobody knows which steps before a lost log took which samples.
    SHERD_CHECK(
        checks_.log_losses() > 0 || checks_.samples_left_out() == 0,
        "S6: ", checks_.samples_left_out(), " samples are trained by no step");
  }

  // Why some replica is no member that holds the canonical state or the one before it.
  std::string missing() const {
    const auto& log = world_.log();
    for (ft::ReplicaId id = 0; id < replicas_.size(); ++id) {
      const auto* one = world_.replica(id);
      if (one == nullptr) {
        return str("replica ", id, " has ended");
      }
      const auto* member = ft::find(log.members, id, world_.incarnation(id));
      if (member == nullptr || member->samples.empty()) {
        return str(
            "replica ", id, member == nullptr ? " is no member" : " follows");
      }
      if (!one->held() || !log.on_chain(*one->held()) ||
          one->held()->step + 1 < log.canonical->step) {
        return str("replica ", id, " does not hold the canonical state");
      }
    }
    return {};
  }

  template <typename Text>
  void note(Text text) {
    if (traced_) {
      last_.push_back(str(sherd::seconds(world_.now()), " s: ", text()));
      if (last_.size() > kLast) {
        last_.pop_front();
      }
    }
  }

  const SwarmOptions options_;
  const std::int64_t steps_;
  const bool traced_;
  Random random_;
  Random messages_;
  SimulatedWorld world_;
  SwarmChecks checks_;
  std::vector<Entry> replicas_;
  std::vector<bool> lost_before_;  // Indexed by replica and direction.
  bool faults_ = false;
  bool dies_when_it_tells_ = false;
  std::optional<int> told_before_death_;
  std::deque<std::string> last_;
  SwarmResult result_;
};

}  // namespace

SwarmResult run_swarm(std::uint64_t seed, std::int64_t steps, bool traced) {
  return SwarmRun(seed, steps, traced).run();
}

}  // namespace sherd::sim
