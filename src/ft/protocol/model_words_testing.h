// SPDX-License-Identifier: Apache-2.0
//
// States of the protocol's machines as words, to tell one from another. Thread
// rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include "ft/protocol/coordinator.h"
#include "ft/protocol/replica.h"

namespace sherd::ft {

// Everything that decides, as numbers; not the texts.
class ModelAccess {
 public:
  using Words = std::vector<std::uint64_t>;

  static void add(Words& words, std::uint64_t number) {
    words.push_back(number);
  }
  static void add(Words& words, const Epoch& epoch) {
    words.insert(words.end(), {epoch.term, epoch.number});
  }
  static void add(Words& words, const StateId& state) {
    words.insert(
        words.end(),
        {static_cast<std::uint64_t>(state.step), state.lineage.high,
         state.lineage.low});
  }
  static void add(Words& words, const Attempt& attempt) {
    add(words, attempt.epoch);
    words.push_back(static_cast<std::uint64_t>(attempt.step));
  }
  static void add(Words& words, const std::vector<SampleRange>& samples) {
    words.push_back(samples.size());
    for (const auto& range : samples) {
      words.insert(
          words.end(),
          {static_cast<std::uint64_t>(range.begin),
           static_cast<std::uint64_t>(range.end)});
    }
  }
  static void add(Words& words, const Vote& vote) {
    add(words, vote.attempt);
    add(words, vote.base);
    words.push_back(vote.gradients);
  }
  static void add(Words& words, const Suspicion& suspicion) {
    add(words, suspicion.epoch);
    words.push_back(suspicion.accused);
  }
  static void add(Words& words, const Commit& commit) {
    add(words, commit.attempt);
    add(words, commit.base);
    add(words, commit.result);
  }
  static void add(Words& words, const Member& member) {
    words.insert(words.end(), {member.replica, member.incarnation});
    add(words, member.samples);
  }
  template <typename T>
  static void add(Words& words, const std::optional<T>& maybe) {
    words.push_back(maybe ? 1 : 0);
    if (maybe) {
      add(words, *maybe);
    }
  }
  static void add(Words& words, const std::vector<Member>& members) {
    words.push_back(members.size());
    for (const auto& member : members) {
      add(words, member);
    }
  }
  static void add(Words& words, const Instant& instant) {
    words.push_back(static_cast<std::uint64_t>(instant.count()));
  }
  static void add(Words& words, const Report& report) {
    words.insert(words.end(), {report.replica, report.incarnation});
    add(words, report.held);
    add(words, report.joined);
    add(words, report.vote);
    add(words, report.suspicion);
    words.push_back(report.leaving ? 1 : 0);
  }
  static void add(Words& words, const Order& order) {
    words.push_back(order.term);
    add(words, order.canonical);
    add(words, order.commit);
    add(words, order.epoch);
    words.push_back(static_cast<std::uint64_t>(order.stage));
    add(words, order.members);
    words.push_back(order.fenced.empty() ? 0 : 1);
  }
  static void add(Words& words, const History& history) {
    words.push_back(history.term);
    add(words, history.epoch);
    add(words, history.canonical);
    add(words, history.commit);
    add(words, history.members);
    add(words, history.consumed.ranges());
  }
  static void add(Words& words, const Coordinator& all) {
    add(words, all.history_);
    words.push_back(static_cast<std::uint64_t>(all.phase_));
    for (const auto& [replica, known] : all.known_) {
      add(words, known.report);
      words.push_back((known.connected ? 1U : 0U) + (known.left_out ? 2U : 0U));
    }
    for (const auto& [replica, incarnation] : all.fenced_) {
      words.insert(words.end(), {replica, incarnation});
    }
    add(words, all.form_at_);
    add(words, all.join_until_);
    add(words, all.lost_since_);
  }
  static void add(Words& words, const Replica& one) {
    add(words, one.report());
    add(words, one.order_);
    add(words, one.joining_);
    add(words, one.samples_);
    words.push_back(
        (one.computed_ ? 1U : 0U) + (one.reducing_ ? 2U : 0U) +
        (one.stopped_ ? 4U : 0U));
    add(words, one.fetching_);
  }

  static bool reducing(const Replica& one) { return one.reducing_; }
  static const Order& order(const Replica& one) { return one.order_; }
};

}  // namespace sherd::ft
