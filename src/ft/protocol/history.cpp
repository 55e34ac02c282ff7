// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/history.h"

#include <algorithm>

#include "base/check.h"

namespace sherd::ft {
namespace {

constexpr std::size_t kPastMax = 16;

struct Append {
  History& history;

  void operator()(const TermRecord& record) const {
    SHERD_CHECK(
        record.term > history.term, "[ft] log: expected a term above ",
        history.term, ", found ", record.term);
    history.term = record.term;
  }

  void operator()(const EpochRecord& record) const {
    SHERD_CHECK(
        record.epoch > history.epoch && record.epoch.term == history.term,
        "[ft] log: expected an epoch of term ", history.term, " above ",
        text_of(history.epoch), ", found ", text_of(record.epoch));
    if (!history.canonical) {
      history.canonical = record.base;
      history.past.push_back({record.base, std::nullopt, {}});
    }
    SHERD_CHECK(
        record.base == *history.canonical, "[ft] log: expected ",
        text_of(record.epoch), " to begin at ", text_of(*history.canonical),
        ", found ", text_of(record.base));
    history.epoch = record.epoch;
    history.members = record.members;
  }

  void operator()(const CommitRecord& record) const {
    const auto& commit = record.commit;
    SHERD_CHECK(
        history.canonical && commit.attempt.epoch == history.epoch &&
            commit.base == *history.canonical &&
            commit.attempt.step == commit.base.step + 1 &&
            commit.result.step == commit.attempt.step &&
            commit.result.lineage ==
                next_lineage(
                    commit.base.lineage, commit.attempt, record.participants,
                    record.gradients),
        "[ft] log: expected a commit of ", text_of(history.epoch), ", found ",
        text_of(commit.attempt), " of ", text_of(commit.base));
    for (const auto& one : record.participants) {
      history.consumed.add(one.samples);
    }
    history.canonical = commit.result;
    history.commit = commit;
    history.members = record.next;
    history.past.push_back({commit.result, commit, history.consumed});
    if (history.past.size() > kPastMax) {
      history.past.erase(history.past.begin());
    }
  }

  void operator()(const RollbackRecord& record) const {
    const auto to = std::find_if(
        history.past.begin(), history.past.end(),
        [&](const auto& one) { return one.state == record.canonical; });
    SHERD_CHECK(
        history.canonical && record.lost == *history.canonical &&
            to != history.past.end(),
        "[ft] log: expected a rollback of the last commit to one before it, "
        "found one from ",
        text_of(record.lost), " to ", text_of(record.canonical));
    history.past.erase(to + 1, history.past.end());
    history.canonical = record.canonical;
    history.commit = history.past.back().commit;
    history.consumed = history.past.back().consumed;
    history.members.clear();
  }
};

}  // namespace

void append(History& history, const Record& record) {
  std::visit(Append{history}, record);
}

}  // namespace sherd::ft
