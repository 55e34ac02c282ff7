// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/history.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sherd::ft {
namespace {

// The states are sorted by step. Returns end() if the state is not among them.
std::vector<History::CommittedState>::const_iterator find(
    const std::vector<History::CommittedState>& past, const StateId& state) {
  const auto found = std::ranges::lower_bound(
      past, state.step, {}, [](const auto& one) { return one.state.step; });
  return found != past.end() && found->state == state ? found : past.end();
}

struct Append {
  History& history;

  void operator()(const TermRecord& record) const {
    SHERD_CHECK(
        record.term > history.term, "[ft] log: expected a term above ",
        history.term, ", found ", record.term);
    SHERD_CHECK(
        record.run != 0 && (history.run == record.run || history.past.empty()),
        "[ft] log: expected a term of run ", history.run, ", found one of ",
        record.run);
    history.term = record.term;
    history.run = record.run;
  }

  void operator()(const IncarnationRecord& record) const {
    auto& lives = history.lives[record.replica];
    SHERD_CHECK(
        record.incarnation != 0 && record.incarnation != lives.current &&
            !lives.former.contains(record.incarnation),
        "[ft] log: expected a new life of replica ", record.replica, ", found ",
        record.incarnation);
    if (lives.current != 0) {
      lives.former.insert(lives.current);
    }
    lives.current = record.incarnation;
  }

  void check_epoch(const Epoch& epoch) const {
    SHERD_CHECK(
        epoch > history.epoch && epoch.term == history.term,
        "[ft] log: expected an epoch of term ", history.term, " above ",
        text_of(history.epoch), ", found ", text_of(epoch));
  }

  // A run that begins after step 0 has trained all samples before the first one it takes.
  void take_before(const EpochRecord& first) const {
    std::optional<std::int64_t> begin;
    for (const auto& member : first.members) {
      for (const auto& range : member.samples) {
        begin = std::min(begin.value_or(range.begin), range.begin);
      }
    }
    if (first.base.step > 0 && begin.value_or(0) > 0) {
      history.past.back().samples = {{0, *begin}};
      history.consumed.add(history.past.back().samples);
    }
  }

  void operator()(const EpochRecord& record) const {
    check_epoch(record.epoch);
    if (!history.canonical) {
      history.canonical = record.base;
      history.config = record.config;
      history.past.push_back({record.base, std::nullopt, {}});
      take_before(record);
    }
    SHERD_CHECK(
        record.base == *history.canonical && record.config == history.config,
        "[ft] log: expected ", text_of(record.epoch), " to begin at ",
        text_of(*history.canonical), ", found ", text_of(record.base));
    history.epoch = record.epoch;
    history.members = record.members;
  }

  void operator()(const CommitRecord& record) const {
    const auto& commit = record.commit;
    SHERD_CHECK(
        history.canonical && commit.attempt.epoch == history.epoch &&
            commit.base == *history.canonical &&
            commit.attempt.step == commit.base.step + 1 &&
            commit.result == result_of(record),
        "[ft] log: expected a commit of ", text_of(history.epoch), ", found ",
        text_of(commit.attempt), " of ", text_of(commit.base));
    SampleSet taken;
    std::int64_t trained = 0;
    for (const auto& one : record.participants) {
      for (const auto* samples : {&one.samples, &one.left_out}) {
        history.consumed.add(*samples);
        taken.add(*samples);
      }
      trained += count_of(one.samples);
    }
    SHERD_CHECK(
        commit.samples == trained, "[ft] log: expected a commit of ", trained,
        " samples, found one of ", commit.samples);
    history.canonical = commit.result;
    history.members = record.next;
    history.past.push_back({commit.result, commit, taken.ranges()});
    if (history.past.size() >= 2 * kPastMin) {
      trim(history);
    }
  }

