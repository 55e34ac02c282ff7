// SPDX-License-Identifier: Apache-2.0
//
// The states of the protocol's machines as words, to tell one state from another. Thread rule: pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include "ft/protocol/coordinator.h"
#include "ft/protocol/replica.h"

namespace sherd::ft {

// Encodes everything that decides as numbers, without the texts.
class ModelAccess {
 public:
  using StateWords = std::vector<std::uint64_t>;

  static void add(StateWords& words, std::uint64_t number) {
    words.push_back(number);
  }
  static void add(StateWords& words, const Epoch& epoch) {
    words.insert(words.end(), {epoch.term, epoch.number});
  }
  static void add(StateWords& words, const StateId& state) {
    words.insert(
        words.end(),
        {static_cast<std::uint64_t>(state.step), state.lineage.high,
         state.lineage.low});
  }
  static void add(StateWords& words, const Attempt& attempt) {
    add(words, attempt.epoch);
    words.push_back(static_cast<std::uint64_t>(attempt.step));
  }
  static void add(StateWords& words, std::int64_t number) {
    words.push_back(static_cast<std::uint64_t>(number));
  }
  static void add(StateWords& words, const std::vector<SampleRange>& samples) {
    words.push_back(samples.size());
    for (const auto& range : samples) {
      words.insert(
          words.end(),
          {static_cast<std::uint64_t>(range.begin),
           static_cast<std::uint64_t>(range.end)});
    }
  }
  static void add(StateWords& words, const Vote& vote) {
    add(words, vote.attempt);
    add(words, vote.base);
    words.push_back(vote.gradients);
  }
  static void add(StateWords& words, const StateDigest& digest) {
    add(words, digest.state);
    words.insert(words.end(), {digest.digest, digest.copied ? 1U : 0U});
  }
  static void add(StateWords& words, const BadGradients& bad) {
    add(words, bad.base);
    add(words, bad.samples);
    words.push_back(bad.fault.stop ? 1 : 0);
  }
  static void add(StateWords& words, const Suspicion& suspicion) {
    add(words, suspicion.epoch);
    words.push_back(suspicion.accused);
    words.push_back(suspicion.noticed_by ? *suspicion.noticed_by + 1 : 0);
  }
  static void add(StateWords& words, const Commit& commit) {
    add(words, commit.attempt);
    add(words, commit.base);
    add(words, commit.result);
    words.push_back(commit.gradients);
    add(words, commit.samples);
  }
  static void add(StateWords& words, const Member& member) {
    words.insert(words.end(), {member.replica, member.incarnation});
    add(words, member.samples);
    add(words, member.left_out);
  }
  template <typename T>
  static void add(StateWords& words, const std::optional<T>& maybe) {
    words.push_back(maybe ? 1 : 0);
    if (maybe) {
      add(words, *maybe);
    }
  }
  static void add(StateWords& words, const std::vector<Member>& members) {
    words.push_back(members.size());
    for (const auto& member : members) {
      add(words, member);
    }
  }
  static void add(StateWords& words, const Instant& instant) {
    words.push_back(static_cast<std::uint64_t>(instant.count()));
  }
  static void add(StateWords& words, const EpochMembers& planned) {
    add(words, planned.epoch);
    add(words, planned.members);
  }
  static void add(StateWords& words, const Report& report) {
    words.insert(words.end(), {report.run, report.replica, report.incarnation});
    add(words, report.held);
    add(words, report.joined);
    add(words, report.vote);
    add(words, report.suspicion);
    add(words, report.digest);
    add(words, report.bad_gradients);
    words.push_back((report.leaving ? 1U : 0U) + 2 * report.progress.serial);
    add(words, report.remembers);
  }
  static void add(StateWords& words, const RunView& view) {
    words.push_back(view.term);
    add(words, view.canonical);
    add(words, static_cast<std::int64_t>(view.recent.size()));
    for (const auto& commit : view.recent) {
      add(words, commit);
    }
    add(words, view.epoch);
    words.push_back(static_cast<std::uint64_t>(view.stage));
    add(words, view.members);
    add(words, view.planned);
    add(words, view.wrong);
    words.push_back(view.fenced.empty() ? 0 : 1);
    words.insert(words.end(), {view.starts, view.asks ? 1U : 0U});
  }
  static void add(StateWords& words, const History& history) {
    words.push_back(history.term);
    for (const auto& [replica, lives] : history.lives) {
      words.insert(words.end(), {replica, lives.current, lives.former.size()});
    }
    add(words, history.epoch);
    add(words, history.canonical);
    add(words, history.commit());
    add(words, history.members);
    add(words, history.consumed.ranges());
    words.push_back(history.lost.size());
  }
  static void add(StateWords& words, const Coordinator& all) {
    add(words, all.history_);
    words.push_back(static_cast<std::uint64_t>(all.stage_));
    for (const auto& [replica, known] : all.replicas_) {
      add(words, known.report);
      words.push_back((known.connected ? 1U : 0U) + (known.hangs ? 2U : 0U));
      add(words, known.wrong);
      add(words, static_cast<std::int64_t>(known.bad_gradients));
      add(words, known.out_until);
      add(words, known.backoff);
      add(words, static_cast<std::int64_t>(known.failed_joins));
      add(words, known.member_since);
    }
    for (const auto& [life, report] : all.memories_) {
      add(words, report);
    }
    add(words, all.planned_);
    words.push_back(all.number_);
    words.push_back(all.complaint_.empty() ? 0 : 1);
    words.push_back(all.undecided_digests_.empty() ? 0 : 1);
    add(words, static_cast<std::int64_t>(all.ambiguous_sums_));
    add(words, static_cast<std::int64_t>(all.steps_without_gradients_));
    for (const auto& [replica, suspected] : all.suspected_) {
      words.push_back(replica);
      words.push_back(static_cast<std::uint64_t>(suspected.epochs));
      add(words, suspected.last);
    }
    for (const auto& [ends, link] : all.link_history_.all()) {
      words.insert(words.end(), {ends.first, ends.second});
      words.push_back(static_cast<std::uint64_t>(link.suspected.epochs));
      add(words, link.suspected.last);
      add(words, static_cast<std::int64_t>(link.slow_steps));
    }
    add(words, all.reorder_at_);
    for (const auto& link : all.broken_links_) {
      words.insert(words.end(), {link.accused, link.noticed_by});
    }
    words.push_back(all.broken_links_.size());
    add(words, all.started_);
    words.push_back(all.broken_because_.empty() ? 0 : 1);
    add(words, all.broken_since_);
    add(words, all.too_few_since_);
    add(words, all.form_at_);
    add(words, all.start_at_);
    add(words, all.reconnect_until_);
    add(words, all.join_until_);
    add(words, all.plan_until_);
    add(words, all.first_vote_);
    add(words, all.lost_since_);
  }
  static void add(StateWords& words, const Replica& one) {
    add(words, one.report());
    add(words, one.view_);
    add(words, one.joining_);
    for (const auto& epoch : one.joined_) {
      add(words, epoch);
    }
    add(words, one.abandoned_epoch_);
    add(words, one.samples_);
    words.push_back(one.serial_ * 2 + (one.stopped_ ? 1U : 0U));
    words.push_back(one.faulty_serial_.value_or(0));
    add(words, one.reducing_);
    add(words, one.applying_);
    words.push_back(one.catching_up_ ? 1 : 0);
    if (one.catching_up_) {
      add(words, one.catching_up_->target);
      add(words, one.catching_up_->fetched);
    }
    words.push_back(one.asked_ ? 1 : 0);
    words.push_back(one.installs_ * 2 + (one.installing_ ? 1U : 0U));
  }

