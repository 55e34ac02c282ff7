// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/replica.h"

#include <algorithm>
#include <utility>

#include "ft/protocol/samples.h"

namespace sherd::ft {
namespace {

// A plan may be taken back, but no later plan has a lower number.
bool is_older(const RunView& view, const RunView& than) {
  if (age_of(view) != age_of(than)) {
    return age_of(view) < age_of(than);
  }
  return view.starts < than.starts ||
      (view.planned && than.planned &&
       view.planned->epoch < than.planned->epoch);
}

// Whether the view tells of the state, or of states so much later that it no longer names this one.
bool names(const RunView& view, const StateId& state) {
  const auto& first =
      view.recent.empty() ? view.canonical : view.recent.front().base;
  return state.step < first.step || state == first ||
      std::ranges::find(view.recent, state, &Commit::result) !=
      view.recent.end();
}

RunView memory_of(RunView view) {
  view.peers.clear();
  view.planned.reset();
  return view;
}

}  // namespace

Replica::Replica(const ReplicaIdentity& options)
    : identity_(options), held_(options.held) {}

Report Replica::report() const {
  Report report;
  report.run = run_;
  report.replica = identity_.replica;
  report.incarnation = identity_.incarnation;
  report.config = identity_.config;
  report.held = held_;
  report.joined = joined_.empty() ? Epoch() : joined_.back();
  report.vote = vote_;
  report.suspicion = suspicion_;
  report.digest = digest_;
  report.bad_gradients = bad_gradients_;
  report.leaving = leaving_;
  if (asked_) {
    report.remembers = memory_of(view_);
  }
  return report;
}

const Member* Replica::own_member() const {
  return find(view_.members, identity_.replica, identity_.incarnation);
}

bool Replica::has_joined(const Epoch& epoch) const {
  return std::ranges::find(joined_, epoch) != joined_.end();
}

// Returns the tasks of one call. Changes are reported to the coordinator at once.
Tasks Replica::finish(bool reports) {
  if (reports) {
    tasks_.emplace_back(ReportTask{report()});
  }
  return std::exchange(tasks_, {});
}

Tasks Replica::received(const RunView& view) {
  if (view.asks) {
    asked_ = run_ != 0 && !stopped_;
    if (!asked_) {
      return {};
    }
    stop_catching_up();  // The run may go on without what is being fetched.
    return finish();
  }
  // A coordinator with another log must not be obeyed: what this replica holds may be all that is
  // left of the run.
  if (stopped_ || view.term < view_.term || (run_ != 0 && view.run != run_)) {
    return {};
  }
  if (!view.fenced.empty()) {
    stopped_ = true;
    stop_reducing();
    tasks_.emplace_back(StopTask{view.ended ? std::string() : view.fenced});
    return finish(false);
  }
  if (is_older(view, view_)) {
    return {};
  }
  const auto before = report();
  // What was fetched may have been rolled back, in which case no view will name it.
  if (catching_up_ && catching_up_->fetched &&
      !names(view, *catching_up_->fetched)) {
    stop_catching_up();
  }
  run_ = view.run;
  view_ = view;
  asked_ = false;
  // While something is being written the fault is ignored; the next view repeats it.
  if (view.wrong && view.wrong == digest_ && !applying_ && !installing_) {
    return damaged();
  }
  settle_vote();
  follow();
  return finish(!(report() == before));
}

// Settles the step that this replica has reduced.
void Replica::settle_vote() {
  if (!vote_ || applying_) {
    return;
  }
  for (const auto& commit : view_.recent) {
    if (commit.attempt == vote_->attempt && commit.base == vote_->base &&
        commit.gradients == vote_->gradients) {
      applying_ = commit;
      tasks_.emplace_back(ApplyTask{commit});
      return;
    }
  }
  if (view_.epoch > vote_->attempt.epoch ||
      view_.canonical.step > vote_->base.step) {
    // The attempt was not committed, or not with this sum, and never will be.
    vote_.reset();
  }
}

// Starts what the last view asks for and is not under way yet.
void Replica::follow() {
  if (reducing_ &&
      (view_.epoch != reducing_->epoch || view_.stage == EpochStage::kClosed)) {
    stop_reducing();
  }
  join();
  // With a sum, or on the way to one, it needs no other replica.
  if (vote_ || applying_ || reducing_ || installing_) {
    return;
  }
  if (held_ != view_.canonical) {
    catch_up();
    return;
  }
  stop_catching_up();
  const auto* mine = own_member();
  if (mine == nullptr) {
    return;
  }
  if (samples_ != mine->samples) {
    samples_ = mine->samples;
    bad_gradients_.reset();
    tasks_.emplace_back(ComputeTask{
        .serial = ++serial_,
        .base = *held_,
        .samples = *samples_,
        .replicas = static_cast<int>(view_.members.size()),
        .place = static_cast<int>(mine - view_.members.data())});
  }
  if (view_.stage == EpochStage::kRunning && has_joined(view_.epoch) &&
      abandoned_epoch_ < view_.epoch) {
    reduce();
  }
}

void Replica::reduce() {
  reducing_ = Attempt{view_.epoch, held_->step + 1};
  ReduceTask task{*reducing_, {}};
  for (const auto& member : view_.members) {
    task.weights.push_back(static_cast<double>(count_of(member.samples)));
  }
  tasks_.emplace_back(std::move(task));
}

// The planned epoch is joined while the current one is under way.
void Replica::join() {
  const auto join_one = [&](const Epoch& epoch,
                            const std::vector<Member>& members) {
    if (epoch > joining_ &&
        find(members, identity_.replica, identity_.incarnation) != nullptr) {
      joining_ = epoch;
      tasks_.emplace_back(EpochMembers{epoch, members});
    }
  };
  join_one(view_.epoch, view_.members);
  if (view_.planned) {
    join_one(view_.planned->epoch, view_.planned->members);
  }
}

void Replica::catch_up() {
  forget_gradients();
  if (catching_up_ && catching_up_->fetched) {
    install_what_is_named();
  }
  // Only one fetch runs at a time; the current one will end or fail.
  if (catching_up_ || asked_) {
    return;
  }
  catching_up_ = CatchUp{view_.canonical};
  tasks_.emplace_back(CatchUpTask{held_, view_.canonical});
}

// The donor may have heard of a later commit than this replica, whose next view will then name it.
void Replica::install_what_is_named() {
  if (names(view_, *catching_up_->fetched)) {
    installing_ = true;
    tasks_.emplace_back(InstallTask{++installs_});
  }
}

// An installation under way is not stopped.
void Replica::stop_catching_up() {
  if (!installing_ && std::exchange(catching_up_, std::nullopt)) {
    tasks_.emplace_back(StopCatchUpTask());
  }
}

void Replica::stop_reducing() {
  if (reducing_) {
    abandoned_epoch_ = std::max(abandoned_epoch_, reducing_->epoch);
    tasks_.emplace_back(StopReduceTask{reducing_->epoch});
    reducing_.reset();
  }
}

void Replica::forget_gradients() {
  vote_.reset();
  samples_.reset();
  bad_gradients_.reset();
}

Tasks Replica::joined(const Epoch& epoch) {
  if (stopped_ || epoch != joining_ || has_joined(epoch) ||
      epoch < view_.epoch) {
    return {};
  }
  std::erase_if(joined_, [&](const Epoch& one) { return one < view_.epoch; });
  joined_.push_back(epoch);
  follow();
  return finish();
}

Tasks Replica::reduced(const Attempt& attempt, std::uint64_t gradients) {
  if (reducing_ != attempt) {
    return {};
  }
  reducing_.reset();
  vote_ = Vote{attempt, *held_, gradients};
  settle_vote();  // Other replicas may have been faster.
  follow();
  return finish();
}

Tasks Replica::peer_lost(const Suspicion& suspicion) {
  const auto& epoch = suspicion.epoch;
  const bool concerns = epoch == joining_ || has_joined(epoch);
  if (stopped_ || !concerns || epoch <= abandoned_epoch_) {
    return {};
  }
  if (reducing_ && reducing_->epoch == epoch) {
    stop_reducing();
  }
  if (epoch == view_.epoch) {
    abandoned_epoch_ = std::max(abandoned_epoch_, epoch);
  }
  std::erase(joined_, epoch);
  // A suspicion about the current epoch ends the planned one, too.
  if (!suspicion_ || suspicion_->epoch != view_.epoch) {
    suspicion_ = suspicion;
  }
  return finish();
}

// Nothing is stopped here: the coordinator ends the epoch for all members. A fault that stops the
// run may follow a milder one that another rank has found in the same gradients, even when their
// samples are left out already.
Tasks Replica::bad_gradients(std::uint64_t serial, const GradientFault& fault) {
  if (stopped_ || !samples_ || vote_) {
    return {};
  }
  const bool is_first =
      serial == serial_ && !samples_->empty() && !bad_gradients_;
  const bool is_worse = serial == faulty_serial_ && fault.stop &&
      !(bad_gradients_ && bad_gradients_->fault.stop);
  if (!is_first && !is_worse) {
    return {};
  }
  faulty_serial_ = serial;
  bad_gradients_ = BadGradients{*held_, *samples_, fault};
  return finish();
}

Tasks Replica::applied(
    const StateId& state, const std::optional<StateDigest>& digest) {
  if (!applying_ || applying_->result != state) {
    return {};
  }
  applying_.reset();
  return hold(state, digest);
}

Tasks Replica::fetched(const StateId& state) {
  if (!catching_up_ || catching_up_->fetched || stopped_) {
    return {};
  }
  catching_up_->fetched = state;
  follow();
  return finish(false);
}

Tasks Replica::fetch_failed() {
  if (!catching_up_ || catching_up_->fetched || stopped_) {
    return {};
  }
  catching_up_.reset();
  follow();
  return finish(false);
}

Tasks Replica::installed(
    std::uint64_t serial,
    const StateId& state,
    const std::optional<StateDigest>& digest) {
  if (!installing_ || serial != installs_ || stopped_) {
    return {};
  }
  installing_ = false;
  catching_up_.reset();
  return hold(state, digest);
}

Tasks Replica::hold(
    const StateId& state, const std::optional<StateDigest>& digest) {
  held_ = state;
  digest_ = digest ? digest : digest_;
  forget_gradients();
  follow();
  return finish();
}

Tasks Replica::damaged() {
  if (stopped_) {
    return {};
  }
  stop_reducing();
  abandoned_epoch_ = std::max(abandoned_epoch_, view_.epoch);
  suspicion_ =
      Suspicion{view_.epoch, identity_.replica, "its own state is damaged"};
  applying_.reset();
  catching_up_.reset();
  installing_ = false;
  held_.reset();
  digest_.reset();
  forget_gradients();
  follow();
  return finish();
}

Tasks Replica::leave() {
  leaving_ = true;
  return finish();
}

}  // namespace sherd::ft
