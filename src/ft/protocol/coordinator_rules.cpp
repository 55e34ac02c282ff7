// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's rules, as in docs/design/fault_tolerance.md, and the questions they ask.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ft/protocol/coordinator.h"

namespace sherd::ft {
namespace {

// After the first accusation in an epoch that is being joined, other members may report more for
// this long.
constexpr Duration kAccusations = std::chrono::milliseconds(100);
// When too few replicas are without broken links, all are tried again after this long.
constexpr Duration kAllAgain = std::chrono::milliseconds(500);

// A replica is trusted again after it has trained for this many times its back-off.
constexpr int kTrustAfterBackoffs = 10;

// How often all gradients of one step may be bad, with new samples each time, before the run stops.
constexpr int kStepsWithoutGradientsMax = 3;

}  // namespace

// ---- questions ----

// How many replicas are connected.
std::int64_t Coordinator::connected() const {
  return std::ranges::count_if(
      replicas_, [](const auto& one) { return one.second.connected; });
}

int Coordinator::replicas_min() const {
  return std::max(1, options_.replicas_min);
}

bool Coordinator::is_member(ReplicaId replica) const {
  return std::ranges::binary_search(member_ids_, replica);
}

template <typename Predicate>
bool Coordinator::all_members(
    std::size_t& look_at, const Predicate& holds) const {
  const auto& members = history_.members;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto at = (look_at + i) % members.size();
    if (!holds(replicas_.at(members[at].replica).report)) {
      look_at = at;
      return false;
    }
  }
  return true;
}

bool Coordinator::all_have_voted() {
  return all_members(look_for_vote_at_, [&](const Report& report) {
    return report.vote && report.vote->attempt == attempt();
  });
}

bool Coordinator::all_hold_canonical() {
  return all_members(look_for_state_at_, [&](const Report& report) {
    return report.held == history_.canonical;
  });
}

bool Coordinator::is_out(const ReplicaEntry& known) const {
  return !known.connected || known.hangs || now_ < known.out_until;
}

bool Coordinator::can_train(
    const ReplicaEntry& known, const StateId& base) const {
  return !is_out(known) && known.report.held == base;
}

// How many steps the replica lacks; nullopt if its state did not lead to canonical.
std::optional<std::int64_t> Coordinator::lag(const ReplicaEntry& known) const {
  const auto& held = known.report.held;
  if (!held || !history_.on_chain(*held)) {
    return std::nullopt;
  }
  return history_.canonical->step - held->step;
}

// Whether the replica holds the canonical state, or can make it from the sum it has reduced.
bool Coordinator::holds_canonical(const ReplicaEntry& known) const {
  const auto& vote = known.report.vote;
  const auto& commit = history_.commit();
  return known.connected &&
      (known.report.held == history_.canonical ||
       (vote && commit && vote->attempt == commit->attempt));
}

bool Coordinator::somebody_holds() const {
  return std::ranges::any_of(
      replicas_, [&](const auto& one) { return holds_canonical(one.second); });
}

// Whether a replica does not hold it yet but is expected to: it has the sum, or was a member when
// the sum was made.
bool Coordinator::somebody_will_hold() const {
  const auto& commit = history_.commit();
  return commit && std::ranges::any_of(replicas_, [&](const auto& one) {
           const auto& [replica, known] = one;
           return known.connected && known.report.held == commit->base &&
               (holds_canonical(known) || is_member(replica));
         });
}

// Whether a program has ended with the canonical state. One that was started again after it could
// not end in order: what it had is lost, unless another replica has it.
bool Coordinator::has_ended() const {
  const auto& end = history_.canonical;
  return end && std::ranges::any_of(replicas_, [&](const auto& one) {
           return one.second.report.finished && one.second.report.held == end;
         });
}

// Or before this term. Whoever still has the state knows better whether its program goes on.
bool Coordinator::had_ended() const {
  return has_ended() ||
      (history_.canonical && ended_before_ == history_.canonical);
}

// Members of the last epoch keep their gradients, and it may take a moment until they reconnect to
// a new coordinator.
bool Coordinator::waits_for_members() const {
  if (is_recovering() && now_ < reconnect_until_) {
    return true;  // They may remember a run.
  }
  return now_ < reconnect_until_ && history_.epoch.term < history_.term &&
      std::ranges::any_of(
             history_.members,
             [&](const Member& one) {
               const auto lives = history_.lives.find(one.replica);
               const bool over = lives != history_.lives.end() &&
                   lives->second.current != one.incarnation;
               return !over && !counts(one.replica, one.incarnation);
             });
}

