// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/transfer_server.h"

#include <algorithm>
#include <iterator>
#include <list>
#include <optional>
#include <set>
#include <utility>
#include "base/check.h"
#include "base/digest.h"
#include "ft/transfer/requester_connection.h"
#include "ft/transfer/sum_store.h"
#include "ft/transfer/token_bucket.h"
#include "net/listener.h"

namespace sherd::ft {

using namespace transfer;  // NOLINT(google-build-using-namespace): its own.

namespace {

// How often Waiting messages are sent and old data are dropped.
constexpr Duration kTick = std::chrono::milliseconds(200);
// Ranks of returning replicas fetch one thing at a time.
constexpr std::size_t kRequestersMax = 64;
// After this many chunks, other work of the loop runs.
constexpr int kChunksAtOnce = 4;
// How long to wait when no requester has room, which a connection does not report.
constexpr Duration kRoomWait = std::chrono::milliseconds(1);
// The limit of what a client sends.
constexpr std::size_t kRequestBytesMax = 1024;

SumStore::Limits limits_of(const TransferServerOptions& options) {
  SHERD_CHECK(
      1 <= options.states_max, "[ft] expected 1 <= states_max, found ",
      options.states_max);
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

using Requesters = std::list<std::unique_ptr<RequesterConnection>>;

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

  void listen() {
    auto result = net::Listener::listen(
        loop, {options.host, 0},
        {.security = options.security,
         .connection =
             {.payload_bytes_max = kPayloadBytesMax,
              .received_bytes_max = kRequestBytesMax,
              .user_timeout = options.user_timeout}},
        {.on_connection = [this](net::ConnectionHandle connection) {
          accept(std::move(connection));
        }});
    listener = std::move(result).value();
    ticks = loop.after(kTick, [this] { tick(); });
  }

  void accept(net::ConnectionHandle connection) {
    const bool full = requesters.size() >= kRequestersMax;
    if (requesters.size() >= 2 * kRequestersMax) {
      return;  // There are too many even to send each a refusal.
    }
    requesters.push_back(
        std::make_unique<RequesterConnection>(std::move(connection)));
    RequesterConnection& requester = *requesters.back();
    requester.start(
        {.on_request =
             [this, &requester](const TransferRequest& request) {
               requested(requester, request);
             },
         .on_chunk_requested = [this] { send_chunks(); },
         .on_closed = [this, &requester] { closed(requester); }});
    if (full) {
      requester.refuse(
          RefusalReason::kBusy,
          str("expected at most ", kRequestersMax, " at a time, found more"));
    }
  }

  void closed(RequesterConnection& requester) {
    if (requester.is_served()) {
      // It may come back for the next sums.
      sums.hold(requester.step(), loop.now() + options.kept);
    }
    requesters.remove_if(
        [&](const auto& one) { return one.get() == &requester; });
  }

  void requested(
      RequesterConnection& requester, const TransferRequest& request) {
    if (run == 0) {
      requester.refuse(RefusalReason::kNotThere, "it has not joined a run yet");
      return;
    }
    if (request.run != run) {
      requester.refuse(
          RefusalReason::kMismatch,
          str("expected run ", run, ", found a request of run ", request.run));
      return;
    }
    if (request.shard_rank != static_cast<std::uint32_t>(options.shard_rank)) {
      requester.refuse(
          RefusalReason::kMismatch,
          str("expected rank ", options.shard_rank,
              ", found a request of rank ", request.shard_rank));
      return;
    }
    if (request.kind == RequestKind::kAskSnapshot) {
      ask_snapshot(requester);
    } else if (!answer(requester)) {
      requester.wait_from(loop.now());
    }
  }

  void ask_snapshot(RequesterConnection& requester) {
    if (promised) {
      requester.tell(*promised);
      return;
    }
    const Instant now = loop.now();
    const bool enough =
        std::ssize(fetched_states()) >= std::ptrdiff_t{options.states_max};
    if (snapshot && (enough || now - snapshot->offered <= options.fresh)) {
      renew_snapshot();
      requester.tell(snapshot->state);
      return;
    }
    if (enough) {
      requester.refuse(
          RefusalReason::kBusy,
          str("expected at most ", options.states_max,
              " states to be fetched at a time, found one more"));
      return;
    }
    const bool is_wanted = std::ranges::any_of(
        requesters, [&](const std::unique_ptr<RequesterConnection>& other) {
          return other.get() != &requester && other->waits() &&
              other->request()->kind == RequestKind::kAskSnapshot;
        });
    requester.wait_from(now);
    if (!is_wanted) {
      snapshot_wanted();  // It may call offer() at once.
    }
  }

  // Serves or refuses a fetch; returns false if what it asks for may still come.
  bool answer(RequesterConnection& requester) {
    return requester.is_of_state() ? answer_snapshot(requester)
                                   : answer_sum(requester);
  }

  void answer_waiting(RequestKind kind) {
    for (const auto& requester : requesters) {
      if (requester->waits() && requester->request()->kind == kind) {
        (void)answer(*requester);
      }
    }
  }

  bool answer_snapshot(RequesterConnection& requester) {
    const StateId& wanted = requester.request()->state;
    if (!snapshot) {
      return false;
    }
    if (snapshot->state == wanted && snapshot->digests.size() > kDigestsMax) {
      requester.refuse(
          RefusalReason::kNotThere,
          str("expected a state of at most ", kDigestsMax, " chunks, found ",
              snapshot->digests.size()));
      return true;
    }
    if (snapshot->state == wanted) {
      requester.serve(
          {.kind = RequestKind::kFetchSnapshot,
           .state = wanted,
           .chunk_bytes = chunk_bytes_of_state(snapshot->bytes->size()),
           .digests = snapshot->digests},
          snapshot->bytes);
      drop_oldest_states();
      return true;
    }
    if (snapshot->state.step < wanted.step) {
      return false;
    }
    requester.refuse(
        RefusalReason::kNotThere,
        str("expected ", text_of(wanted), ", found ", snapshot_text()));
    return true;
  }

  bool answer_sum(RequesterConnection& requester) {
    const TransferRequest& request = *requester.request();
    if (const CommittedSum* sum = sums.find(request.state)) {
      requester.serve(
          {.kind = RequestKind::kFetchSum,
           .commit = sum->commit,
           .chunk_bytes = kUsualChunkBytesMax},
          sum->bytes);
      return true;
    }
    if (request.wait_ms_max > 0 && sums.may_come(request.state)) {
      return false;
    }
    requester.refuse(
        RefusalReason::kNotThere,
        str("expected the sum after ", text_of(request.state), ", found ",
            sums.text()));
    return true;
  }

  std::string snapshot_text() const {
    return snapshot ? str("a snapshot of ", text_of(snapshot->state))
                    : "no snapshot";
  }

  void tell_askers(const StateId& state) {
    for (const auto& requester : requesters) {
      if (requester->waits() &&
          requester->request()->kind == RequestKind::kAskSnapshot) {
        requester->tell(state);
      }
    }
  }

  void renew_snapshot() {
    snapshot->until = std::max(snapshot->until, loop.now() + options.kept);
  }

  // The states that clients hold in memory.
  std::set<StateId> fetched_states() const {
    std::set<StateId> states;
    for (const auto& requester : requesters) {
      if (requester->is_served() && requester->is_of_state()) {
        states.insert(requester->request()->state);
      }
    }
    return states;
  }

  // Otherwise a client that asks for each new state and holds on to it would fill the memory.
  void drop_oldest_states() {
    const auto states = fetched_states();
    auto over = std::ssize(states) - std::ptrdiff_t{options.states_max};
    for (auto state = states.begin(); over > 0; ++state, --over) {
      for (const auto& requester : requesters) {
        if (requester->is_served() && requester->is_of_state() &&
            requester->request()->state == *state) {
          requester->refuse(
              RefusalReason::kBusy,
              str("expected at most ", options.states_max,
                  " states to be fetched at a time, found newer ones"));
        }
      }
    }
  }

  void send_chunks() {
    for (int i = 0; i < kChunksAtOnce; ++i) {
      const Instant now = loop.now();
      const Duration wait = bucket.wait(now);
      const auto at = next_to_send(wait > Duration(0));
      if (at == requesters.end()) {
        return;
      }
      RequesterConnection& requester = **at;
      if (requester.is_of_state() && wait > Duration(0)) {
        sending = loop.after(wait, [this] { send_chunks(); });
        return;
      }
      if (!requester.can_send_chunk()) {
        sending = loop.after(kRoomWait, [this] { send_chunks(); });
        return;
      }
      const std::size_t count = requester.send_chunk(now);
      if (requester.is_of_state()) {
        bucket.take(count, now);
      }
      bytes_sent += count;
      requesters.splice(requesters.end(), requesters, at);
    }
    sending = loop.after(Duration(0), [this] { send_chunks(); });
  }

  // The least recently served requester with a requested chunk. A requester without room, or over the
  // rate limit, is returned only if all are like that.
  Requesters::iterator next_to_send(bool states_wait) {
    const auto find = [&](auto is_right) {
      return std::ranges::find_if(requesters, [&](const auto& one) {
        return one->has_chunk_requests() && is_right(*one);
      });
    };
    const auto may = [&](const RequesterConnection& requester) {
      return !states_wait || !requester.is_of_state();
    };
    auto at = find([&](const RequesterConnection& requester) {
      return may(requester) && requester.can_send_chunk();
    });
    if (at == requesters.end()) {
      at = find(may);
    }
    return at != requesters.end()
        ? at
        : find([](const RequesterConnection&) { return true; });
  }

  void tick() {
    ticks = loop.after(kTick, [this] { tick(); });
    const Instant now = loop.now();
    for (const auto& requester : requesters) {
      tick_requester(*requester, now);
    }
    if (snapshot && snapshot->until <= now) {
      snapshot.reset();
    }
    trim(now);
  }

  void tick_requester(RequesterConnection& requester, Instant now) {
    if (requester.waits()) {
      if (now < requester.waits_until()) {
        requester.send_waiting();
        return;
      }
      requester.refuse(
          RefusalReason::kNotThere,
          str("expected ",
              requester.request()->kind == RequestKind::kAskSnapshot
                  ? "a snapshot"
                  : text_of(requester.request()->state),
              " to be there in time, found ",
              requester.is_of_state() ? snapshot_text() : sums.text()));
      return;
    }
    const Duration idle = now - requester.last_moved();
    if (requester.can_send_chunk()) {
      // The rate limit makes the client wait, perhaps for longer than either side may be silent.
      if (idle >= kTick) {
        requester.send_waiting();
      }
    } else if (idle > options.silence_max) {
      requester.refuse(
          RefusalReason::kBusy,
          str("expected to hear something within ",
              seconds(options.silence_max), " s, found silence"));
      return;
    }
    if (snapshot && requester.is_served() &&
        requester.bytes() == snapshot->bytes) {
      snapshot->until = now + options.kept;
    }
  }

  void trim(Instant now) {
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
    for (const auto& requester : requesters) {
      if (requester->is_served()) {
        use(requester->step());
      }
    }
    sums.trim(now, step);
  }

  net::Loop& loop;
  const TransferServerOptions options;
  const std::function<void()> snapshot_wanted;
  std::uint64_t run = 0;
  std::optional<Snapshot> snapshot;
  std::optional<StateId> promised;  // The snapshot that was promised.
  SumStore sums;
  TokenBucket bucket;
  std::uint64_t bytes_sent = 0;
  Requesters requesters;  // Least recently served first.
  std::unique_ptr<net::Listener> listener;
  net::Timer ticks;
  net::Timer sending;
};

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

bool TransferServer::promise(const StateId& state) {
  SHERD_ASSERT(impl_->loop.in_loop());
  const bool is_new = !impl_->snapshot || impl_->snapshot->state != state;
  if (is_new) {
    impl_->promised = state;
  } else {
    impl_->renew_snapshot();
  }
  impl_->tell_askers(state);
  return is_new;
}

void TransferServer::withdraw(const StateId& state) {
  SHERD_ASSERT(impl_->loop.in_loop());
  if (impl_->promised == state) {
    impl_->promised.reset();
  }
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
  impl_->answer_waiting(RequestKind::kFetchSnapshot);
}

std::vector<std::uint64_t> TransferServer::digests_of(
    const std::string& bytes) const {
  return digests_of_chunks(bytes, chunk_bytes_of_state(bytes.size()));
}

void TransferServer::keep(
    const Commit& commit, std::shared_ptr<const std::string> bytes) {
  SHERD_ASSERT(impl_->loop.in_loop() && bytes != nullptr);
  impl_->sums.keep(commit, std::move(bytes));
  impl_->answer_waiting(RequestKind::kFetchSum);
  impl_->trim(impl_->loop.now());
}

std::uint64_t TransferServer::bytes_sent() const { return impl_->bytes_sent; }

bool TransferServer::busy() const {
  return std::ranges::any_of(impl_->requesters, [](const auto& one) {
    return one->open() && (one->waits() || one->is_served());
  });
}

}  // namespace sherd::ft
