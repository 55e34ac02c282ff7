// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/service.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "ft/coordinator/awake_clock.h"
#include "ft/coordinator/log_store.h"
#include "ft/coordinator/run_book.h"
#include "ft/wire/codec.h"
#include "ft/wire/texts.h"
#include "net/connection.h"

namespace sherd::ft {
namespace {

// How often it looks for who is silent.
constexpr Duration kTick = kBeat / 2;
constexpr Duration kAskOwner = std::chrono::seconds(1);
// Ticks that are later than this were missed because the process stood still.
constexpr Duration kGapMax = std::chrono::milliseconds(500);
// A report says little; orders, which carry all addresses, may be longer.
constexpr std::size_t kReportBytesMax = std::size_t{1} << 20U;
// Waiting for their first report, or fenced.
constexpr std::size_t kSessionsMax = 16384;

using Life = std::pair<ReplicaId, Incarnation>;
// Counts connections: a later one is higher.
using SessionId = std::uint64_t;

struct Session {
  std::unique_ptr<net::Connection> connection;
  Instant since{};
  // Whose it is, by its first report; none also when another one took over.
  std::optional<Life> life{};
  bool fenced = false;   // As was said.
  bool refused = false;  // The same.
};

}  // namespace

struct Service::Impl {
  Impl(net::Loop& of, const ServiceOptions& given)
      : loop(of),
        options(given),
        clock(real, kGapMax),
        watch(given.watch),
        book(real.now()) {}

  net::Loop& loop;
  const ServiceOptions options;
  std::function<void(const Status&)> on_end;
  const SteadyClock real;
  const AwakeClock clock;  // Of all that decides.
  std::unique_ptr<LogStore> store;
  std::optional<Coordinator> machine;  // None: the log cannot be written.
  std::string complaint;
  Duration log_retry{};
  Watch watch;
  RunBook book;
  SessionId last_session = 0;
  std::map<SessionId, Session> sessions;
  std::map<Life, SessionId> lives;  // Where each is reached.
  std::unique_ptr<net::Listener> listener;
  net::Timer tick_timer;
  net::Timer machine_timer;
  net::Timer log_timer;
  Instant owner_asked{};

  Status listen();
  Status begin_term();
  Status carry_out(const Decisions& decisions);
  void decide(const Decisions& decisions);
  void tell(const Tell& tell);
  void schedule();
  void tick();
  void act_on(const Finding& finding);
  void close_silent_sessions(Instant now);
  void log_failed(const Status& status);
  void retry_log();
  void end(const Status& why);

