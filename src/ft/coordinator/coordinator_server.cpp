// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/coordinator_server.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "ft/coordinator/awake_clock.h"
#include "ft/coordinator/log_store.h"
#include "ft/coordinator/status_board.h"
#include "ft/wire/codec.h"
#include "ft/wire/report_stream.h"
#include "ft/wire/view_stream.h"
#include "net/connection.h"

namespace sherd::ft {
namespace {

// How often the failure detector looks.
constexpr Duration kTick = kHeartbeatInterval / 2;
constexpr Duration kAskOwner = std::chrono::seconds(1);
// If a tick comes later than this, the process itself was not running.
constexpr Duration kGapMax = std::chrono::milliseconds(500);
// Reports are short; views carry the addresses of all replicas and may be longer.
constexpr std::size_t kReportBytesMax = std::size_t{1} << 20U;
// Connections that wait for their first report or are fenced count as well.
constexpr std::size_t kConnectionsMax = 16384;

using Life = std::pair<ReplicaId, Incarnation>;
// Numbers connections; a later one is higher.
using ConnectionId = std::uint64_t;

struct ReplicaConnection {
  net::ConnectionHandle connection;
  Instant since{};
  // The sender of its first report. It is also empty once another connection has taken over.
  std::optional<Life> life{};
  ReportReader reports{};  // What has arrived on the connection.
  ToldView told{};         // What was sent on the connection.
  bool fenced = false;     // Logged as fenced.
  bool refused = false;    // Logged as refused.
};

}  // namespace

struct CoordinatorServer::Impl {
  Impl(net::Loop& of, const CoordinatorServerOptions& given)
      : loop(of),
        options(given),
        clock(real, kGapMax),
        detector(given.detector),
        board(real.now()) {}

  net::Loop& loop;
  const CoordinatorServerOptions options;
  std::function<void(const Status&)> on_end;
  const SteadyClock real;
  const AwakeClock clock;  // The clock for all decisions.
  std::unique_ptr<LogStore> store;
  std::optional<Coordinator> machine;  // Empty while the log cannot be written.
  std::string complaint;
  // Why the machine decides nothing, as last logged.
  std::string standstill;
  // Why the log could not be summarised, as last logged.
  std::string summary_complaint;
  std::int64_t log_size = 0;  // How many records were ever in the log.
  // Warnings that strangers cause, by kind.
  std::map<std::string, LimitedLog> warnings;
  Duration log_retry{};
  FailureDetector detector;
  StatusBoard board;
  ConnectionId last_connection = 0;
  std::map<ConnectionId, ReplicaConnection> connections;
  std::map<Life, ConnectionId> lives;  // The connection of each incarnation.
  ViewWriter views;
  // Reports for the machine, which takes all that arrived in one turn of the loop at once.
  std::vector<Report> reports;
  net::Timer reports_timer;
  std::unique_ptr<net::Listener> listener;
  net::Timer tick_timer;
  net::Timer machine_timer;
  net::Timer log_timer;
  Instant owner_asked{};

  // ---- the log and the machine ----

  Status begin_term() {
    CoordinatorDecisions decisions;
    // The new machine does not know which replicas hang.
    detector.find_hangs_again();
    machine.emplace(
        options.coordinator, store->take_history(), clock.now(), decisions);
    auto status = carry_out(decisions);
    if (status.ok()) {
      complaint.clear();
      log_retry = kLogRetryMin;
      schedule();
    }
    return status;
  }

  // All records of a batch are on disk before any replica is sent anything.
  Status carry_out(const CoordinatorDecisions& decisions) {
    std::vector<Record> records;
    for (const auto& decision : decisions) {
      if (const auto* record = std::get_if<Record>(&decision.what)) {
        records.push_back(*record);
      }
    }
    SHERD_RETURN_IF_FAILED(store->append(records));
    log_size = store->size();
    for (const auto& decision : decisions) {
      if (const auto* record = std::get_if<Record>(&decision.what)) {
        board.wrote(*record, decision.reason, real.now());
        if (const auto* commit = std::get_if<CommitRecord>(record)) {
          detector.committed(commit->participants);
        }
      } else if (
          const auto* found = std::get_if<DetectedFault>(&decision.what)) {
        board.noticed(*found, decision.reason, real.now());
      } else {
        tell(std::get<SendView>(decision.what));
      }
    }
    log_standstill(decisions);
    return summarise();
  }

