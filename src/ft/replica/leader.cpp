// SPDX-License-Identifier: Apache-2.0
//
// How the leader reacts to the coordinator's views and the ranks' events; leader_fetch.cpp is about
// catching up.
#include "ft/replica/leader.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <ranges>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/printable.h"
#include "ft/wire/codec.h"

namespace sherd::ft {
namespace {

// Short, so that a restarted coordinator is found at once.
constexpr Duration kRedialMax = std::chrono::milliseconds(250);
// The size of a report does not grow with the number of ranks of the replica.
constexpr std::ptrdiff_t kRanksToldMax = 16;

net::ReconnectingClientOptions redial_options(const RankAgentOptions& given) {
  net::ReconnectingClientOptions options;
  options.dial.security = given.security;
  options.dial.security.peer = net::PeerRole::kCoordinator;
  options.dial.connection.user_timeout = given.timeouts.link;
  options.dial.connection.payload_bytes_max = std::size_t{64} << 20U;
  options.backoff.longest = kRedialMax;
  return options;
}

// The replica's digest, once all ranks have computed theirs.
std::optional<StateDigest> digest_of_state(
    const std::map<std::size_t, std::optional<StateDigest>>& parts) {
  std::vector<std::uint64_t> digests;
  for (const auto& [rank, part] : parts) {
    if (!part) {
      return std::nullopt;
    }
    digests.push_back(part->digest);
  }
  auto digest = parts.begin()->second;
  digest->digest = hash_of(digests);
  return digest;
}

}  // namespace

Leader::Leader(
    net::Loop& loop,
    ReplicaAgentOptions options,
    RankAddresses addresses,
    Send send)
    : loop_(loop),
      options_(std::move(options)),
      addresses_(std::move(addresses)),
      send_(std::move(send)),
      machine_(
          {.replica = options_.rank.replica,
           .incarnation = options_.rank.incarnation,
           .config = options_.config,
           .held = options_.held}),
      progress_(ranks()),
      link_speeds_(ranks()),
      missed_heartbeats_(ranks()),
      random_(options_.rank.incarnation),
      coordinator_(std::make_unique<net::ReconnectingClient>(
          loop,
          options_.coordinator,
          redial_options(options_.rank),
          [this] { return random_(); },
          net::ReconnectingClientHandlers{
              .on_connected =
                  [this] {
                    unreached_.clear();
                    reports_out_ = {};
                    views_in_ = {};
                    report();
                  },
              .on_frame =
                  [this](const net::Frame& frame) { received_view(frame); },
              .on_lost =
                  [](const Status& reason) {
                    log_warning(str("[ft] ", reason.message()));
                  },
              .on_failed =
                  [this](const Status& reason) { not_reached(reason); }})) {
  send_heartbeat();
}

// ---- the coordinator ----

// Logs each reason once, since it keeps trying to connect.
void Leader::not_reached(const Status& reason) {
  if (std::exchange(unreached_, reason.message()) != reason.message()) {
    log_warning(str(
        "[ft] no coordinator yet: ", reason.message(), "; it is tried again"));
  }
}

void Leader::received_view(const net::Frame& frame) {
  if (stopped_ || refused(frame) ||
      frame.type != static_cast<std::uint16_t>(FrameType::kRunView)) {
    return;
  }
  if (auto status = views_in_.read(frame.payload); !status.ok()) {
    coordinator_->connection()->close(status);
    return;
  }
  const RunView& view = views_in_.view();
  const auto run = view.run;
  if (!run_is_known_ && view.fenced.empty()) {
    run_is_known_ = true;
    send_all(StartRunTask{run, addresses_.front().key});
  }
  if (!view.asks && machine_.view().run != 0 && run != machine_.view().run &&
      std::exchange(other_run_, run) != run) {
    log_warning(
        str("[ft] expected a coordinator of run ", machine_.view().run,
            ", found one of run ", run, ": its log is another one"));
  }
  if (view.ended) {
    log_info(str("[ft] ", view.fenced));
  }
  carry_out(machine_.received(view));
  warm_up();
  leave_in_order();
  end_in_order();
}

// Whether the two will never understand each other, so that connecting again does not help.
bool Leader::refused(const net::Frame& frame) {
  constexpr auto kView = static_cast<std::uint16_t>(FrameType::kRunView);
  std::string why;
  if (frame.type == static_cast<std::uint16_t>(FrameType::kRefusal)) {
    why = printable(frame.payload, kShownBytesMax);
  } else if (const auto version = other_version(frame.payload);
             version && frame.type == kView) {
    why =
        str("this replica speaks version ", kWireVersion,
            " with its coordinator, and the coordinator version ", *version,
            ": start all with the same version of sherd");
  }
  if (why.empty()) {
    return false;
  }
  log_error("[ft] " + why);
  stop(why);
  return true;
}

void Leader::report() { on(ReportTask{machine_.report()}); }

void Leader::send_heartbeat() {
  if (options_.rank.hooks.reach) {
    options_.rank.hooks.reach("beat", ++beats_);
  }
  for (auto& beats : missed_heartbeats_) {
    ++beats;
  }
  reported_ranks_ = progress_of_ranks();
  report();
  leave_undecided();
  heartbeat_ = loop_.after(kHeartbeatInterval, [this] { send_heartbeat(); });
}

void Leader::on(const ReportTask& task) {
  auto* connection = coordinator_ ? coordinator_->connection() : nullptr;
  if (connection == nullptr || stopped_) {
    return;
  }
  auto report = task.report;
  report.serial = ++reports_;
  report.addresses = addresses_;
  report.progress = progress();
  report.ranks = reported_ranks_;
  report.link_speeds = link_speeds();
  report.finished = finished_;
  connection->send(
      static_cast<std::uint16_t>(FrameType::kReport),
      reports_out_.bytes_of(report));
}

// The replica's progress is that of its busiest rank.
TrainingProgress Leader::progress() const {
  const auto weight = [](Activity activity) {
    constexpr Activity kOrder[] = {Activity::kIdle,     Activity::kWaiting,
                                   Activity::kReducing, Activity::kFetching,
                                   Activity::kApplying, Activity::kComputing,
                                   Activity::kOtherWork};
    return std::ranges::find(kOrder, activity) - kOrder;
  };
  TrainingProgress all;
  all.serial = recovered_ranks_;
  for (const auto& one : progress_) {
    all.serial += one.serial;
    if (weight(one.activity) > weight(all.activity)) {
      all.activity = one.activity;
    }
    if (!all.waits_for) {
      all.waits_for = one.waits_for;
      all.to_read = one.to_read;
    }
  }
  if (all.activity != Activity::kReducing) {
    all.waits_for.reset();
    all.to_read = false;
  }
  return all;
}

// If there are many ranks, selects those that others would wait for: first those whose agents are
// silent, then those that have moved least. In a ring that stands still these are the same ranks in
// all replicas.
std::vector<TrainingProgress> Leader::progress_of_ranks() const {
  std::vector<std::size_t> told(ranks());
  std::iota(told.begin(), told.end(), 0);
  if (std::ssize(told) > kRanksToldMax) {
    const auto order = [&](std::size_t rank) {
      const bool silent = missed_heartbeats_[rank] >= kSilentAfterHeartbeats;
      return std::make_tuple(!silent, progress_[rank].serial, rank);
    };
    const auto end = told.begin() + kRanksToldMax;
    std::partial_sort(told.begin(), end, told.end(), [&](auto one, auto other) {
      return order(one) < order(other);
    });
    told.erase(end, told.end());
    std::ranges::sort(told);
  }
  std::vector<TrainingProgress> all;
  for (const auto rank : told) {
    auto& one = all.emplace_back(progress_[rank]);
    one.missed_heartbeats = missed_heartbeats_[rank];
    one.rank = static_cast<std::uint32_t>(rank);
  }
  return all;
}

// All ranks wait for the slowest.
std::vector<LinkSpeed> Leader::link_speeds() const {
  std::map<ReplicaId, std::uint64_t> slowest;
  for (const auto& of_rank : link_speeds_) {
    for (const auto& link : of_rank) {
      auto& speed =
          slowest.try_emplace(link.peer, link.bytes_per_s).first->second;
      speed = std::min(speed, link.bytes_per_s);
    }
  }
  std::vector<LinkSpeed> speeds;
  for (const auto& [peer, speed] : slowest) {
    speeds.push_back({peer, speed});
  }
  return speeds;
}

// ---- tasks ----

void Leader::carry_out(const Tasks& tasks) {
  for (const auto& task : tasks) {
    std::visit([this](const auto& one) { on(one); }, task);
  }
}

void Leader::send_all(const RankTask& task) {
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    send_(rank, task);
  }
}