// The state that training begins with; replicas may have loaded a checkpoint.
std::optional<StateId> Coordinator::newest_held() const {
  std::optional<StateId> newest;
  for (const auto& [replica, known] : replicas_) {
    if (known.connected && known.report.held) {
      newest = std::max(newest.value_or(StateId()), *known.report.held);
    }
  }
  return newest;
}

Attempt Coordinator::attempt() const {
  return {history_.epoch, history_.canonical->step + 1};
}

std::size_t Coordinator::live_members() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(history_.members, [&](const Member& one) {
        const auto& known = replicas_.at(one.replica);
        return counts(one.replica, one.incarnation) && !known.hangs &&
            !known.wrong && !has_bad_gradients(one);
      }));
}

std::size_t Coordinator::votes_needed() const {
  constexpr std::size_t kHolders = 2;
  return std::max(
      static_cast<std::size_t>(replicas_min()),
      std::min(kHolders, live_members()));
}

// A sum that was reduced from wrong bits is useless.
bool Coordinator::can_salvage() const {
  return stage_ == EpochStage::kRunning && complaint().empty() &&
      std::ranges::none_of(history_.members, [&](const Member& one) {
           return replicas_.at(one.replica).wrong.has_value();
         });
}

// Whether others may still be about to vote in an ending epoch of which somebody has the sum.
bool Coordinator::awaits_votes() {
  if (!can_salvage()) {
    return false;
  }
  broken_since_ = broken_since_.value_or(now_);
  const auto count = votes().count;
  return count > 0 && count < live_members() &&
      now_ < *broken_since_ + options_.settle;
}

Coordinator::Votes Coordinator::votes() const {
  std::map<std::uint64_t, std::vector<ReplicaId>> sums;
  Votes votes;
  for (const auto& member : history_.members) {
    const auto& known = replicas_.at(member.replica);
    const auto& vote = known.report.vote;
    if (counts(member.replica, member.incarnation) && vote &&
        vote->attempt == attempt() && vote->base == history_.canonical) {
      sums[vote->gradients].push_back(member.replica);
      ++votes.count;
    }
  }
  if (sums.empty()) {
    return votes;
  }
  const auto most =
      std::ranges::max_element(sums, [](const auto& a, const auto& b) {
        return a.second.size() < b.second.size();
      });
  votes.gradients = most->first;
  const bool majority = 2 * most->second.size() > votes.count;
  for (const auto& [gradients, replicas] : sums) {
    if (gradients != most->first) {
      votes.different =
          str(name_of(replicas.front()), " has another sum of gradients than ",
              name_of(most->second.front()));
      if (majority) {
        votes.culprits.insert(
            votes.culprits.end(), replicas.begin(), replicas.end());
      }
    }
  }
  return votes;
}

std::string Coordinator::broken() const {
  if (!complaint().empty()) {
    return complaint();
  }
  for (const auto& member : history_.members) {
    const auto& known = replicas_.at(member.replica);
    if (known.report.incarnation != member.incarnation) {
      return str(name_of(member.replica), " has started anew");
    }
    if (!known.connected || known.hangs) {
      return epoch_ended_because_;
    }
    const auto& suspicion = known.report.suspicion;
    if (suspicion && suspicion->epoch == history_.epoch) {
      return suspicion->accused == member.replica
          ? str(name_of(member.replica), ": ", suspicion->reason)
          : str(name_of(member.replica), " suspects ",
                name_of(suspicion->accused), ": ", suspicion->reason);
    }
    if (known.wrong) {
      return str(name_of(member.replica), " holds wrong bits");
    }
    if (has_bad_gradients(member)) {
      return str(
          name_of(member.replica), " has gradients of no use: ",
          known.report.bad_gradients->fault.reason);
    }
    if (stage_ == EpochStage::kRunning &&
        known.report.joined < history_.epoch) {
      return str(name_of(member.replica), " is not connected any more");
    }
    const auto& held = known.report.held;
    if (!held || (held != history_.canonical && held->step >= attempt().step)) {
      return str(name_of(member.replica), " has another state");
    }
  }
  if (stage_ == EpochStage::kRunning && !broken_links_.empty()) {
    return epoch_ended_because_;
  }
  if (!somebody_holds()) {
    return str("nobody holds ", text_of(*history_.canonical));
  }
  return {};
}