  static const Report& last_report(const Coordinator& one, ReplicaId replica) {
    return one.replicas_.at(replica).report;
  }
  // Whether the replica counts and hangs, as far as the coordinator knows.
  static bool hangs(
      const Coordinator& one, ReplicaId replica, Incarnation incarnation) {
    return one.counts(replica, incarnation) && one.replicas_.at(replica).hangs;
  }
  // Whether the replica counts, or has said what it remembers.
  static bool is_there(
      const Coordinator& one, ReplicaId replica, Incarnation incarnation) {
    return one.counts(replica, incarnation) ||
        one.memories_.contains({replica, incarnation});
  }
  static void find_slow(Coordinator& one, ReplicaId from, ReplicaId to) {
    for (int step = 0; step < LinkHistory::kStepsUntilSlow; ++step) {
      // The other links are between replicas that do not exist.
      one.link_history_.judge(
          {{std::minmax(from, to), 1},
           {{from, 90}, 9},
           {{to, 91}, 9},
           {{92, 93}, 9}});
    }
  }
  static std::uint64_t serial(const Replica& one) { return one.serial_; }
  // Whether the replica no longer takes part in what is reduced in the epoch.
  static bool has_left(const Replica& one, const Epoch& epoch) {
    return one.abandoned_epoch_ >= epoch;
  }
};

}  // namespace sherd::ft
