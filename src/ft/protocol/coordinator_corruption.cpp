// SPDX-License-Identifier: Apache-2.0
//
// How the coordinator treats corruption: wrong sums, wrong states and bad gradients.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ft/protocol/coordinator.h"
#include "ft/protocol/digests.h"

namespace sherd::ft {
namespace {

// How often the sums of one step may differ before an operator has to look.
constexpr int kAmbiguousMax = 8;

}  // namespace

// Whether its gradients of the current step are bad, not those of an earlier one.
bool Coordinator::has_bad_gradients(const Member& member) const {
  const auto& bad = replicas_.at(member.replica).report.bad_gradients;
  return bad && bad->base == history_.canonical &&
      bad->samples == member.samples && !member.samples.empty();
}

// At first its samples may be to blame, so they are left out of the step. After that the replica
// itself is left out for a while.
void Coordinator::count_bad_gradients(const Report& report) {
  constexpr int kTolerated = 3;
  auto& known = replicas_.at(report.replica);
  const auto& bad = report.bad_gradients;
  if (!bad || bad == known.report.bad_gradients ||
      bad->base != history_.canonical || !is_member(report.replica)) {
    return;
  }
  notice("bad_gradients", name_of(report.replica), bad->fault.reason);
  if (bad->fault.stop) {
    stop_run(
        str(name_of(report.replica), " has gradients of no use for step ",
            bad->base.step + 1, ": ", bad->fault.reason));
  }
  if (++known.bad_gradients > kTolerated) {
    penalise(report.replica);
    keep_out(known, now_ + options_.backoff);
  }
}

void Coordinator::stop_run(const std::string& why) {
  complaint_ = why;
  notice("stops", "the run", why);
}

bool Coordinator::is_undecided(ReplicaId replica) const {
  return std::ranges::find(undecided_replicas_, replica) !=
      undecided_replicas_.end();
}

// Runs after every new report and when a replica is lost.
void Coordinator::compare_digests() {
  std::vector<ReportedDigest> claims;
  for (auto& [replica, known] : replicas_) {
    if (known.wrong != known.report.digest) {
      known.wrong.reset();
    }
    if (known.connected && !known.hangs && !known.wrong) {
      // A replica that is not a member copies the states that it lacks.
      const auto& held = known.report.held;
      claims.push_back(
          {replica, is_member(replica) ? held : std::nullopt,
           known.report.digest});
    }
  }
  auto verdict = judge(claims);
  for (const auto& [replica, reason] : verdict.wrong) {
    replicas_.at(replica).wrong = replicas_.at(replica).report.digest;
    penalise(replica);
    notice("wrong_states", name_of(replica), reason);
  }
  for (auto& [replica, known] : replicas_) {
    if (known.wrong) {
      known.report.held.reset();
      known.report.vote.reset();
    }
  }
  if (undecided_digests_.empty() && !verdict.tie.empty()) {
    notice("wrong_states", "a replica", verdict.tie);
  }
  undecided_digests_ = std::move(verdict.tie);
  undecided_replicas_ = std::move(verdict.tied);
}

void Coordinator::blame_for_sum(const Votes& votes) {
  for (const auto culprit : votes.culprits) {
    penalise(culprit);
    notice("wrong_sums", name_of(culprit), votes.different);
  }
  if (votes.culprits.empty()) {
    notice("wrong_sums", "a replica", votes.different);
    if (++ambiguous_sums_ > kAmbiguousMax) {
      stop_run(
          str(votes.different,
              ", again and again, and no majority says whose "
              "is right"));
    }
  }
}

}  // namespace sherd::ft
