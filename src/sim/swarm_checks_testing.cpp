// SPDX-License-Identifier: Apache-2.0
#include "sim/swarm_checks_testing.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/check.h"

namespace sherd::sim {
namespace {

std::uint64_t word_of(Instant at) {
  return static_cast<std::uint64_t>(at.count());
}

void add(Hash64& digest, const ft::StateId& state) {
  digest.add(static_cast<std::uint64_t>(state.step));
  digest.add(state.lineage.high).add(state.lineage.low);
}

}  // namespace

SwarmChecks::SwarmChecks(
    const SimulatedWorldOptions& options, Duration informed_after)
    : options_(options),
      informed_after_(informed_after),
      current_(static_cast<std::size_t>(options.replicas)),
      seen_(static_cast<std::size_t>(options.replicas)) {}

std::size_t SwarmChecks::replicas_min() const {
  return static_cast<std::size_t>(
      std::max(1, options_.coordinator.replicas_min));
}

bool SwarmChecks::on_chain(const ft::StateId& state) const {
  const auto offset = chain_.empty() ? std::int64_t{-1}
                                     : state.step - chain_.front().state.step;
  return offset >= 0 && offset < static_cast<std::int64_t>(chain_.size()) &&
      chain_[static_cast<std::size_t>(offset)].state == state;
}

// ---- decided records ----

void SwarmChecks::decided(
    const SimulatedWorld& world, const ft::Record& record) {
  digest_.add(record.index()).add(word_of(world.now()));
  if (const auto* commit = std::get_if<ft::CommitRecord>(&record)) {
    const auto voters = std::count_if(
        commit->participants.begin(), commit->participants.end(),
        [&](const ft::Member& one) {
          return world.coordinator()->counts(one.replica, one.incarnation);
        });
    SHERD_CHECK(
        log_is_lost_ || static_cast<std::size_t>(voters) >= replicas_min(),
        "S5: ", ft::text_of(commit->commit.attempt), " is committed while ",
        voters, " of its members are connected, fewer than ", replicas_min());
  } else if (const auto* back = std::get_if<ft::RollbackRecord>(&record)) {
    check_rollback(world, *back);
  }
}

// Nobody holds a step that is rolled back, or the sum that makes it, as far as the coordinator can
// know.
void SwarmChecks::check_rollback(
    const SimulatedWorld& world, const ft::RollbackRecord& record) const {
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const auto id = static_cast<ft::ReplicaId>(i);
    const auto* one = world.replica(id);
    // A replica that has just started was not seen yet.
    if (one == nullptr || !seen_[i].held ||
        seen_[i].incarnation != world.incarnation(id)) {
      continue;
    }
    const bool told = world.coordinator()->counts(id, seen_[i].incarnation) ||
        world.now() >
            std::max(seen_[i].held_since, coordinator_since_) + informed_after_;
    const bool loses =
        on_chain(*seen_[i].held) && seen_[i].held->step > record.canonical.step;
    SHERD_CHECK(
        !told || !loses, "S8: ", ft::text_of(*seen_[i].held),
        " is rolled back to ", ft::text_of(record.canonical), " while replica ",
        i, " holds it");
    const auto& vote = one->report().vote;
    SHERD_CHECK(
        !world.coordinator()->counts(id, seen_[i].incarnation) || !vote ||
            vote->attempt != last_attempt_ || vote->base != *seen_[i].held ||
            chain_.back().state != record.lost ||
            chain_.back().state.step != last_attempt_.step,
        "S8: ", ft::text_of(record.lost), " is rolled back while replica ", i,
        " has its sum");
  }
}

// ---- records on disk ----

struct SwarmChecks::Written {
  SwarmChecks& all;
  const SimulatedWorld& world;

  void operator()(const ft::TermRecord& record) const {
    SHERD_CHECK(
        record.term > all.term_, "Terms: ", record.term, " follows ",
        all.term_);
    all.term_ = record.term;
  }
  void operator()(const ft::IncarnationRecord& record) const {
    auto& current = all.current_[record.replica];
    // After a log was lost, the new one has this record again.
    SHERD_CHECK(
        record.incarnation > current ||
            (all.log_losses_ > 0 && record.incarnation == current),
        "Fencing: incarnation ", record.incarnation, " of replica ",
        record.replica, " replaces ", current, ", which started later");
    current = record.incarnation;
  }
  void operator()(const ft::EpochRecord& record) const {
    all.begin_epoch(record.epoch);
    all.begin_at(record);
    SHERD_CHECK(
        record.base == all.chain_.back().state,
        "S8: ", ft::text_of(record.epoch), " begins at ",
        ft::text_of(record.base), " and not at ",
        ft::text_of(all.chain_.back().state));
    SHERD_CHECK(
        record.members.size() >= all.replicas_min(),
        "S5: ", ft::text_of(record.epoch), " has ", record.members.size(),
        " members, fewer than ", all.replicas_min());
    for (const auto& one : record.members) {
      SHERD_CHECK(
          one.incarnation == all.current_[one.replica],
          "Fencing: ", ft::text_of(record.epoch), " has incarnation ",
          one.incarnation, " of replica ", one.replica, ", not ",
          all.current_[one.replica]);
    }
  }
  void operator()(const ft::CommitRecord& record) const { all.commit(record); }
  void operator()(const ft::RollbackRecord& record) const {
    all.begin_epoch(record.epoch);
    all.roll_back(record);
  }
  void operator()(const ft::RecoveryRecord& record) const {
    all.recover(world, record);
  }
};