// The members of the last epoch, if they are enough: newcomers get a planned epoch, so that nobody
// waits for them. If rings cannot be connected, all replicas are tried except the culprits of
// broken links.
std::vector<Member> Coordinator::next_members(const StateId& base) const {
  std::vector<Member> former;
  std::vector<Member> all;
  const auto culprits = culprits_of(broken_links_);
  for (const auto& [replica, known] : replicas_) {
    if (!can_train(known, base) ||
        std::ranges::binary_search(culprits, replica)) {
      continue;
    }
    const auto* before =
        find(history_.members, replica, known.report.incarnation);
    auto next = before != nullptr
        ? *before
        : Member{replica, known.report.incarnation, {}};
    if (before != nullptr && has_bad_gradients(*before)) {
      next.left_out.insert(
          next.left_out.end(), next.samples.begin(), next.samples.end());
      next.samples.clear();
    }
    // A leaving replica finishes the step that it has gradients for.
    if (known.report.leaving && next.samples.empty()) {
      continue;
    }
    all.push_back(next);
    if (before != nullptr) {
      former.push_back(next);
    }
  }
  const bool too_few = static_cast<int>(former.size()) < replicas_min();
  return too_few || !broken_links_.empty() ? all : former;
}

// ---- rules ----

bool Coordinator::are_too_few(const std::vector<Member>& members) {
  if (static_cast<int>(members.size()) >= replicas_min()) {
    return false;
  }
  if (!broken_links_.empty()) {
    broken_links_.clear();
    form_at_ = now_ + kAllAgain;
    return true;
  }
  // All programs have ended; a replica that lacks the last step fetches it first.
  if (has_ended() && std::ranges::all_of(replicas_, [&](const auto& one) {
        return !one.second.connected ||
            one.second.report.held == history_.canonical;
      })) {
    end_run();
    return true;
  }
  too_few_since_ = too_few_since_.value_or(now_);
  return true;
}

bool Coordinator::form() {
  if (is_recovering()) {
    look_for_lost_log();
    if (!is_recovering()) {
      return true;
    }
  }
  const auto base = history_.canonical ? history_.canonical : newest_held();
  if (!base || !complaint().empty() || now_ < form_at_ || waits_for_members()) {
    return false;
  }
  if (history_.past.empty() && connected() < options_.replicas_start &&
      (now_ < start_at_ || is_recovering())) {
    return false;
  }
  if (somebody_will_hold() && now_ < form_at_ + options_.join_timeout) {
    return false;
  }
  auto members = in_order(next_members(*base));
  if (are_too_few(members)) {
    return false;
  }
  // When enough are back, others may follow a moment later.
  const auto since = std::exchange(too_few_since_, std::nullopt);
  if (since && now_ > *since + options_.settle) {
    form_at_ = now_ + options_.settle;
    return false;
  }
  // A newcomer to a step that the others have begun follows without samples.
  if (std::ranges::all_of(
          members, [](const Member& one) { return one.samples.empty(); })) {
    auto taken = history_.consumed;
    bool bad = false;
    for (const auto& member : members) {
      taken.add(member.left_out);
      // What a newcomer reports may be of an epoch that it was in long ago.
      bad = bad || !member.left_out.empty();
    }
    if (bad && ++steps_without_gradients_ > kStepsWithoutGradientsMax) {
      stop_run(str("nobody's gradients are of use: ", epoch_ended_because_));
      return true;
    }
    if (history_.past.empty()) {
      taken.add(trained_before(*base));
    }
    assign_samples(members, taken);
  }
  for (const auto& member : members) {
    if (!is_member(member.replica)) {
      replicas_.at(member.replica).member_since = now_;
    }
  }
  begin_epoch(next_epoch(), *base, std::move(members), epoch_ended_because_);
  stage_ = EpochStage::kJoining;
  join_until_ = now_ + options_.join_timeout;
  lost_since_.reset();
  tell_all(str(text_of(history_.epoch), " begins: ", epoch_ended_because_));
  return true;
}

bool Coordinator::start() {
  const auto late = unjoined_members(history_.members, history_.epoch);
  if (late.empty()) {
    stage_ = EpochStage::kRunning;
    started_ = history_.epoch;
    leave_out_culprits();
    tell_all("all have joined");
    return true;
  }
  if (now_ < join_until_) {
    return false;
  }
  for (const auto& link : links_of_silent(history_.members, late)) {
    accuse(link, history_.epoch);
  }
  close_epoch(
      str(name_of(late.front()), " has not joined ", text_of(history_.epoch)),
      Duration(0));
  return true;
}

