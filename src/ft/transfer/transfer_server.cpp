// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/transfer_server.h"

#include <algorithm>
#include <list>
#include <optional>
#include <utility>
#include "base/check.h"
#include "ft/transfer/digest.h"
#include "ft/transfer/session.h"
#include "ft/transfer/sum_store.h"
#include "ft/transfer/token_bucket.h"
#include "net/listener.h"

namespace sherd::ft {

using namespace transfer;  // NOLINT(google-build-using-namespace): its own.

namespace {

// How often it tells those who wait that it lives, and drops what is too old.
constexpr Duration kTick = std::chrono::milliseconds(200);
// Ranks of replicas that come back fetch one thing at a time.
constexpr std::size_t kSessionsMax = 64;
// Then other functions of the loop have their turn.
constexpr int kChunksAtOnce = 4;
// When nobody who wants a chunk has room for it: a connection does not tell.
constexpr Duration kRoomWait = std::chrono::milliseconds(1);
constexpr std::uint64_t kChunkBytesMin = 4096;
constexpr std::uint64_t kChunksPerSecond = 8;

// Of one chunk, so that under a low limit something comes often enough; and not so
// short that there are more digests than an answer has room for.
std::uint32_t chunk_bytes_for(
    std::uint64_t bytes, std::uint64_t bytes_per_s_max) {
  std::uint64_t chunk = kChunkBytesMax;
  if (bytes_per_s_max > 0) {
    chunk = std::clamp<std::uint64_t>(
        bytes_per_s_max / kChunksPerSecond, kChunkBytesMin, kChunkBytesMax);
  }
  while (chunk < kChunkBytesMax && bytes / chunk >= kDigestsMax) {
    chunk = std::min<std::uint64_t>(2 * chunk, kChunkBytesMax);
  }
  return static_cast<std::uint32_t>(chunk);
}

SumStore::Limits limits_of(const TransferServerOptions& options) {
  SHERD_CHECK(
      0 <= options.sums_kept, "[ft] expected 0 <= sums_kept, found ",
      options.sums_kept);
  return {
      .kept = static_cast<std::size_t>(options.sums_kept),
      .bytes_max = options.sums_bytes_max};
}

struct Snapshot {
  StateId state;
  std::shared_ptr<const std::string> bytes;
  std::vector<std::uint64_t> digests;
  Instant offered{0};
  Instant until{0};
};

struct Visit {
  explicit Visit(std::unique_ptr<net::Connection> connection)
      : session(std::move(connection)) {}
  Session session;
  Instant waits_until{0};
};

using Visits = std::list<std::unique_ptr<Visit>>;

}  // namespace

struct TransferServer::Impl {
  Impl(
      net::Loop& its_loop,
      const TransferServerOptions& its_options,
      std::function<void()> call)
      : loop(its_loop),
        options(its_options),
        snapshot_wanted(std::move(call)),
        sums(limits_of(its_options)),
        bucket(its_options.bytes_per_s_max) {}

  void listen();
  void accept(std::unique_ptr<net::Connection> connection);
  void closed(Visit& visit);

  void requested(Visit& visit, const Request& request);
  void ask_snapshot(Visit& visit);
  void fetch_snapshot(Visit& visit);
  void fetch_sum(Visit& visit);
  bool answer_sum(Visit& visit);
  void wait(Visit& visit);
  bool answer(Visit& visit);
  std::string snapshot_text() const;
  void tell_askers(const StateId& state);

  void send_chunks();
  Visits::iterator next_to_send(bool states_wait);
  void tick();
  void tick_visit(Visit& visit, Instant now);
  void trim(Instant now);