  void operator()(const RollbackRecord& record) const {
    check_epoch(record.epoch);
    SHERD_CHECK(
        history.canonical && record.lost == *history.canonical &&
            record.canonical != record.lost && history.knows(record.canonical),
        "[ft] log: expected a rollback of the last commit to another one, "
        "found one from ",
        text_of(record.lost), " to ", text_of(record.canonical));
    // The states that lead there from where the two branches part.
    std::vector<History::CommittedState> way;
    auto to = record.canonical;
    while (!history.on_chain(to)) {
      auto lost = history.lost.extract(to);
      SHERD_CHECK(
          !lost.empty() && lost.mapped().commit, "[ft] log: expected ",
          text_of(record.canonical), " to come from a state that is known, ",
          "found none before ", text_of(to));
      way.push_back(std::move(lost.mapped()));
      to = way.back().commit->base;
    }
    const auto stay = find(history.past, to) + 1;
    for (auto gone = stay; gone != history.past.cend(); ++gone) {
      history.lost.emplace(gone->state, *gone);
    }
    history.past.erase(stay, history.past.cend());
    history.past.insert(history.past.end(), way.rbegin(), way.rend());
    history.consumed = history.before_past;
    for (const auto& past : history.past) {
      history.consumed.add(past.samples);
    }
    history.epoch = record.epoch;
    history.canonical = record.canonical;
    history.members.clear();
  }

  // Which of these steps took which samples is not known, so a rollback gives none back.
  void operator()(const RecoveryRecord& record) const {
    SHERD_CHECK(
        history.past.empty() && record.epoch.term < history.term,
        "[ft] log: expected a recovery at its beginning, in a term above that "
        "of ",
        text_of(record.epoch), ", found one in term ", history.term);
    history.past.push_back(
        {record.first, std::nullopt, record.consumed.ranges()});
    for (const auto& commit : record.commits) {
      const auto& base = history.past.back().state;
      SHERD_CHECK(
          commit.base == base && commit.result.step == base.step + 1,
          "[ft] log: expected a commit of ", text_of(base), ", found one of ",
          text_of(commit.base));
      history.past.push_back({commit.result, commit, {}});
    }
    for (const auto& state : record.given_up) {
      history.lost.emplace(state, History::CommittedState{state, {}, {}});
    }
    for (const auto& life : record.lives) {
      auto& lives = history.lives[life.replica];
      if (lives.current == 0) {
        lives.current = life.incarnation;
      } else if (lives.current != life.incarnation) {
        lives.former.insert(life.incarnation);  // The replica has restarted.
      }
    }
    history.config = record.config;
    history.epoch = record.epoch;
    history.members = record.members;
    history.consumed = record.consumed;
    history.canonical = record.canonical();
  }
};

}  // namespace

bool History::on_chain(const StateId& state) const {
  return find(past, state) != past.end();
}

bool History::knows(const StateId& state) const {
  return on_chain(state) || lost.contains(state);
}

bool History::can_go_to(const StateId& state) const {
  const auto found = lost.find(state);
  return found != lost.end() ? found->second.commit.has_value()
                             : on_chain(state);
}

const std::optional<Commit>& History::commit() const {
  static const std::optional<Commit> kNone;
  return past.empty() ? kNone : past.back().commit;
}

std::vector<Commit> History::recent(std::size_t count) const {
  std::vector<Commit> commits;
  for (auto one = past.rbegin();
       one != past.rend() && one->commit && commits.size() < count; ++one) {
    commits.push_back(*one->commit);
  }
  std::ranges::reverse(commits);
  return commits;
}

void trim(History& history, std::size_t past_min) {
  if (history.past.size() <= past_min) {
    return;
  }
  const auto stay = history.past.cend() - static_cast<std::ptrdiff_t>(past_min);
  for (auto one = history.past.cbegin(); one != stay; ++one) {
    history.before_past.add(one->samples);
  }
  history.past.erase(history.past.cbegin(), stay);
  std::erase_if(
      history.lost, [](const auto& one) { return !one.second.commit; });
  forget_detached(history);
}

void forget_detached(History& history) {
  // In the order of steps, so that ancestors are visited before the states that they led to.
  std::erase_if(history.lost, [&](const auto& one) {
    const auto& commit = one.second.commit;
    return commit && !history.knows(commit->base);
  });
}

void append(History& history, const Record& record) {
  std::visit(Append{history}, record);
}

}  // namespace sherd::ft