void Leader::on(const ComputeTask& task) {
  computed_ = true;
  send_all(task);
}

void Leader::on(const EpochMembers& task) {
  const auto& peers = machine_.view().peers;
  for (std::size_t rank = 0; rank < ranks(); ++rank) {
    RingMembership ring{task.epoch, {}};
    for (const auto& member : task.members) {
      const auto peer =
          std::ranges::find_if(peers, [&](const LiveReplica& one) {
            return one.replica == member.replica &&
                one.incarnation == member.incarnation &&
                one.addresses.size() == ranks();
          });
      if (peer == peers.end()) {
        carry_out(machine_.peer_lost(
            {task.epoch, member.replica,
             str("it has not said where its ", ranks(), " ranks are")}));
        return;
      }
      const auto address = peer->addresses[rank];
      ring.members.push_back(
          {member.replica, member.incarnation, address.host,
           address.reduce_port, address.key});
    }
    send_(rank, ring);
  }
}

void Leader::on(const StopTask& task) { stop(task.reason); }

void Leader::stop(const std::string& reason) {
  stopped_ = true;
  send_all(StopTask{reason});
  // The last report, such as that the program has finished, may still wait for an earlier one.
  if (auto* connection = coordinator_ ? coordinator_->connection() : nullptr) {
    connection->finish({ErrorCode::kAborted, "[ft] the replica has ended"});
  }
  coordinator_.reset();
}