  // Nobody waits for the summary, and the log is complete without it.
  Status summarise() {
    auto status = store->summarise(machine->history());
    if (status.ok() || status.code() == ErrorCode::kFailedPrecondition) {
      return status;
    }
    board.count("summary_failures");
    if (summary_complaint != status.message()) {
      summary_complaint = status.message();
      board.failed("log", status.message(), real.now());
    }
    return {};
  }

  // Logs why the machine decides nothing when this changes, unless it was logged as a detected fault.
  void log_standstill(const CoordinatorDecisions& decisions) {
    const auto& why = machine->complaint();
    if (standstill == why) {
      return;
    }
    standstill = why;
    const bool is_told = std::ranges::any_of(decisions, [&](const auto& one) {
      return std::holds_alternative<DetectedFault>(one.what) &&
          one.reason == why;
    });
    if (why.empty()) {
      log_info("[ft] the run goes on");
    } else if (!is_told) {
      board.failed("the run", why, real.now());
    }
  }

  void decide(const CoordinatorDecisions& decisions) {
    if (auto status = carry_out(decisions); !status.ok()) {
      log_failed(status);
      return;
    }
    schedule();
  }

  void tell(const SendView& tell) {
    const auto found = lives.find({tell.replica, tell.incarnation});
    if (found != lives.end() && !tell.view->fenced.empty() &&
        !std::exchange(connections.at(found->second).fenced, true)) {
      warn(
          "replicas that are fenced",
          str("replica ", tell.replica, " is fenced: ", tell.view->fenced));
    }
    board.told(tell.replica, tell.incarnation, tell.view);
    if (found == lives.end()) {
      return;  // It gets the same view when it is back.
    }
    try {
      auto& entry = connections.at(found->second);
      entry.connection->send(
          static_cast<std::uint16_t>(FrameType::kRunView),
          views.bytes_for(entry.told, tell.view));
      board.count("orders");
    } catch (const Error& error) {
      // The view is too long: what others have reported must not end the coordinator.
      refuse(found->second, error.what());
    }
  }

  void schedule() {
    const auto next = machine ? machine->next_tick() : std::nullopt;
    if (!next) {
      machine_timer.cancel();
      return;
    }
    const Duration wait = std::max(*next - clock.now(), Duration(0));
    machine_timer = loop.after(wait, [this] {
      take_reports();
      if (machine) {
        decide(machine->tick(clock.now()));
      }
    });
  }

  // The machine is now ahead of the log, so it is dropped.
  void log_failed(const Status& status) {
    machine.reset();
    store.reset();
    machine_timer.cancel();
    if (status.code() == ErrorCode::kFailedPrecondition) {
      end(status);
      return;
    }
    if (complaint != status.message()) {
      board.failed("log", status.message(), real.now());
    }
    board.count("log_failures");
    complaint = status.message();
    log_timer = loop.after(log_retry, [this] { retry_log(); });
    log_retry = std::min(2 * log_retry, options.log_retry_max);
  }

  // Another term needs the log that could not be written: an empty one would begin another run.
  void retry_log() {
    std::error_code error;
    if (!std::filesystem::exists(options.log, error) && !error) {
      log_failed(
          {ErrorCode::kUnavailable,
           str("[ft] log '", options.log, "': expected ", log_size,
               " records, found no file: put it back")});
      return;
    }
    auto opened =
        LogStore::open(options.log, {.summary_every = options.summary_every});
    if (!opened.ok()) {
      log_failed(opened.status());
      return;
    }
    // The file was deleted meanwhile and created again.
    if (opened.value()->size() < log_size) {
      end(
          {ErrorCode::kFailedPrecondition,
           str("[ft] log '", options.log, "': expected ", log_size,
               " records or more, found ", opened.value()->size(),
               ": it is not the one that could not be written; put that back "
               "and start the coordinator again")});
      return;
    }
    store = std::move(opened).value();
    if (auto status = begin_term(); !status.ok()) {
      log_failed(status);
      return;
    }
    log_info(str("[ft] the log can be written again: '", options.log, "'"));
  }

  void end(const Status& why) {
    complaint = why.message();
    tick_timer.cancel();
    log_timer.cancel();
    loop.post([notify = std::exchange(on_end, nullptr), why] {
      if (notify) {
        notify(why);
      }
    });
  }

  // ---- monitoring ----