  net::Loop& loop;
  const TransferServerOptions options;
  const std::function<void()> snapshot_wanted;
  std::uint64_t run = 0;
  std::optional<Snapshot> snapshot;
  std::optional<StateId> promised;  // Of the snapshot that is to come.
  SumStore sums;
  TokenBucket bucket;
  std::uint64_t bytes_sent = 0;
  Visits visits;  // Who was sent a chunk goes to the end.
  std::unique_ptr<net::Listener> listener;
  net::Timer ticks;
  net::Timer sending;
};

void TransferServer::Impl::listen() {
  auto result = net::Listener::listen(
      loop, {options.host, 0},
      {.security = options.security,
       .connection = {.payload_bytes_max = kPayloadBytesMax}},
      {.on_connection = [this](std::unique_ptr<net::Connection> connection) {
        accept(std::move(connection));
      }});
  listener = std::move(result).value();
  ticks = loop.after(kTick, [this] { tick(); });
}

void TransferServer::Impl::accept(std::unique_ptr<net::Connection> connection) {
  const bool full = visits.size() >= kSessionsMax;
  if (visits.size() >= 2 * kSessionsMax) {
    return;  // Too many even to tell each.
  }
  visits.push_back(std::make_unique<Visit>(std::move(connection)));
  Visit& visit = *visits.back();
  visit.session.start(
      {.on_request = [this, &visit](
                         const Request& request) { requested(visit, request); },
       .on_wish = [this] { send_chunks(); },
       .on_closed = [this, &visit] { closed(visit); }});
  if (full) {
    visit.session.refuse(
        Why::kBusy,
        str("expected at most ", kSessionsMax, " at a time, found more"));
  }
}

void TransferServer::Impl::closed(Visit& visit) {
  if (visit.session.is_served()) {
    // It may be back for what follows.
    sums.hold(visit.session.step(), loop.now() + options.kept);
  }
  visits.remove_if([&](const auto& one) { return one.get() == &visit; });
}

void TransferServer::Impl::requested(Visit& visit, const Request& request) {
  if (run == 0) {
    visit.session.refuse(Why::kNotThere, "it has not joined a run yet");
    return;
  }
  if (request.run != run) {
    visit.session.refuse(
        Why::kMismatch,
        str("expected run ", run, ", found a request of run ", request.run));
    return;
  }
  if (request.shard_rank != static_cast<std::uint32_t>(options.shard_rank)) {
    visit.session.refuse(
        Why::kMismatch,
        str("expected rank ", options.shard_rank, ", found a request of rank ",
            request.shard_rank));
    return;
  }
  switch (request.kind) {
    case Kind::kAskSnapshot:
      ask_snapshot(visit);
      return;
    case Kind::kFetchSnapshot:
      fetch_snapshot(visit);
      return;
    case Kind::kFetchSum:
      fetch_sum(visit);
      return;
  }
}

void TransferServer::Impl::ask_snapshot(Visit& visit) {
  if (promised) {
    visit.session.tell(*promised);
    return;
  }
  const Instant now = loop.now();
  if (snapshot && now - snapshot->offered <= options.fresh) {
    snapshot->until = std::max(snapshot->until, now + options.kept);
    visit.session.tell(snapshot->state);
    return;
  }
  const bool is_wanted = std::any_of(
      visits.begin(), visits.end(), [&](const std::unique_ptr<Visit>& other) {
        return other.get() != &visit && other->session.waits() &&
            other->session.request()->kind == Kind::kAskSnapshot;
      });
  wait(visit);
  if (!is_wanted) {
    snapshot_wanted();  // Which may offer one at once.
  }
}

void TransferServer::Impl::fetch_snapshot(Visit& visit) {
  if (!answer(visit)) {
    wait(visit);
  }
}

void TransferServer::Impl::wait(Visit& visit) {
  visit.waits_until = loop.now() +
      std::chrono::milliseconds(visit.session.request()->wait_ms_max);
}

// With the snapshot that there is; false: another one is to come.
bool TransferServer::Impl::answer(Visit& visit) {
  const StateId& wanted = visit.session.request()->state;
  if (!snapshot) {
    return false;
  }
  if (snapshot->state == wanted) {
    visit.session.serve(
        {.kind = Kind::kFetchSnapshot,
         .state = wanted,
         .chunk_bytes =
             chunk_bytes_for(snapshot->bytes->size(), options.bytes_per_s_max),
         .digests = snapshot->digests},
        snapshot->bytes);
    return true;
  }
  if (snapshot->state.step < wanted.step) {
    return false;
  }
  visit.session.refuse(
      Why::kNotThere,
      str("expected ", text_of(wanted), ", found ", snapshot_text()));
  return true;
}

void TransferServer::Impl::fetch_sum(Visit& visit) {
  if (!answer_sum(visit)) {
    wait(visit);
  }
}

// With the sum, or for good; false: it may come, and is waited for.
bool TransferServer::Impl::answer_sum(Visit& visit) {
  const Request& request = *visit.session.request();
  if (const KeptSum* sum = sums.find(request.state)) {
    visit.session.serve(
        {.kind = Kind::kFetchSum,
         .commit = sum->commit,
         .chunk_bytes =
             chunk_bytes_for(sum->bytes->size(), options.bytes_per_s_max)},
        sum->bytes);
    return true;
  }
  if (request.wait_ms_max > 0 && sums.may_come(request.state)) {
    return false;
  }
  visit.session.refuse(
      Why::kNotThere,
      str("expected the sum after ", text_of(request.state), ", found ",
          sums.text()));
  return true;
}

std::string TransferServer::Impl::snapshot_text() const {
  return snapshot ? str("a snapshot of ", text_of(snapshot->state))
                  : "no snapshot";
}

void TransferServer::Impl::tell_askers(const StateId& state) {
  for (const auto& visit : visits) {
    if (visit->session.waits() &&
        visit->session.request()->kind == Kind::kAskSnapshot) {
      visit->session.tell(state);
    }
  }
}

void TransferServer::Impl::send_chunks() {
  for (int i = 0; i < kChunksAtOnce; ++i) {
    const Instant now = loop.now();
    const Duration wait = bucket.wait(now);
    const auto at = next_to_send(wait > Duration(0));
    if (at == visits.end()) {
      return;
    }
    Session& session = (*at)->session;
    if (session.is_of_state() && wait > Duration(0)) {
      sending = loop.after(wait, [this] { send_chunks(); });
      return;
    }
    if (!session.wants_chunk()) {
      sending = loop.after(kRoomWait, [this] { send_chunks(); });
      return;
    }
    const std::size_t count = session.send_chunk();
    if (session.is_of_state()) {
      bucket.take(count, now);
    }
    bytes_sent += count;
    visits.splice(visits.end(), visits, at);
  }
  sending = loop.after(Duration(0), [this] { send_chunks(); });
}

// Of those who want a chunk, the one whose last is longest ago; one that has no
// room, or waits for its limit, only when all do.
Visits::iterator TransferServer::Impl::next_to_send(bool states_wait) {
  const auto find = [&](auto is_right) {
    return std::find_if(visits.begin(), visits.end(), [&](const auto& one) {
      return one->session.has_wishes() && is_right(one->session);
    });
  };
  const auto may = [&](const Session& session) {
    return !states_wait || !session.is_of_state();
  };
  auto at = find([&](const Session& session) {
    return may(session) && session.wants_chunk();
  });
  if (at == visits.end()) {
    at = find(may);
  }
  return at != visits.end() ? at : find([](const Session&) { return true; });
}

void TransferServer::Impl::tick() {
  ticks = loop.after(kTick, [this] { tick(); });
  const Instant now = loop.now();
  for (const auto& visit : visits) {
    tick_visit(*visit, now);
  }
  if (snapshot && snapshot->until <= now) {
    snapshot.reset();
  }
  trim(now);
}

void TransferServer::Impl::tick_visit(Visit& visit, Instant now) {
  Session& session = visit.session;
  if (session.waits()) {
    if (now < visit.waits_until) {
      session.say_waiting();
      return;
    }
    session.refuse(
        Why::kNotThere,
        str("expected ",
            session.request()->kind == Kind::kAskSnapshot
                ? "a snapshot"
                : text_of(session.request()->state),
            " to be there in time, found ",
            session.is_of_state() ? snapshot_text() : sums.text()));
    return;
  }
  if (now - session.last_heard() > options.silence_max) {
    session.refuse(
        Why::kBusy,
        str("expected to hear something within ", seconds(options.silence_max),
            " s, found silence"));
    return;
  }
  if (snapshot && session.is_served() && session.bytes() == snapshot->bytes) {
    snapshot->until = now + options.kept;
  }
}

void TransferServer::Impl::trim(Instant now) {
  std::optional<std::int64_t> step;
  const auto use = [&](std::int64_t its) {
    step = std::min(step.value_or(its), its);
  };
  if (snapshot) {
    use(snapshot->state.step);
  }
  if (promised) {
    use(promised->step);
  }
  for (const auto& visit : visits) {
    if (visit->session.is_served()) {
      use(visit->session.step());
    }
  }
  sums.trim(now, step);
}

TransferServer::TransferServer(
    net::Loop& loop,
    const TransferServerOptions& options,
    std::function<void()> snapshot_wanted)
    : impl_(std::make_unique<Impl>(loop, options, std::move(snapshot_wanted))) {
  SHERD_ASSERT(loop.in_loop() && impl_->snapshot_wanted);
  impl_->listen();
}

TransferServer::~TransferServer() { SHERD_ASSERT(impl_->loop.in_loop()); }

std::uint16_t TransferServer::port() const {
  return impl_->listener->address().port;
}

void TransferServer::set_run(std::uint64_t run) {
  SHERD_ASSERT(impl_->loop.in_loop());
  impl_->run = run;
}

void TransferServer::promise(const StateId& state) {
  SHERD_ASSERT(impl_->loop.in_loop());
  impl_->promised = state;
  impl_->tell_askers(state);
}

void TransferServer::offer(
    const StateId& state,
    std::shared_ptr<const std::string> bytes,
    std::vector<std::uint64_t> digests) {
  SHERD_ASSERT(impl_->loop.in_loop() && bytes != nullptr);
  const Instant now = impl_->loop.now();
  impl_->promised.reset();
  impl_->snapshot = Snapshot{
      state, std::move(bytes), std::move(digests), now,
      now + impl_->options.kept};
  impl_->tell_askers(state);
  for (const auto& visit : impl_->visits) {
    if (visit->session.waits() &&
        visit->session.request()->kind == Kind::kFetchSnapshot) {
      (void)impl_->answer(*visit);
    }
  }
}

void TransferServer::offer(
    const StateId& state, std::shared_ptr<const std::string> bytes) {
  SHERD_ASSERT(bytes != nullptr);
  auto digests = digests_of(*bytes);
  offer(state, std::move(bytes), std::move(digests));
}

std::vector<std::uint64_t> TransferServer::digests_of(
    const std::string& bytes) const {
  return digests_of_chunks(
      bytes, chunk_bytes_for(bytes.size(), impl_->options.bytes_per_s_max));
}

void TransferServer::keep(
    const Commit& commit, std::shared_ptr<const std::string> bytes) {
  SHERD_ASSERT(impl_->loop.in_loop() && bytes != nullptr);
  impl_->sums.keep(commit, std::move(bytes));
  for (const auto& visit : impl_->visits) {
    if (visit->session.waits() && !visit->session.is_of_state()) {
      impl_->answer_sum(*visit);
    }
  }
  impl_->trim(impl_->loop.now());
}

std::uint64_t TransferServer::bytes_sent() const { return impl_->bytes_sent; }

bool TransferServer::busy() const {
  return std::any_of(
      impl_->visits.begin(), impl_->visits.end(), [](const auto& one) {
        return one->session.open() &&
            (one->session.waits() || one->session.is_served());
      });
}

}  // namespace sherd::ft
