// SPDX-License-Identifier: Apache-2.0
//
// How a coordinator whose log is empty asks replicas what they remember, and goes on from it.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ft/protocol/coordinator.h"
#include "ft/protocol/recovery.h"

namespace sherd::ft {
namespace {

// If the lost log turns up again after all, nobody listens to the terms that it begins.
constexpr std::uint64_t kTermsOfLostLog = 1000;
// If the log is lost again together with everyone who remembers it, it may have had any term above
// those.
constexpr std::uint64_t kTermsDrawn = 1000000;

}  // namespace

bool Coordinator::is_recovering() const {
  return options_.recovers && history_.past.empty();
}

// An incarnation that has heard of a run is not a new one.
bool Coordinator::remembers_a_run(const Report& report) const {
  return is_recovering() && report.run != 0;
}

void Coordinator::hear_memory(const Report& report) {
  auto& known = memories_[{report.replica, report.incarnation}];
  if (report.serial < known.serial) {
    return;
  }
  known = report;
  if (!report.remembers) {
    RunView question;
    question.run = history_.run;
    question.term = history_.term;
    question.asks = true;
    send(
        report.replica, report.incarnation, std::move(question),
        "the log is empty");
  }
}

// Why nothing may begin yet; empty if it may.
std::string Coordinator::recover() {
  if (memories_.empty()) {
    return connected() < options_.replicas_start && now_ >= start_at_
        ? str("the log is empty, and nothing begins before ",
              options_.replicas_start,
              " replicas are here, since each may remember a run")
        : std::string();
  }
  RecoveryQuestion question;
  question.replicas_min = replicas_min();
  question.replicas_start = options_.replicas_start;
  for (const auto& [life, report] : memories_) {
    question.answers.push_back(&report);
  }
  for (const auto& [replica, lives] : history_.lives) {
    if (counts(replica, lives.current)) {
      question.fresh[replica] = replicas_.at(replica).report.held;
    } else {
      question.away.insert(replica);
    }
  }
  const auto recovery = recovery_of(question);
  if (recovery.record) {
    go_on_from(recovery);
    return {};
  }
  // Others are about to connect.
  return now_ < reconnect_until_
      ? str("the log is empty: replicas are asked what they remember of run ",
            recovery.run)
      : "the log is empty: " + recovery.waits_for;
}

void Coordinator::go_on_from(const Recovery& recovery) {
  const auto why =
      str("run ", recovery.run, " goes on from what its replicas remember");
  write(
      TermRecord{
          std::max(history_.term, recovery.term) + kTermsOfLostLog +
              options_.run % kTermsDrawn,
          recovery.run},
      why);
  write(*recovery.record, why);
  if (recovery.commit) {
    write(*recovery.commit, "it was voted for before the log was lost");
  }
  lost_log_.clear();
  number_ = history_.epoch.number;
  config_ = history_.config;
  started_ = history_.epoch;
  epoch_ended_because_ = "the log was lost";
  form_at_ = now_ + options_.settle;
  reconnect_until_ = now_ + options_.reconnect_timeout;
  auto memories = std::exchange(memories_, {});
  for (const auto& life : recovery.record->lives) {
    const auto found = memories.find({life.replica, life.incarnation});
    if (found != memories.end()) {
      take(found->second);
      memories.erase(found);
    }
  }
  for (const auto& [life, report] : memories) {
    take(report);  // These lives were replaced.
  }
  compare_digests();
  tell_all(why);
}

}  // namespace sherd::ft
