// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/recovery.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "ft/protocol/history.h"

namespace sherd::ft {
namespace {

using Answers = std::vector<const Report*>;

const Report& newest_of(const Answers& answers) {
  return **std::ranges::max_element(answers, [](const auto* a, const auto* b) {
    return age_of(*a->remembers) < age_of(*b->remembers);
  });
}

// Why the answers contradict each other; empty if they do not.
std::string contradiction(const Answers& answers) {
  const auto& first = *answers.front();
  for (const auto* one : answers) {
    const auto name = name_of(one->replica);
    if (!one->remembers) {
      return str(name, " has still to say what it remembers");
    }
    if (one->run != first.run) {
      return str(
          name_of(first.replica), " is of run ", first.run, " and ", name,
          " of run ", one->run, ": end those that are not to go on");
    }
    if (one->config != first.config) {
      return str(
          name_of(first.replica), " has configuration ", first.config, " and ",
          name, " has ", one->config, ": end those that are not to go on");
    }
  }
  return {};
}

// All replicas that were in the run, as known by the answer that has heard of the most starts. A
// log that was recovered from replicas starts that count again.
const std::vector<IncarnationRecord>& lives_of(const Answers& answers) {
  const auto age = [](const Report* one) {
    return std::make_pair(one->remembers->term, one->remembers->starts);
  };
  return (*std::ranges::max_element(
              answers,
              [&](const auto* a, const auto* b) { return age(a) < age(b); }))
      ->remembers->lives;
}

// "replica 1, replica 2 and 5 more".
std::string names_of(const std::vector<ReplicaId>& replicas) {
  constexpr std::size_t kNames = 4;
  std::string names;
  for (std::size_t i = 0; i < std::min(kNames, replicas.size()); ++i) {
    names += str(i == 0 ? "" : ", ", name_of(replicas[i]));
  }
  if (replicas.size() > kNames) {
    names += str(" and ", replicas.size() - kNames, " more");
  }
  return names;
}

// Whether it is the last incarnation of its replica.
bool is_last(
    const Report& answer, const std::vector<IncarnationRecord>& lives) {
  const auto found = std::ranges::lower_bound(
      lives, answer.replica, {}, &IncarnationRecord::replica);
  return found != lives.end() &&
      *found == IncarnationRecord{answer.replica, answer.incarnation};
}

// A replica that was in the run may have made steps of which the others have not heard. If a former
// incarnation answers, nobody knows what the last one has done.
std::string who_is_missing(
    const RecoveryQuestion& question,
    const std::vector<IncarnationRecord>& lives) {
  std::set<ReplicaId> here;
  for (const auto& [replica, loaded] : question.fresh) {
    here.insert(replica);
  }
  for (const auto* one : question.answers) {
    if (is_last(*one, lives)) {
      here.insert(one->replica);
    }
  }
  for (const auto replica : question.away) {
    here.erase(replica);
  }
  std::vector<ReplicaId> missing;
  for (const auto& life : lives) {
    if (!here.contains(life.replica)) {
      missing.push_back(life.replica);
    }
  }
  if (!missing.empty()) {
    return names_of(missing);
  }
  const auto count = static_cast<int>(here.size());
  return count < question.replicas_start
      ? str(question.replicas_start - count, " more, of ",
            question.replicas_start)
      : std::string();
}

// The commit of the step after the newest view, if that step was reduced and enough replicas have
// its sum.
std::optional<CommitRecord> voted_commit(
    const RecoveryQuestion& question, const RunView& newest) {
  if (newest.stage != EpochStage::kRunning) {
    return std::nullopt;  // Nothing in this epoch is committed any more.
  }
  CommitRecord record;
  record.participants = newest.members;
  auto& commit = record.commit;
  commit.attempt = {newest.epoch, newest.canonical.step + 1};
  commit.base = newest.canonical;
  std::set<std::uint64_t> sums;
  int votes = 0;
  for (const auto& member : newest.members) {
    const auto answer =
        std::ranges::find_if(question.answers, [&](const Report* one) {
          return one->replica == member.replica &&
              one->incarnation == member.incarnation;
        });
    if (answer == question.answers.end()) {
      ++votes;  // It has died and may have voted.
      continue;
    }
    const auto& vote = (*answer)->vote;
    if (vote && vote->attempt == commit.attempt && vote->base == commit.base &&
        !(*answer)->remembers->wrong) {
      ++votes;
      sums.insert(vote->gradients);
    }
  }
  // Sums that differ are not committed.
  if (sums.size() != 1 || votes < std::max(1, question.replicas_min)) {
    return std::nullopt;
  }
  commit.gradients = *sums.begin();
  for (const auto& member : newest.members) {
    commit.samples += count_of(member.samples);
    record.next.push_back({member.replica, member.incarnation, {}});
  }
  commit.result = result_of(record);
  return record;
}

RecoveryRecord record_of(
    const RecoveryQuestion& question,
    const Report& newest,
    const std::vector<IncarnationRecord>& lives) {
  const auto& view = *newest.remembers;
  RecoveryRecord record;
  record.config = newest.config;
  record.epoch = view.epoch;
  record.members = view.members;
  record.lives = lives;
  record.first =
      view.recent.empty() ? view.canonical : view.recent.front().base;
  record.commits = view.recent;
  record.consumed = view.consumed;
  std::set<StateId> known = {record.first};
  for (const auto& commit : record.commits) {
    known.insert(commit.result);
  }
  const auto give_up = [&](const std::optional<StateId>& held) {
    if (held && held->step > record.first.step && known.insert(*held).second) {
      record.given_up.push_back(*held);
    }
  };
  for (const auto* one : question.answers) {
    give_up(one->held);
  }
  // A checkpoint may hold a step that was rolled back.
  for (const auto& [replica, loaded] : question.fresh) {
    if (loaded && loaded->step <= view.canonical.step) {
      give_up(loaded);
    }
  }
  return record;
}

// Why no log can continue from the recovery; empty if one can.
std::string refusal_of(const Recovery& recovery, const StateId& canonical) {
  History history;
  try {
    append(history, TermRecord{recovery.term + 1, recovery.run});
    append(history, *recovery.record);
    if (recovery.record->canonical() != canonical) {
      return "the commits that are remembered do not lead to the last state";
    }
    if (recovery.commit) {
      append(history, *recovery.commit);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// A replica that has loaded a later step than all that the others remember.
std::string who_knows_more(
    const RecoveryQuestion& question,
    const Recovery& recovery,
    const StateId& canonical) {
  for (const auto& [replica, loaded] : question.fresh) {
    const bool is_made_again =
        recovery.commit && loaded == recovery.commit->commit.result;
    if (loaded && loaded->step > canonical.step && !is_made_again) {
      return str(
          name_of(replica), " has loaded ", text_of(*loaded),
          ", and the others remember none after ", text_of(canonical),
          ": end it, and start it without this checkpoint, or end all replicas "
          "and begin with it");
    }
  }
  return {};
}

}  // namespace

Recovery recovery_of(const RecoveryQuestion& question) {
  const auto& answers = question.answers;
  Recovery recovery;
  recovery.run = answers.front()->run;
  recovery.waits_for = contradiction(answers);
  if (!recovery.waits_for.empty()) {
    return recovery;
  }
  const auto& lives = lives_of(answers);
  const auto& newest = newest_of(answers);
  const auto& canonical = newest.remembers->canonical;
  const auto missing = who_is_missing(question, lives);
  if (!missing.empty()) {
    recovery.waits_for =
        str("run ", recovery.run, " goes on from ", text_of(canonical),
            " when all replicas that were ever in it are here, or have started "
            "anew; still to come: ",
            missing);
    return recovery;
  }
  for (const auto* one : answers) {
    recovery.term = std::max(recovery.term, one->remembers->term);
  }
  recovery.record = record_of(question, newest, lives);
  recovery.commit = voted_commit(question, *newest.remembers);
  recovery.waits_for = refusal_of(recovery, canonical);
  if (recovery.waits_for.empty()) {
    recovery.waits_for = who_knows_more(question, recovery, canonical);
  }
  if (!recovery.waits_for.empty()) {
    recovery.record.reset();
    recovery.commit.reset();
  }
  return recovery;
}

}  // namespace sherd::ft
