// SPDX-License-Identifier: Apache-2.0
//
// How a replica catches up: with the sum of the step after the one it holds if some replica still
// has it, otherwise with a whole state. All ranks fetch from their counterparts in several donors,
// which are asked for a snapshot at the same moment, so that most of them take it of the same
// state.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "ft/replica/leader.h"
#include "ft/replica/rank_agent.h"
#include "ft/transfer/chunk_plan.h"

namespace sherd::ft {
namespace {

// How many donors are asked, the furthest first. Each one that gives a state copies it.
constexpr std::size_t kDonorsMax = 4;
// How long to wait for the other donors' answers after the first one.
constexpr Duration kOthersMax = std::chrono::milliseconds(300);

// Whether the state led to canonical; others are not worth a fetch.
bool is_on_the_way(const RunView& view, const StateId& state) {
  return state == view.canonical ||
      std::ranges::any_of(view.recent, [&](const Commit& one) {
           return one.base == state || one.result == state;
         });
}

// Possible donors, those that have come furthest first; replicas begin with different ones. The
// view was made when a step was committed, so a member that held the same state then has the sum
// by now. Who holds the same and is no member has begun with the same checkpoint.
std::vector<LiveReplica> donors_for(
    const RunView& view,
    const CatchUpTask& task,
    ReplicaId self,
    bool wants_sum) {
  std::vector<LiveReplica> donors;
  for (const auto& peer : view.peers) {
    if (peer.replica == self || !peer.held) {
      continue;
    }
    const bool differs = peer.held != task.held;
    const bool is_member =
        find(view.members, peer.replica, peer.incarnation) != nullptr;
    if (wants_sum ? differs || is_member
                  : differs && is_on_the_way(view, *peer.held)) {
      donors.push_back(peer);
    }
  }
  if (!donors.empty()) {
    std::rotate(
        donors.begin(), donors.begin() + self % donors.size(), donors.end());
  }
  std::ranges::stable_sort(donors, [](const auto& a, const auto& b) {
    return a.held->step > b.held->step;
  });
  return donors;
}

}  // namespace

void Leader::on(const CatchUpTask& task) {
  others_.cancel();
  retry_.cancel();
  catch_up_ = CatchUpAttempt();
  catch_up_->task = task;
  catch_up_->wants_sum = task.held.has_value();
  try_next_donor();
}

void Leader::on(const StopCatchUpTask&) {
  catch_up_.reset();
  others_.cancel();
  retry_.cancel();
  send_all(StopCatchUpTask{});
}

// Tries the sums of a few donors first, because they are small, and then states. A replica that has
// just started mostly needs a state, which it must not have to ask hundreds of others for.
void Leader::try_next_donor() {
  if (!catch_up_->wants_sum) {
    ask_snapshots();
    return;
  }
  const auto donors =
      donors_for(machine_.view(), catch_up_->task, options_.rank.replica, true);
  while (catch_up_->tries < std::min(donors.size(), kDonorsMax)) {
    const auto& donor = donors[catch_up_->tries++];
    if (donor.addresses.size() == ranks()) {
      fetch_from({donor.addresses}, *catch_up_->task.held);
      return;
    }
  }
  catch_up_->wants_sum = false;
  catch_up_->tries = 0;
  ask_snapshots();
}

// Lets all ranks fetch this state, or the sum that was committed on it, from their counterparts.
void Leader::fetch_from(
    const std::vector<RankAddresses>& donors, const StateId& state) {
  catch_up_->serial = ++fetches_;
  catch_up_->answers.assign(ranks(), std::nullopt);
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    FetchTask task{catch_up_->serial, {}, state, catch_up_->wants_sum};
    for (const auto& donor : donors) {
      task.donors.push_back(donor[rank]);
    }
    send_(rank, task);
  }
}

void Leader::ask_snapshots() {
  const auto donors = donors_for(
      machine_.view(), catch_up_->task, options_.rank.replica, false);
  catch_up_->asked.clear();
  std::optional<std::int64_t> furthest;
  for (auto& next = catch_up_->tries;
       next < donors.size() && catch_up_->asked.size() < kDonorsMax; ++next) {
    const auto& donor = donors[next];
    if (furthest && donor.held->step + 1 < *furthest) {
      break;  // Its state would differ from the others'.
    }
    if (donor.addresses.size() == ranks()) {
      furthest = furthest.value_or(donor.held->step);
      catch_up_->asked.push_back({donor.addresses, nullptr, std::nullopt, {}});
    }
  }
  if (catch_up_->asked.empty()) {
    fetch_failed();
    return;
  }
  warm_up();
  const auto options = fetch_options(options_.rank, machine_.view().run);
  for (std::size_t i = 0; i < catch_up_->asked.size(); ++i) {
    const auto first = catch_up_->asked[i].addresses.front();
    catch_up_->asked[i].fetch = ask_snapshot(
        loop_, fetch_address_of(first), options,
        [this, i](const Result<StateId>& state) { heard_snapshot(i, state); });
  }
}