void SwarmChecks::written(
    const SimulatedWorld& world, const ft::Record& record) {
  if (const auto next = std::exchange(made_again_, std::nullopt)) {
    const auto* commit = std::get_if<ft::CommitRecord>(&record);
    SHERD_CHECK(
        commit != nullptr && commit->commit.result == *next,
        "S8: ", ft::text_of(*next),
        " is forgotten with the log, while a replica holds it");
  }
  std::visit(Written{*this, world}, record);
}

// ---- a log that is lost ----

void SwarmChecks::log_lost() {
  log_is_lost_ = true;
  ++log_losses_;
  term_ = 0;
  epoch_ = {};
}

// The run goes on from the last commit, or from one after which no living replica holds anything. A
// state that a replica has loaded may be made again, in the next record.
void SwarmChecks::recover(
    const SimulatedWorld& world, const ft::RecoveryRecord& record) {
  const auto& canonical = record.canonical();
  SHERD_CHECK(
      log_is_lost_ && on_chain(canonical), "S8: ", ft::text_of(canonical),
      " is recovered, and ", ft::text_of(chain_.back().state), " was the last");
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const auto* one = world.replica(static_cast<ft::ReplicaId>(i));
    if (one == nullptr || !one->held() || !on_chain(*one->held()) ||
        one->held()->step <= canonical.step) {
      continue;
    }
    SHERD_CHECK(
        one->held()->step == canonical.step + 1, "S8: ", ft::text_of(canonical),
        " is recovered while replica ", i, " holds ",
        ft::text_of(*one->held()));
    made_again_ = one->held();
  }
  go_back_to(canonical);
  log_is_lost_ = false;
  ++recoveries_;
  epoch_ = record.epoch;
  last_attempt_ = {record.epoch, canonical.step};
}

void SwarmChecks::begin_epoch(const ft::Epoch& epoch) {
  SHERD_CHECK(
      epoch > epoch_ && epoch.term == term_, "Epochs: ", ft::text_of(epoch),
      " follows ", ft::text_of(epoch_), " in term ", term_);
  epoch_ = epoch;
}

// A run that begins after step 0 has trained all samples before the first one it takes.
void SwarmChecks::begin_at(const ft::EpochRecord& first) {
  if (!chain_.empty() && !log_is_lost_) {
    return;
  }
  if (std::exchange(log_is_lost_, false)) {
    chain_.clear();
    rolled_back_.clear();
    taken_.clear();
    last_attempt_ = {};
  }
  std::int64_t begin = first.members.front().samples.front().begin;
  for (const auto& one : first.members) {
    begin = std::min(begin, one.samples.front().begin);
  }
  take({{0, begin}});
  chain_.push_back({first.base, {}, {}});
  committed_.insert(first.base);
}

void SwarmChecks::commit(const ft::CommitRecord& record) {
  const auto& commit = record.commit;
  const auto name = ft::text_of(commit.attempt);
  SHERD_CHECK(
      commit.attempt > last_attempt_ && commit.attempt.epoch == epoch_,
      "S1: ", name, " is committed after ", ft::text_of(last_attempt_), ", in ",
      ft::text_of(epoch_));
  const auto& tip = chain_.back().state;
  SHERD_CHECK(
      commit.base == tip && commit.result.step == tip.step + 1, "S8: ", name,
      " continues ", ft::text_of(commit.base), " and not ", ft::text_of(tip));
  SHERD_CHECK(
      record.participants.size() >= replicas_min(), "S5: ", name, " has ",
      record.participants.size(), " members, fewer than ", replicas_min());
  SHERD_CHECK(
      commit.gradients ==
          SimulatedWorld::digest_of_sum(
              commit.attempt, record.participants, commit.base.lineage),
      "S4: the sum of ", name,
      " is not that of its members, of their samples and of its base");
  std::vector<ft::SampleRange> samples;
  for (const auto& one : record.participants) {
    SHERD_CHECK(
        one.incarnation <= current_[one.replica], "Fencing: ", name,
        " has an unknown start of replica ", one.replica);
    samples.insert(samples.end(), one.samples.begin(), one.samples.end());
  }
  SHERD_CHECK(
      !samples.empty() && ft::count_of(samples) == commit.samples, "S6: ", name,
      " says ", commit.samples, " samples and has ", ft::count_of(samples));
  take(samples);
  last_attempt_ = commit.attempt;
  chain_.push_back({commit.result, commit.base, std::move(samples)});
  committed_.insert(commit.result);
  ++commits_;
}