  void tick() {
    tick_timer = loop.after(kTick, [this] { tick(); });
    take_reports();
    const Instant now = clock.now();
    // A coordinator that was stopped and replaced may have nothing to write that would reveal it.
    if (store && store->size() > 0 && now >= owner_asked + kAskOwner) {
      owner_asked = now;
      if (auto status = store->check_owner();
          !status.ok() && status.code() == ErrorCode::kFailedPrecondition) {
        log_failed(status);
        return;
      }
    }
    for (const auto& finding : detector.tick(now)) {
      act_on(finding);
    }
    close_silent_connections(now);
  }

  // Strangers can cause the warning as often as they like.
  void warn(const char* kind, const std::string& message) {
    warnings[kind].warn(real.now(), "[ft] " + message);
  }

  void act_on(const Finding& finding) {
    switch (finding.kind) {
      case Finding::Kind::kSlow:
        board.slow(finding.replica, finding.reason, real.now());
        return;
      case Finding::Kind::kHung:
        // A fenced replica has nothing to do, and nobody waits for it. But one of which the machine
        // has not heard yet may be a member soon.
        if (!machine ||
            !machine->counts(finding.replica, finding.incarnation)) {
          detector.find_hang_again(finding.replica, finding.incarnation);
          return;
        }
        board.count("hangs");
        board.failed(
            name_of(finding.replica), "it hangs: " + finding.reason,
            real.now());
        decide(decisions_on(finding));
        return;
      case Finding::Kind::kSilent:
        board.count("silences");
        const auto found = lives.find({finding.replica, finding.incarnation});
        if (found != lives.end()) {
          connections.at(found->second)
              .connection->close(
                  Status(ErrorCode::kDeadlineExceeded, finding.reason));
        }
        return;
    }
  }

  // If links are dead, the replicas at their ends do not hang. What is known of the links may belong
  // to an epoch that is over.
  CoordinatorDecisions decisions_on(const Finding& finding) {
    auto links = finding.links;
    std::erase_if(links, [&](const DeadLink& link) {
      return link.epoch != machine->history().epoch;
    });
    return links.empty()
        ? machine->hangs(
              finding.replica, finding.incarnation, finding.reason, clock.now())
        : machine->links_fail(
              broken_links_of(links),
              str(name_of(finding.replica), " hangs: ", finding.reason),
              clock.now());
  }

  void close_silent_connections(Instant now) {
    for (const auto& [id, entry] : connections) {
      if (!entry.life && entry.connection->open() &&
          now - entry.since > options.first_report_timeout) {
        refuse(id, "expected a report in time, found none");
      }
    }
  }

  // ---- connections ----

  Status listen() {
    auto listen_options = options.listen;
    listen_options.connection.received_bytes_max = kReportBytesMax;
    SHERD_ASSIGN_OR_RETURN(
        listener,
        net::Listener::listen(
            loop, options.address, listen_options,
            {.on_connection =
                 [this](net::ConnectionHandle connection) {
                   connected(std::move(connection));
                 },
             .on_refused =
                 [this](const Status& /*the listener logs it*/) {
                   board.count("strangers");
                 }}));
    return {};
  }

  void connected(net::ConnectionHandle connection) {
    board.count("connections");
    if (connections.size() >= kConnectionsMax) {
      board.count("refusals");
      return;  // Destroying it closes it.
    }
    const ConnectionId id = ++last_connection;
    ReplicaConnection& entry = connections[id];
    entry.connection = std::move(connection);
    entry.since = clock.now();
    entry.connection->start(
        {.on_frame = [this,
                      id](const net::Frame& frame) { received(id, frame); },
         .on_closed = [this, id](const Status& why) { closed(id, why); }});
  }

  void received(ConnectionId id, const net::Frame& frame) {
    constexpr auto kReport = static_cast<std::uint16_t>(FrameType::kReport);
    if (frame.type != kReport) {
      refuse(
          id,
          str("expected a report (frame type ", kReport, "), found type ",
              frame.type));
      return;
    }
    if (const auto version = other_version(frame.payload)) {
      refuse_version(id, *version);
      return;
    }
    auto& entry = connections.at(id);
    if (auto status = entry.reports.read(frame.payload); !status.ok()) {
      refuse(id, status.message());
      return;
    }
    const Report& report = entry.reports.report();
    if (!belongs(id, report)) {
      return;
    }
    if (machine && machine->is_overtaken(report)) {
      return;
    }
    board.count("reports");
    const Instant now = clock.now();
    // A refused sender, such as a former incarnation that wakes up, does not speak for the replica.
    const bool has_place = !machine || machine->has_place(report);
    if (has_place) {
      detector.received(report, now);
    }
    board.received(report, entry.connection->peer(), real.now(), has_place);
    if (reports.empty()) {
      reports_timer = loop.after(Duration(0), [this] { take_reports(); });
    }
    reports.push_back(report);
  }