bool Coordinator::commit() {
  const auto votes = this->votes();
  if (votes.count == 0) {
    return false;
  }
  first_vote_ = first_vote_.value_or(now_);
  const bool all = votes.count == history_.members.size();
  const bool late = now_ >= *first_vote_ + options_.vote_timeout;
  if (!votes.different.empty()) {
    if (!all && !late) {
      return false;  // More votes will show whose sum is wrong.
    }
    blame_for_sum(votes);
    close_epoch(votes.different, Duration(0));
    return true;
  }
  if (all) {
    commit_step(
        votes.gradients,
        str("all ", votes.count, " members have reduced the same sum"));
    return true;
  }
  // Each voter has the whole sum, which the others can fetch.
  if (late && votes.count >= votes_needed()) {
    commit_step(
        votes.gradients,
        str(votes.count, " members have the sum, the others are late"));
    return true;
  }
  return false;
}

void Coordinator::end_broken_epoch() {
  const auto reason = broken_because_;
  const bool accused = stage_ == EpochStage::kJoining && !broken_links_.empty();
  // The wait for votes counts towards the wait for further failures.
  const auto waited = now_ - broken_since_.value_or(now_);
  const auto settle = std::max(options_.settle - waited, Duration(0));
  salvage(reason);
  close_epoch(reason, accused ? std::max(settle, kAccusations) : settle);
}

// A sum that some replicas have completed is not lost when the epoch ends.
void Coordinator::salvage(const std::string& reason) {
  if (!can_salvage()) {
    return;
  }
  const auto votes = this->votes();
  if (votes.different.empty() && votes.count > 0 &&
      votes.count >= votes_needed()) {
    planned_.reset();
    commit_step(
        votes.gradients,
        str(votes.count, " members have the sum although ", reason));
  }
}

// When all replicas are connected, no other holder can appear, so the wait may be short. But a
// replica that is installing a state may soon hold it.
Duration Coordinator::hold_time() const {
  const bool all_are_here =
      std::ranges::all_of(history_.lives, [&](const auto& one) {
        return counts(one.first, one.second.current) &&
            replicas_.at(one.first).report.progress.activity !=
            Activity::kFetching;
      });
  return all_are_here ? std::min(options_.join_timeout, options_.hold_time)
                      : options_.hold_time;
}

bool Coordinator::roll_back() {
  if (!history_.canonical || !complaint().empty() || somebody_holds()) {
    lost_since_.reset();
    return false;
  }
  if (had_ended() || told_end_ == history_.canonical) {
    if (!waits_for_members()) {
      end_run();
    }
    return false;
  }
  // The newest state that a replica holds; states that led to canonical come first.
  std::optional<StateId> best;
  for (const auto& [replica, known] : replicas_) {
    const auto& held = known.report.held;
    if (known.connected && held && history_.can_go_to(*held)) {
      const auto rank = [&](const StateId& state) {
        return std::make_pair(history_.on_chain(state), state);
      };
      best = !best || rank(*held) > rank(*best) ? held : best;
    }
  }
  if (!best) {
    lost_since_.reset();
    return false;
  }
  lost_since_ = lost_since_.value_or(now_);
  if (now_ < *lost_since_ + hold_time()) {
    return false;
  }
  epoch_ended_because_ =
      str("nobody has held ", text_of(*history_.canonical), " for ",
          seconds(hold_time()), " s");
  write(
      RollbackRecord{next_epoch(), *history_.canonical, *best},
      epoch_ended_because_);
  lost_since_.reset();
  too_few_since_.reset();
  form_at_ = now_;
  tell_all(epoch_ended_because_);
  return true;
}

// ---- effects of the rules ----

// The samples that a run without a log may have trained, as if all its steps had been full: some
// may be skipped, but none is trained twice.
SampleRange Coordinator::trained_before(const StateId& base) const {
  constexpr std::int64_t kSamplesMax = std::int64_t{1} << 62;
  const auto in_step =
      options_.samples_in_all > 0 ? options_.samples_in_all
                                  : options_.samples_per_replica *
          std::max<std::int64_t>(options_.replicas_start,
                                 static_cast<std::int64_t>(replicas_.size()));
  return {0, std::min(base.step, kSamplesMax / in_step) * in_step};
}