// The replica leaves once it is no member and another replica holds its state. A replica that holds
// nothing had a wrong state: it does not leave before it has another one.
void Leader::leave_in_order() {
  const auto& view = machine_.view();
  if (stopped_ || !machine_.report().leaving || busy_ || !machine_.held()) {
    return;
  }
  const auto id = options_.rank.incarnation;
  const bool member = std::ranges::any_of(
      view.members, [&](const Member& one) { return one.incarnation == id; });
  const auto others = std::ranges::count_if(
      view.peers,
      [&](const LiveReplica& one) { return one.incarnation != id; });
  const bool held =
      std::ranges::any_of(view.peers, [&](const LiveReplica& one) {
        return one.incarnation != id && one.held == view.canonical;
      });
  const bool is_first = view.term == 0;  // It has not heard from a coordinator.
  const bool is_last = others == 0 && view.canonical == machine_.held();
  if (!member && (held || is_first || is_last)) {
    stop({});
  }
}

// Leaves without a decision. The coordinator may be gone, not running, or out of disk space, and
// the program may want to save what the replica holds before somebody kills it. As long as ranks
// work, there is something to wait for.
void Leader::leave_undecided() {
  if (stopped_ || !machine_.report().leaving || busy_) {
    return;
  }
  const auto& view = machine_.view();
  const auto all = progress();
  const bool works = all.activity == Activity::kComputing ||
      all.activity == Activity::kApplying ||
      all.activity == Activity::kOtherWork;
  if (works || !standstill_ || standstill_->progress != all.serial ||
      standstill_->epoch != view.epoch ||
      standstill_->step != view.canonical.step) {
    standstill_ =
        Standstill{all.serial, view.epoch, view.canonical.step, loop_.now()};
    return;
  }
  if (loop_.now() - standstill_->since < options_.rank.timeouts.leave) {
    return;
  }
  if (!machine_.held()) {
    stop("it was told to leave, and holds no state");
    return;
  }
  log_warning(
      str("[ft] it leaves with step ", machine_.held()->step,
          ": it was told to, and nothing was decided for ",
          seconds(options_.rank.timeouts.leave), " s"));
  stop({});
}

