// SPDX-License-Identifier: Apache-2.0
//
// How a replica catches up: by the sum of the step after the one that it holds,
// if somebody still has that, or else by a whole state. All ranks fetch from the
// ranks of one donor.
#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "ft/agent/leader.h"

namespace sherd::ft {
namespace {

// Before everything is tried again: others may wait for it in the step that is
// under way.
constexpr Duration kPauseMin = std::chrono::milliseconds(5);
constexpr Duration kPauseMax = std::chrono::milliseconds(100);

// Canonical, or what led there: nothing else is worth a fetch.
bool is_on_the_way(const Order& order, const StateId& state) {
  return state == order.canonical ||
      std::any_of(
             order.recent.begin(), order.recent.end(), [&](const Commit& one) {
               return one.base == state || one.result == state;
             });
}

// Who can help, the best first: those that have come furthest, of these each
// replica begins with another one. The order is of when a step was committed, so
// who held the same then has the sum since.
std::vector<Peer> donors_for(
    const Order& order,
    const CatchUpTask& task,
    ReplicaId self,
    bool wants_sum) {
  std::vector<Peer> donors;
  for (const auto& peer : order.peers) {
    if (peer.replica != self && peer.held &&
        (wants_sum ||
         (peer.held != task.held && is_on_the_way(order, *peer.held)))) {
      donors.push_back(peer);
    }
  }
  if (!donors.empty()) {
    std::rotate(
        donors.begin(), donors.begin() + self % donors.size(), donors.end());
  }
  std::stable_sort(
      donors.begin(), donors.end(),
      [](const auto& a, const auto& b) { return a.held->step > b.held->step; });
  return donors;
}

}  // namespace

void Leader::on(const CatchUpTask& task) {
  try_ = FetchTry{task, 0, 0, task.held.has_value(), {}};
  try_next_donor();
}

void Leader::on(const StopCatchUpTask&) {
  try_.reset();
  asking_.reset();
  retry_.cancel();
  send_all(DropFetchCommand{});
}

// Sums of all donors first, they are small; then states.
void Leader::try_next_donor() {
  auto donors = donors_for(
      machine_.order(), try_->task, options_.replica.replica, try_->wants_sum);
  if (try_->wants_sum && try_->tries >= donors.size()) {
    try_->wants_sum = false;
    try_->tries = 0;
    donors = donors_for(
        machine_.order(), try_->task, options_.replica.replica, false);
  }
  if (try_->tries >= donors.size()) {
    fetch_done(false);
    return;
  }
  const auto& donor = donors[try_->tries++];
  if (donor.addresses.size() != ranks()) {
    try_next_donor();
    return;
  }
  if (try_->wants_sum) {
    fetch_sum_from(donor);
  } else {
    fetch_state_from(donor);
  }
}

void Leader::fetch_sum_from(const Peer& donor) {
  try_->serial = ++fetches_;
  try_->answers.assign(ranks(), std::nullopt);
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    send_(
        rank,
        FetchSumCommand{try_->serial, donor.addresses[rank], *try_->task.held});
  }
}

void Leader::fetch_state_from(const Peer& donor) {
  FetchOptions options;
  options.run = machine_.order().run;
  options.shard_rank = 0;
  options.security = options_.security;
  const auto& first = donor.addresses.front();
  asking_ = ask_snapshot(
      loop_, net::HostAddress{first.host, first.fetch_port}, options,
      [this, addresses = donor.addresses](Result<StateId> state) {
        if (!try_) {
          return;
        }
        if (!state.ok()) {
          try_next_donor();
          return;
        }
        try_->serial = ++fetches_;
        try_->answers.assign(ranks(), std::nullopt);
        for (std::size_t rank = 0; rank < ranks(); ++rank) {
          send_(
              rank,
              FetchStateCommand{try_->serial, addresses[rank], state.value()});
        }
      });
}

void Leader::on(std::size_t rank, const FetchedEvent& event) {
  if (!try_ || event.serial != try_->serial) {
    return;
  }
  try_->answers[rank] = event;
  std::vector<std::uint64_t> digests;
  for (const auto& answer : try_->answers) {
    if (!answer) {
      return;
    }
    digests.push_back(answer->digest);
  }
  const auto& first = try_->answers.front()->commit;
  const bool good = std::all_of(
      try_->answers.begin(), try_->answers.end(), [&](const auto& answer) {
        return answer->failure.empty() && answer->commit == first;
      });
  // A sum is what was committed, or nothing; and the donor may be wrong about it.
  const auto& recent = machine_.order().recent;
  const auto known = std::find_if(
      recent.begin(), recent.end(),
      [&](const Commit& one) { return one.base == first.base; });
  const bool right = !try_->wants_sum ||
      (first.base == try_->task.held &&
       (known == recent.end() || *known == first) &&
       first.gradients == digest_of_parts(digests));
  if (good && right) {
    fetch_done(true);
  } else {
    try_next_donor();
  }
}

void Leader::fetch_done(bool ok) {
  try_.reset();
  if (ok) {
    pause_ = kPauseMin;
    carry_out(machine_.fetched());
    return;
  }
  pause_ = std::clamp(2 * pause_, kPauseMin, kPauseMax);
  retry_ = loop_.after(pause_, [this] { carry_out(machine_.fetch_failed()); });
}

}  // namespace sherd::ft