// All programs have ended, and the holders of the last step are gone: fence the others, so that
// they do not train the run again. If the programs have failed since, some replicas may have been
// told so too early, and the run cannot go on without them.
void Coordinator::end_run() {
  const bool ended = had_ended();
  auto why = str("the run has ended with ", text_of(*history_.canonical));
  if (!ended) {
    why +=
        str(kEndIsLost,
            "start the job and its coordinator again, to go on from the newest "
            "checkpoint");
  }
  for (auto& [replica, known] : replicas_) {
    if (known.connected) {
      told_end_ = history_.canonical;
      fence(replica, known.report.incarnation, why, ended);
      known.connected = false;
      known.report.finished = true;  // If it has the last step, it can save it.
    }
  }
}

void Coordinator::commit_step(
    std::uint64_t gradients, const std::string& reason) {
  CommitRecord record;
  record.participants = history_.members;
  auto& commit = record.commit;
  commit = {attempt(), *history_.canonical, {}, gradients, 0};
  auto consumed = history_.consumed;
  std::string leaves;
  for (const auto& member : history_.members) {
    consumed.add(member.samples);
    consumed.add(member.left_out);
    commit.samples += count_of(member.samples);
    auto& known = replicas_.at(member.replica);
    if (known.report.leaving) {
      leaves = str(name_of(member.replica), " leaves");
    }
    if (!member.samples.empty()) {
      known.bad_gradients = 0;
    }
    known.failed_joins = 0;
    if (now_ > known.member_since + kTrustAfterBackoffs * known.backoff) {
      known.backoff = Duration(0);
    }
  }
  commit.result = result_of(record);
  const bool switches = leaves.empty() && plan_is_ready();
  if (leaves.empty() && !switches) {
    record.next = history_.members;
    for (auto& member : record.next) {
      member.left_out.clear();
    }
    assign_samples(record.next, consumed);
  }
  auto members = switches ? members_of_plan(consumed) : std::vector<Member>();
  const auto committed = str(text_of(commit.attempt), " is committed");
  const auto result = commit.result;
  judge_links();
  write(std::move(record), reason);
  first_vote_.reset();
  suspected_.clear();
  ambiguous_sums_ = 0;
  steps_without_gradients_ = 0;
  if (switches) {
    const auto epoch = planned_->epoch;
    started_ = epoch;
    begin_epoch(epoch, result, std::move(members), "the planned epoch");
  }
  if (!leaves.empty()) {
    close_epoch(leaves, Duration(0));
    return;
  }
  tell_all(committed);
}

void Coordinator::begin_epoch(
    const Epoch& epoch,
    const StateId& base,
    std::vector<Member> members,
    const std::string& reason) {
  const auto count = members.size();
  planned_.reset();
  write(
      EpochRecord{epoch, base, config_, std::move(members)},
      str(count, " replicas; ", reason));
}

void Coordinator::close_epoch(const std::string& reason, Duration settle) {
  stage_ = EpochStage::kClosed;
  epoch_ended_because_ = reason;
  form_at_ = now_ + settle;
  planned_.reset();
  first_vote_.reset();
  broken_because_.clear();
  broken_since_.reset();
  tell_all(str(text_of(history_.epoch), " ends: ", reason));
}

// The first penalty keeps the replica out for no time at all.
void Coordinator::penalise(ReplicaId replica) {
  auto& known = replicas_.at(replica);
  known.member_since = now_;  // Trust grows again from here on.
  keep_out(known, now_ + known.backoff);
  known.backoff =
      std::clamp(2 * known.backoff, options_.backoff, options_.backoff_max);
}

// The replica stays out at least until `until`.
void Coordinator::keep_out(ReplicaEntry& known, Instant until) {
  known.out_until = std::max(known.out_until, until);
  out_until_max_ = std::max(out_until_max_, until);
}

void Coordinator::assign_samples(
    std::vector<Member>& members, const SampleSet& taken) const {
  auto all = taken;
  const auto count = static_cast<std::int64_t>(members.size());
  // The first members take the remainder.
  const auto units = options_.samples_in_all / options_.samples_multiple;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto share = units / count + (i < units % count ? 1 : 0);
    auto& member = members[static_cast<std::size_t>(i)];
    member.samples = all.lowest_free(
        options_.samples_in_all > 0 ? share * options_.samples_multiple
                                    : options_.samples_per_replica);
    all.add(member.samples);
  }
}

Epoch Coordinator::next_epoch() { return {history_.term, ++number_}; }

}  // namespace sherd::ft