void Leader::heard_snapshot(std::size_t donor, const Result<StateId>& state) {
  auto& asked = catch_up_->asked;
  asked[donor].fetch.reset();
  if (state.ok()) {
    asked[donor].state = state.value();
  } else {
    asked[donor].failure = state.status().message();
  }
  const bool all = std::ranges::all_of(
      asked, [](const auto& one) { return one.fetch == nullptr; });
  if (all) {
    fetch_state();
  } else if (state.ok() && !others_.pending()) {
    others_ = loop_.after(kOthersMax, [this] { fetch_state(); });
  }
}

// Fetches the state that most of the asked donors offer, from those donors.
void Leader::fetch_state() {
  others_.cancel();
  std::vector<std::optional<StateId>> states;
  for (const auto& one : catch_up_->asked) {
    states.push_back(one.state);
  }
  const auto state = states[transfer::majority_of(states)];
  if (!state) {
    // All have failed. The first one's reason is the same in the next attempt, whichever is faster.
    catch_up_->failure = catch_up_->asked.front().failure;
    try_next_donor();
    return;
  }
  catch_up_->state = *state;
  std::vector<RankAddresses> donors;
  for (auto& one : catch_up_->asked) {
    if (one.state == state) {
      donors.push_back(std::move(one.addresses));
    }
  }
  fetch_from(donors, *state);
  catch_up_->asked.clear();
}

// Lets ranks compute with as many samples as a member has while they fetch a state. If the view has
// no such member yet, a later view may. A program that has computed before is already warm.
void Leader::warm_up() {
  if (!options_.warms_up || computed_ || !catch_up_ || catch_up_->wants_sum) {
    return;
  }
  const auto& members = machine_.view().members;
  const auto like = std::ranges::find_if(
      members, [](const Member& one) { return !one.samples.empty(); });
  if (like == members.end()) {
    return;
  }
  computed_ = true;
  send_all(ComputeTask{
      .serial = 0,
      .base = catch_up_->task.held.value_or(StateId()),
      .samples = like->samples,
      .replicas = static_cast<int>(members.size()),
      .place = static_cast<int>(like - members.begin())});
}

void Leader::on(std::size_t rank, const FetchedEvent& event) {
  if (!catch_up_ || event.serial != catch_up_->serial) {
    return;
  }
  catch_up_->answers[rank] = event;
  std::vector<std::uint64_t> digests;
  for (const auto& answer : catch_up_->answers) {
    if (!answer) {
      return;
    }
    digests.push_back(answer->digest);
  }
  const auto& first = catch_up_->answers.front()->commit;
  const bool good =
      std::ranges::all_of(catch_up_->answers, [&](const auto& answer) {
        return answer->failure.empty() && answer->commit == first;
      });
  // The sum must be the one that was committed, since a donor may be wrong about it.
  const auto& recent = machine_.view().recent;
  const auto known = std::ranges::find(recent, first.base, &Commit::base);
  const bool right = !catch_up_->wants_sum ||
      (first.base == catch_up_->task.held &&
       (known == recent.end() || *known == first) &&
       first.gradients == hash_of(digests));
  if (good && right) {
    fetched(catch_up_->wants_sum ? first.result : catch_up_->state);
    return;
  }
  for (const auto& answer : catch_up_->answers) {
    if (!answer->failure.empty()) {
      catch_up_->failure = answer->failure;
    }
  }
  try_next_donor();
}

void Leader::fetched(StateId state) {
  catch_up_.reset();
  fetch_backoff_.reset();
  carry_out(machine_.fetched(state));
}

// Logs each failure once, since the same fetch is tried again soon.
void Leader::fetch_failed() {
  const auto failure = std::exchange(catch_up_, std::nullopt)->failure;
  if (!failure.empty() && std::exchange(fetch_failure_, failure) != failure) {
    log_warning(str("[ft] not fetched: ", failure));
  }
  retry_ = loop_.after(
      fetch_backoff_.next(), [this] { carry_out(machine_.fetch_failed()); });
}

}  // namespace sherd::ft