  void connected(std::unique_ptr<net::Connection> connection);
  void received(SessionId id, const net::Frame& frame);
  bool belongs(SessionId id, const Report& report);
  void refuse(SessionId id, const std::string& why);
  void closed(SessionId id, const Status& reason);
};

// ---- the log and the machine ----

Status Service::Impl::begin_term() {
  Decisions decisions;
  machine.emplace(
      options.coordinator, store->take_history(), clock.now(), decisions);
  auto status = carry_out(decisions);
  if (status.ok()) {
    complaint.clear();
    log_retry = options.log_retry_min;
    schedule();
  }
  return status;
}

// All records of a batch are on the disk before anybody is told anything.
Status Service::Impl::carry_out(const Decisions& decisions) {
  std::vector<Record> records;
  for (const auto& decision : decisions) {
    if (const auto* append = std::get_if<AppendRecord>(&decision.what)) {
      records.push_back(append->record);
    }
  }
  if (auto status = store->append(records); !status.ok()) {
    return status;
  }
  for (const auto& decision : decisions) {
    if (const auto* append = std::get_if<AppendRecord>(&decision.what)) {
      book.wrote(append->record, decision.reason, real.now());
    } else if (const auto* found = std::get_if<Notice>(&decision.what)) {
      book.noticed(*found, decision.reason, real.now());
    } else {
      tell(std::get<Tell>(decision.what));
    }
  }
  return {};
}

void Service::Impl::decide(const Decisions& decisions) {
  if (auto status = carry_out(decisions); !status.ok()) {
    log_failed(status);
    return;
  }
  schedule();
}

void Service::Impl::tell(const Tell& tell) {
  const auto found = lives.find({tell.replica, tell.incarnation});
  if (found != lives.end() && !tell.order.fenced.empty() &&
      !std::exchange(sessions.at(found->second).fenced, true)) {
    log_warning(
        str("[ft] replica ", tell.replica, " is fenced: ", tell.order.fenced));
  }
  book.told(tell.replica, tell.incarnation, tell.order);
  if (found == lives.end()) {
    return;  // It will hear the same when it is back.
  }
  try {
    sessions.at(found->second)
        .connection->send(
            static_cast<std::uint16_t>(FrameType::kOrder),
            bytes_of(tell.order));
    book.count("orders");
  } catch (const Error& error) {
    // Too long: what others have reported shall not end the coordinator.
    refuse(found->second, error.what());
  }
}

void Service::Impl::schedule() {
  const Instant now = clock.now();
  const auto next = machine ? machine->next_tick(now) : std::nullopt;
  if (!next) {
    machine_timer.cancel();
    return;
  }
  const Duration wait = std::max(*next - now, Duration(0));
  machine_timer = loop.after(wait, [this] {
    if (machine) {
      decide(machine->tick(clock.now()));
    }
  });
}

// What the machine believes is ahead of the log now: it is forgotten.
void Service::Impl::log_failed(const Status& status) {
  machine.reset();
  store.reset();
  machine_timer.cancel();
  if (status.code() == ErrorCode::kFailedPrecondition) {
    end(status);
    return;
  }
  if (complaint != status.message()) {
    book.failed("log", status.message(), real.now());
  }
  book.count("log_failures");
  complaint = status.message();
  log_timer = loop.after(log_retry, [this] { retry_log(); });
  log_retry = std::min(2 * log_retry, options.log_retry_max);
}

void Service::Impl::retry_log() {
  auto opened = LogStore::open(options.log);
  if (!opened.ok()) {
    log_failed(opened.status());
    return;
  }
  store = std::move(opened).value();
  if (auto status = begin_term(); !status.ok()) {
    log_failed(status);
    return;
  }
  log_info(str("[ft] the log can be written again: '", options.log, "'"));
}

void Service::Impl::end(const Status& why) {
  complaint = why.message();
  tick_timer.cancel();
  log_timer.cancel();
  loop.post([notify = std::exchange(on_end, nullptr), why] {
    if (notify) {
      notify(why);
    }
  });
}

// ---- watching ----

void Service::Impl::tick() {
  tick_timer = loop.after(kTick, [this] { tick(); });
  const Instant now = clock.now();
  // One that was stopped and replaced may hear nothing that it has to write.
  if (store && store->size() > 0 && now >= owner_asked + kAskOwner) {
    owner_asked = now;
    if (auto status = store->check_owner();
        !status.ok() && status.code() == ErrorCode::kFailedPrecondition) {
      log_failed(status);
      return;
    }
  }
  for (const auto& finding : watch.tick(now)) {
    act_on(finding);
  }
  for (const auto& [life, session] : lives) {
    const auto& [replica, incarnation] = life;
    book.watched(
        replica, incarnation,
        {.hung = watch.hung(replica, incarnation),
         .slow = watch.slow(replica, incarnation)});
  }
  close_silent_sessions(now);
}

void Service::Impl::act_on(const Finding& finding) {
  switch (finding.kind) {
    case Finding::Kind::kSlow:
      book.slow(finding.replica, finding.reason, real.now());
      return;
    case Finding::Kind::kHung:
      // One that is fenced has nothing to do, or nobody asks for it.
      if (!machine || !machine->counts(finding.replica, finding.incarnation)) {
        return;
      }
      book.count("hangs");
      book.failed(
          name_of(finding.replica), "it hangs: " + finding.reason, real.now());
      if (finding.link) {
        machine->link_fails(finding.link->from, finding.link->to);
      }
      decide(machine->hangs(
          finding.replica, finding.incarnation, finding.reason, clock.now()));
      return;
    case Finding::Kind::kSilent:
      book.count("silences");
      const auto found = lives.find({finding.replica, finding.incarnation});
      if (found != lives.end()) {
        sessions.at(found->second)
            .connection->close(
                Status(ErrorCode::kDeadlineExceeded, finding.reason));
      }
      return;
  }
}

void Service::Impl::close_silent_sessions(Instant now) {
  for (const auto& [id, session] : sessions) {
    if (!session.life && session.connection->open() &&
        now - session.since > options.first_report_timeout) {
      refuse(id, "expected a report in time, found none");
    }
  }
}

// ---- connections ----

Status Service::Impl::listen() {
  auto listen_options = options.listen;
  listen_options.connection.received_bytes_max = kReportBytesMax;
  auto listening = net::Listener::listen(
      loop, options.address, listen_options,
      {.on_connection =
           [this](std::unique_ptr<net::Connection> connection) {
             connected(std::move(connection));
           },
       .on_refused =
           [this](const Status& reason) {
             book.count("strangers");
             log_warning("[ft] " + reason.message());
           }});
  if (!listening.ok()) {
    return listening.status();
  }
  listener = std::move(listening).value();
  return {};
}

void Service::Impl::connected(std::unique_ptr<net::Connection> connection) {
  book.count("connections");
  if (sessions.size() >= kSessionsMax) {
    book.count("refusals");
    return;  // Destroying it closes it.
  }
  const SessionId id = ++last_session;
  Session& session = sessions[id];
  session.connection = std::move(connection);
  session.since = clock.now();
  session.connection->start(
      {.on_frame = [this, id](const net::Frame& frame) { received(id, frame); },
       .on_closed = [this, id](const Status& why) { closed(id, why); }});
}

void Service::Impl::received(SessionId id, const net::Frame& frame) {
  constexpr auto kReport = static_cast<std::uint16_t>(FrameType::kReport);
  if (frame.type != kReport) {
    refuse(
        id,
        str("expected a report (frame type ", kReport, "), found type ",
            frame.type));
    return;
  }
  auto decoded = report_of(frame.payload);
  if (!decoded.ok()) {
    refuse(id, decoded.status().message());
    return;
  }
  const Report report = with_printable_texts(std::move(decoded).value());
  if (!belongs(id, report)) {
    return;
  }
  if (machine && machine->is_overtaken(report)) {
    return;
  }
  book.count("reports");
  const Instant now = clock.now();
  // One that is refused, as a former life that wakes, is not the replica.
  const bool has_place = !machine || machine->has_place(report);
  if (has_place) {
    watch.heard(
        report.replica, report.incarnation, report.progress, report.ranks, now);
  }
  book.heard(report, sessions.at(id).connection->peer(), real.now(), has_place);
  if (machine) {
    decide(machine->heard(report, now));
  }
}

// Binds a connection to the life of its first report. What a former connection
// still brings is refused, so that the machine hears lives in their order.
bool Service::Impl::belongs(SessionId id, const Report& report) {
  Session& session = sessions.at(id);
  const Life life{report.replica, report.incarnation};
  if (session.life) {
    if (*session.life != life) {
      refuse(
          id,
          str("expected reports of replica ", session.life->first,
              ", found one of replica ", life.first, " or of another life"));
    }
    return *session.life == life;
  }
  // All lives of this replica.
  for (auto at = lives.lower_bound({life.first, 0});
       at != lives.end() && at->first.first == life.first; ++at) {
    if (at->second > id) {
      refuse(id, "it has a newer connection");
      return false;
    }
  }
  if (const auto found = lives.find(life); found != lives.end()) {
    sessions.at(found->second).life.reset();
    refuse(found->second, "it has a newer connection");
  }
  lives[life] = id;
  session.life = life;
  return true;
}

void Service::Impl::refuse(SessionId id, const std::string& why) {
  Session& session = sessions.at(id);
  session.refused = true;
  book.count("refusals");
  log_warning(str("[ft] closing ", session.connection->peer(), ": ", why));
  session.connection->close(Status(ErrorCode::kPeerMismatch, why));
}

void Service::Impl::closed(SessionId id, const Status& reason) {
  const auto life = sessions.at(id).life;
  const bool refused = sessions.at(id).refused;
  sessions.erase(id);
  if (!life) {
    // Bytes that are no frame, or one that is too long.
    if (!refused && reason.code() == ErrorCode::kPeerMismatch) {
      book.count("refusals");
      log_warning(str("[ft] ", reason.message()));
    }
    return;
  }
  lives.erase(*life);
  watch.ended(life->first, life->second);
  book.lost(life->first, life->second, reason.message(), real.now());
  if (machine) {
    decide(machine->lost(
        life->first, life->second, reason.message(), clock.now()));
  }
}

// ---- the service ----

Service::Service(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Service::~Service() = default;

Result<std::unique_ptr<Service>> Service::start(
    net::Loop& loop,
    const ServiceOptions& options,
    std::function<void(const Status& why)> on_end) {
  auto impl = std::make_unique<Impl>(loop, options);
  auto opened = LogStore::open(options.log);
  if (!opened.ok()) {
    return opened.status();
  }
  impl->store = std::move(opened).value();
  impl->on_end = std::move(on_end);
  if (auto status = impl->listen(); !status.ok()) {
    return status;
  }
  if (auto status = impl->begin_term(); !status.ok()) {
    return status;
  }
  impl->tick();
  return std::unique_ptr<Service>(new Service(std::move(impl)));
}

net::HostAddress Service::address() const { return impl_->listener->address(); }

RunStatus Service::status() {
  const auto& machine = impl_->machine;
  RunBook::Beside beside{
      .history = nullptr,
      .complaint = impl_->complaint,
      .slept = impl_->clock.slept(),
      .watch = &impl_->watch,
      .watched_at = impl_->clock.now()};
  if (machine) {
    beside.history = &machine->history();
    beside.complaint = machine->complaint();
  }
  return impl_->book.status(beside, impl_->real.now());
}

}  // namespace sherd::ft