// Ends once all others hold at least the same step.
void Leader::end_in_order() {
  // A replica that holds nothing had a wrong state: it fetches another one. One rank's program may
  // have ended while another rank still writes the last step, or before the step was decided.
  if (!finished_ || stopped_ || busy_ || !machine_.held() || machine_.votes()) {
    return;
  }
  const auto& peers = machine_.view().peers;
  if (std::ranges::all_of(peers, [&](const LiveReplica& peer) {
        return peer.held && peer.held->step >= machine_.held()->step;
      })) {
    stop({});
  }
}

// ---- events ----

void Leader::received(std::size_t rank, const RankEvent& event) {
  if (!stopped_) {
    std::visit([&](const auto& one) { on(rank, one); }, event);
    offer_snapshot();
    leave_in_order();
    end_in_order();
  }
}

void Leader::lost_rank(std::size_t rank, const std::string& reason) {
  if (!stopped_) {
    on(StopTask{str("rank ", rank, " of this replica was lost: ", reason)});
  }
}

void Leader::on(std::size_t /*rank*/, const JoinedEvent& event) {
  joined_.erase(joined_.begin(), joined_.lower_bound(machine_.view().epoch));
  if (++joined_[event.epoch] == ranks()) {
    carry_out(machine_.joined(event.epoch));
  }
}

void Leader::on(std::size_t rank, const ReducedEvent& event) {
  digests_.erase(digests_.begin(), digests_.lower_bound(event.attempt));
  auto& digests = digests_[event.attempt];
  digests[rank] = event.digest;
  if (digests.size() == ranks()) {
    carry_out(
        machine_.reduced(event.attempt, hash_of(digests | std::views::values)));
  }
}

void Leader::on(std::size_t /*rank*/, const Suspicion& suspicion) {
  carry_out(machine_.peer_lost(suspicion));
}

// Writes follow one another: the next one begins when all ranks have done this one.
void Leader::on(std::size_t rank, const WrittenEvent& event) {
  written_[rank] = event.digest;
  if (written_.size() == ranks()) {
    const auto digest = digest_of_state(std::exchange(written_, {}));
    busy_ = false;
    carry_out(
        event.serial == 0
            ? machine_.applied(event.state, digest)
            : machine_.installed(event.serial, event.state, digest));
  }
}

void Leader::on(std::size_t rank, const BadGradientsEvent& event) {
  auto fault = event.fault;
  fault.reason = str("rank ", rank, ": ", fault.reason);
  carry_out(machine_.bad_gradients(event.serial, fault));
}

void Leader::on(std::size_t rank, const LinkSpeeds& links) {
  link_speeds_[rank] = links;
}

void Leader::on(std::size_t rank, const TrainingProgress& progress) {
  progress_[rank] = progress;
  // The serial changes, so that a coordinator that took the rank for hung notices.
  if (std::exchange(missed_heartbeats_[rank], 0) >= kSilentAfterHeartbeats) {
    ++recovered_ranks_;
    // Next to the old silence, the changed serial would look like another hang.
    reported_ranks_ = progress_of_ranks();
  }
}

void Leader::on(std::size_t /*rank*/, const LeaveEvent&) {
  carry_out(machine_.leave());
}

void Leader::on(std::size_t rank, const FinishedEvent&) {
  if (rank != 0 || finished_) {
    return;
  }
  finished_ = true;
  report();
  linger_ = loop_.after(options_.rank.timeouts.linger, [this] {
    stop(
        machine_.held()
            ? ""
            : "its parameters are not those of the others after its last step");
  });
  end_in_order();
}

// ---- snapshots for others ----

void Leader::snapshot_wanted() {
  snapshot_wanted_ = true;
  offer_snapshot();
}

// Snapshots are taken between two writes, when all ranks hold the same state.
void Leader::offer_snapshot() {
  if (snapshot_wanted_ && !busy_ && machine_.held() && !stopped_) {
    snapshot_wanted_ = false;
    send_all(SnapshotTask{*machine_.held()});
  }
}

}  // namespace sherd::ft