  // Runs before the machine hears of anything that came later.
  void take_reports() {
    const auto taken = std::exchange(reports, {});
    if (machine && !taken.empty()) {
      decide(machine->received(taken, clock.now()));
    }
  }

  // Binds a connection to the incarnation of its first report. Late reports of a former connection
  // are refused, so that the machine receives incarnations in order.
  bool belongs(ConnectionId id, const Report& report) {
    ReplicaConnection& entry = connections.at(id);
    const Life life{report.replica, report.incarnation};
    if (entry.life) {
      if (*entry.life != life) {
        refuse(
            id,
            str("expected reports of replica ", entry.life->first,
                ", found one of replica ", life.first, " or of another life"));
      }
      return *entry.life == life;
    }
    // All incarnations of this replica.
    for (auto at = lives.lower_bound({life.first, 0});
         at != lives.end() && at->first.first == life.first; ++at) {
      if (at->second > id) {
        refuse(id, "it has a newer connection");
        return false;
      }
    }
    if (const auto found = lives.find(life); found != lives.end()) {
      connections.at(found->second).life.reset();
      refuse(found->second, "it has a newer connection");
    }
    lives[life] = id;
    entry.life = life;
    return true;
  }

  void refuse(ConnectionId id, const std::string& why) {
    ReplicaConnection& entry = connections.at(id);
    entry.refused = true;
    board.count("refusals");
    warn(
        "connections that are closed",
        str("closing ", entry.connection->peer(), ": ", why));
    entry.connection->close(Status(ErrorCode::kPeerMismatch, why));
  }

  // The replica is told, since it would otherwise try forever.
  void refuse_version(ConnectionId id, std::uint16_t version) {
    ReplicaConnection& entry = connections.at(id);
    const std::string why =
        str("the coordinator speaks version ", kWireVersion,
            " with its replicas, and this replica version ", version,
            ": start all with the same version of sherd");
    entry.refused = true;
    board.count("refusals");
    warn(
        "replicas of another version",
        str("refusing ", entry.connection->peer(), ": ", why));
    entry.connection->send(
        static_cast<std::uint16_t>(FrameType::kRefusal), why);
    entry.connection->finish(Status(ErrorCode::kPeerMismatch, why));
  }

  void closed(ConnectionId id, const Status& reason) {
    take_reports();
    const auto life = connections.at(id).life;
    const bool refused = connections.at(id).refused;
    connections.erase(id);
    if (!life) {
      // The bytes are no frame, or the frame is too long.
      if (!refused && reason.code() == ErrorCode::kPeerMismatch) {
        board.count("refusals");
        warn("connections that are closed", reason.message());
      }
      return;
    }
    lives.erase(*life);
    detector.ended(life->first, life->second);
    board.lost(life->first, life->second, reason.message(), real.now());
    if (machine) {
      decide(machine->lost(
          life->first, life->second, reason.message(), clock.now()));
    }
  }
};

// ---- the server ----

CoordinatorServer::CoordinatorServer(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
CoordinatorServer::~CoordinatorServer() = default;

Result<std::unique_ptr<CoordinatorServer>> CoordinatorServer::start(
    net::Loop& loop,
    const CoordinatorServerOptions& options,
    std::function<void(const Status& why)> on_end) {
  auto impl = std::make_unique<Impl>(loop, options);
  SHERD_ASSIGN_OR_RETURN(
      impl->store,
      LogStore::open(options.log, {.summary_every = options.summary_every}));
  impl->on_end = std::move(on_end);
  SHERD_RETURN_IF_FAILED(impl->listen());
  SHERD_RETURN_IF_FAILED(impl->begin_term());
  impl->tick();
  return std::unique_ptr<CoordinatorServer>(
      new CoordinatorServer(std::move(impl)));
}

net::HostAddress CoordinatorServer::address() const {
  return impl_->listener->address();
}

RunStatus CoordinatorServer::status() {
  const auto& machine = impl_->machine;
  StatusBoard::StatusSources sources{
      .history = nullptr,
      .complaint = impl_->complaint,
      .slept = impl_->clock.slept(),
      .detector = &impl_->detector,
      .watched_at = impl_->clock.now()};
  if (machine) {
    sources.history = &machine->history();
    sources.complaint = machine->complaint();
  }
  return impl_->board.status(sources, impl_->real.now());
}

}  // namespace sherd::ft