void SwarmChecks::roll_back(const ft::RollbackRecord& record) {
  SHERD_CHECK(
      record.lost == chain_.back().state && record.lost != record.canonical,
      "S8: ", ft::text_of(record.lost), " is rolled back, and ",
      ft::text_of(chain_.back().state), " was the last");
  SHERD_CHECK(
      committed_.contains(record.canonical),
      "S2: ", ft::text_of(record.canonical), " was never committed");
  ++rollbacks_;
  // The steps that led there, back to where they leave the chain.
  std::vector<Step> way;
  auto to = record.canonical;
  while (!on_chain(to)) {
    way.push_back(rolled_back_.at(to));
    to = way.back().base;
  }
  go_back_to(to);
  for (auto one = way.rbegin(); one != way.rend(); ++one) {
    take(one->samples);
    chain_.push_back(*one);
  }
}

void SwarmChecks::go_back_to(const ft::StateId& state) {
  while (chain_.back().state != state) {
    give_back(chain_.back().samples);
    rolled_back_.insert_or_assign(chain_.back().state, chain_.back());
    chain_.pop_back();
  }
}

// ---- samples ----

void SwarmChecks::take(const std::vector<ft::SampleRange>& samples) {
  for (const auto& range : samples) {
    for (auto i = static_cast<std::size_t>(range.begin);
         i < static_cast<std::size_t>(range.end); ++i) {
      taken_.resize(std::max(taken_.size(), i + 1));
      SHERD_CHECK(!taken_[i], "S6: sample ", i, " is trained twice");
      taken_[i] = true;
    }
  }
}

void SwarmChecks::give_back(const std::vector<ft::SampleRange>& samples) {
  for (const auto& range : samples) {
    std::fill(taken_.begin() + range.begin, taken_.begin() + range.end, false);
  }
}

std::int64_t SwarmChecks::samples_left_out() const {
  const auto last = std::find(taken_.rbegin(), taken_.rend(), true);
  return std::count(last, taken_.rend(), false);
}

// ---- what replicas hold ----

void SwarmChecks::after_event(const SimulatedWorld& world) {
  const bool runs = world.coordinator() != nullptr;
  if (runs != std::exchange(coordinator_runs_, runs)) {
    coordinator_since_ = world.now();
  }
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const auto id = static_cast<ft::ReplicaId>(i);
    if (const auto* one = world.replica(id)) {
      check_replica(world, id, *one);
    }
  }
}

void SwarmChecks::check_replica(
    const SimulatedWorld& world, ft::ReplicaId id, const ft::Replica& one) {
  auto& seen = seen_[id];
  const auto incarnation = world.incarnation(id);
  if (seen.incarnation != incarnation) {
    seen = {incarnation, {}, {}, 0, {}};
  }
  const auto& view = one.view();
  SHERD_CHECK(
      view.term > seen.term ||
          (view.term == seen.term && view.epoch >= seen.epoch),
      "S7: replica ", id, " goes back from ", ft::text_of(seen.epoch), " to ",
      ft::text_of(view.epoch));
  seen.term = view.term;
  seen.epoch = view.epoch;
  if (one.held() == seen.held) {
    return;
  }
  seen.held = one.held();
  seen.held_since = world.now();
  add(digest_, seen.held.value_or(ft::StateId()));
  digest_.add(id).add(word_of(world.now()));
  if (!seen.held || seen.held->step == 0) {
    return;  // Initial values that no step was made from.
  }
  SHERD_CHECK(
      chain_.empty() || committed_.contains(*seen.held), "S2: replica ", id,
      " holds ", ft::text_of(*seen.held), ", which was not committed");
  SHERD_CHECK(
      world.parameters(id) == seen.held->lineage, "S3: replica ", id,
      " says that it holds ", ft::text_of(*seen.held),
      ", and its parameters were made from others");
}

}  // namespace sherd::sim
