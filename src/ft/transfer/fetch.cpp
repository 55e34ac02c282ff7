// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/fetch.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>
#include "base/check.h"
#include "base/digest.h"
#include "base/log.h"
#include "ft/transfer/chunk_plan.h"
#include "ft/transfer/donor_connection.h"
#include "ft/transfer/transfer_messages.h"

namespace sherd::ft {

using namespace transfer;  // NOLINT(google-build-using-namespace): its own.

namespace {

struct Fetched {
  TransferAnswer answer;
  std::string bytes;
};

std::string text_of(const TransferRequest& request) {
  switch (request.kind) {
    case RequestKind::kAskSnapshot:
      return "a snapshot";
    case RequestKind::kFetchSnapshot:
      return str("the state of ", text_of(request.state));
    case RequestKind::kFetchSum:
      break;
  }
  return str("the sum after ", text_of(request.state));
}

TransferRequest request_for(
    RequestKind kind, const FetchOptions& options, const StateId& state) {
  const Duration time = kind == RequestKind::kFetchSum
      ? options.sum_timeout
      : options.snapshot_timeout;
  const auto wait = std::clamp<std::int64_t>(
      std::chrono::ceil<std::chrono::milliseconds>(time).count(), 0,
      std::numeric_limits<std::uint32_t>::max());
  return {
      .kind = kind,
      .run = options.run,
      .shard_rank = static_cast<std::uint32_t>(options.shard_rank),
      .state = state,
      .wait_ms_max = static_cast<std::uint32_t>(wait)};
}

bool same_bytes(const TransferAnswer& one, const TransferAnswer& other) {
  return one.bytes == other.bytes && one.chunk_bytes == other.chunk_bytes &&
      one.digests == other.digests;
}

// How two answers differ.
std::string difference(
    const TransferAnswer& expected, const TransferAnswer& found) {
  if (expected.bytes != found.bytes ||
      expected.chunk_bytes != found.chunk_bytes) {
    return str(
        "expected ", expected.bytes, " bytes in chunks of ",
        expected.chunk_bytes, ", found ", found.bytes, " in chunks of ",
        found.chunk_bytes);
  }
  std::size_t first = expected.digests.size();
  std::size_t count = 0;
  for (std::size_t i = 0; i < expected.digests.size(); ++i) {
    if (expected.digests[i] != found.digests[i]) {
      first = std::min(first, i);
      ++count;
    }
  }
  return str(
      "expected equal states, found ", count, " of ", expected.digests.size(),
      " chunks that differ, the first at byte ", first * expected.chunk_bytes);
}

}  // namespace

// Sends the request to all donors. When all have answered or their time is over, it takes the
// majority's answer as the right one and requests chunks from the donors that agree with it.
struct Fetch::Impl : std::enable_shared_from_this<Fetch::Impl> {
  using Done = std::function<void(Result<Fetched>)>;

  struct Donor {
    net::HostAddress address;
    std::shared_ptr<DonorConnection> connection;  // Null if the donor is lost.
    std::optional<TransferAnswer> answer;
    bool is_right = false;            // It has given the right answer.
    std::set<std::uint64_t> damaged;  // Chunks that arrived damaged.
  };

  Impl(
      net::Loop& its_loop,
      const FetchOptions& its_options,
      const TransferRequest& its_request,
      Done call)
      : loop(its_loop),
        options(its_options),
        request(its_request),
        done(std::move(call)) {}

  void begin(const std::vector<net::HostAddress>& addresses) {
    SHERD_ASSERT(loop.in_loop() && done && !addresses.empty());
    donors.resize(addresses.size());
    for (std::size_t i = 0; i < donors.size(); ++i) {
      donors[i].address = addresses[i];
      donors[i].connection = std::make_shared<DonorConnection>(
          loop, addresses[i], options, request,
          DonorConnection::Handlers{
              .on_answer = handler(i, &Impl::receive_answer),
              .on_chunk = handler(i, &Impl::receive_chunk),
              .on_failed = handler(i, &Impl::lose)});
      donors[i].connection->begin();
    }
  }

  // Shares the Impl, because `done` may destroy the Fetch and all its connections.
  template <typename What>
  std::function<void(const What&)> handler(
      std::size_t donor, void (Impl::*receive)(std::size_t, const What&)) {
    return [this, donor, receive](const What& what) {
      const auto self = shared_from_this();
      (this->*receive)(donor, what);
    };
  }

  void receive_answer(std::size_t donor, const TransferAnswer& answer) {
    if (request.kind == RequestKind::kAskSnapshot) {
      finish(Fetched{answer, {}});
      return;
    }
    donors[donor].answer = answer;
    if (right) {
      use(donor);
      return;
    }
    if (!others.pending()) {
      others = loop.after(options.others_timeout, [this] {
        const auto self = shared_from_this();
        decide();
      });
    }
    decide_when_all_have_answered();
  }

  void decide_when_all_have_answered() {
    const bool all = std::ranges::all_of(donors, [](const Donor& one) {
      return one.connection == nullptr || one.answer;
    });
    if (all && !right) {
      decide();
    }
  }

  void decide() {
    others.cancel();
    std::vector<std::optional<TransferAnswer>> said;
    for (const auto& donor : donors) {
      said.push_back(donor.connection != nullptr ? donor.answer : std::nullopt);
    }
    by = majority_of(said);
    right = said[*by];
    if (!right) {
      // All donors that had answered are lost, but others may still answer.
      return;
    }
    if (const Status room = take_room(); !room.ok()) {
      finish(Status(
          room.code(),
          str("[ft] cannot fetch ", text_of(request), " from ",
              donors[*by].address.text(), ": ", room.message())));
      return;
    }
    plan = ChunkPlan(chunks_of(right->bytes, right->chunk_bytes));
    if (plan.all_came()) {
      finish(Fetched{*right, {}});
      return;
    }
    for (std::size_t i = 0; i < donors.size(); ++i) {
      if (said[i]) {
        use(i);
      }
    }
  }

  // The kernel backs memory only when it is written, so a donor that does not send what it has
  // announced costs none, and nothing is moved while the buffer fills.
  Status take_room() {
    if (right->bytes > options.bytes_max) {
      return {
          ErrorCode::kPeerMismatch,
          str("expected at most ", options.bytes_max, " bytes, found ",
              right->bytes)};
    }
    return status_of(
        [this] { bytes.reserve(right->bytes); }, ErrorCode::kUnavailable,
        str("no memory for ", right->bytes, " bytes: "));
  }

  void use(std::size_t donor) {
    const TransferAnswer& its = *donors[donor].answer;
    if (same_bytes(*right, its)) {
      donors[donor].is_right = true;
      want_more(donor);
      return;
    }
    lose(
        donor,
        {ErrorCode::kPeerMismatch,
         str("it disagrees with ", donors[*by].address.text(), ": ",
             difference(*right, its))});
  }

  void want_more(std::size_t donor) {
    const auto& its = donors[donor];
    while (its.connection != nullptr && its.is_right &&
           its.connection->under_way() < kWindow) {
      const auto chunk = plan.next(donor);
      if (!chunk) {
        return;
      }
      its.connection->request_chunk(*chunk * right->chunk_bytes);
    }
  }

  void receive_chunk(std::size_t donor, const Chunk& chunk) {
    const std::uint64_t index = chunk.place / right->chunk_bytes;
    const bool is_right = digest_of(chunk.bytes) == chunk.digest &&
        (right->digests.empty() || right->digests[index] == chunk.digest);
    if (!is_right) {
      handle_damaged_chunk(donor, chunk.place);
      return;
    }
    take(chunk);
    plan.came(index);
    if (plan.all_came()) {
      finish(Fetched{std::move(*right), std::move(bytes)});
      return;
    }
    want_more(donor);
  }

  void take(const Chunk& chunk) {
    const auto place = static_cast<std::size_t>(chunk.place);
    const std::size_t end = place + chunk.bytes.size();
    if (place == bytes.size()) {
      bytes.append(chunk.bytes);
      return;
    }
    if (bytes.size() < end) {
      bytes.resize(end);
    }
    std::ranges::copy(
        chunk.bytes, bytes.begin() + static_cast<std::ptrdiff_t>(place));
  }

  void handle_damaged_chunk(std::size_t donor, std::uint64_t place) {
    auto& its = donors[donor];
    const std::uint64_t index = place / right->chunk_bytes;
    if (!its.damaged.insert(index).second) {
      plan.damaged(index);
      lose(
          donor,
          {ErrorCode::kPeerMismatch,
           str("expected chunks that fit their digests, found a damaged one "
               "at ",
               place, ", twice")});
      return;
    }
    log_warning(
        str("[ft] a chunk of ", text_of(request), " from ", its.address.text(),
            " is damaged, at byte ", place, ": it is asked for again"));
    plan.damaged(index);
    want_more(donor);
  }

  void lose(std::size_t donor, const Status& reason) {
    donors[donor].connection.reset();
    const auto text =
        str("[ft] cannot fetch ", text_of(request), " from ",
            donors[donor].address.text(), ": ", reason.message());
    const bool any = std::ranges::any_of(
        donors, [](const Donor& one) { return one.connection != nullptr; });
    if (!any) {
      finish(Status(reason.code(), text));
      return;
    }
    log_warning(text + "; others go on");
    if (!right) {
      decide_when_all_have_answered();
      return;
    }
    plan.lost(donor);
    for (std::size_t i = 0; i < donors.size(); ++i) {
      want_more(i);
    }
  }

  void finish(Result<Fetched> result) {
    const auto self = shared_from_this();
    const Done call = std::exchange(done, nullptr);
    cancel();
    if (call) {
      call(std::move(result));
    }
  }

  void cancel() {
    SHERD_ASSERT(loop.in_loop());
    done = nullptr;
    others.cancel();
    for (auto& donor : donors) {
      donor.connection.reset();
    }
  }

  net::Loop& loop;
  const FetchOptions options;
  const TransferRequest request;
  Done done;  // Empty once it was called or cancelled.
  std::vector<Donor> donors;
  net::Timer others;              // Until the right answer is known.
  std::optional<std::size_t> by;  // The donor whose answer is right.
  std::optional<TransferAnswer> right;
  ChunkPlan plan;
  std::string bytes;  // Up to the last received chunk; there may be gaps.
};

Fetch::Fetch(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

Fetch::~Fetch() { impl_->cancel(); }

bool Fetch::answered() const { return impl_->right.has_value(); }

std::unique_ptr<Fetch> ask_snapshot(
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    std::function<void(Result<StateId>)> done) {
  const auto impl = std::make_shared<Fetch::Impl>(
      loop, options, request_for(RequestKind::kAskSnapshot, options, {}),
      [done = std::move(done)](const Result<Fetched>& result) {
        done(
            result.ok() ? Result<StateId>(result.value().answer.state)
                        : result.status());
      });
  impl->begin({donor});
  return std::make_unique<Fetch>(impl);
}

std::unique_ptr<Fetch> fetch_snapshot(
    net::Loop& loop,
    const std::vector<net::HostAddress>& donors,
    const FetchOptions& options,
    const StateId& state,
    std::function<void(Result<std::string>)> done) {
  const auto impl = std::make_shared<Fetch::Impl>(
      loop, options, request_for(RequestKind::kFetchSnapshot, options, state),
      [done = std::move(done)](Result<Fetched> result) {
        done(
            result.ok() ? Result<std::string>(std::move(result).value().bytes)
                        : result.status());
      });
  impl->begin(donors);
  return std::make_unique<Fetch>(impl);
}

std::unique_ptr<Fetch> fetch_sum(
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    const StateId& base,
    std::function<void(Result<CommittedSum>)> done) {
  const auto impl = std::make_shared<Fetch::Impl>(
      loop, options, request_for(RequestKind::kFetchSum, options, base),
      [done = std::move(done)](Result<Fetched> result) {
        if (!result.ok()) {
          done(result.status());
          return;
        }
        Fetched fetched = std::move(result).value();
        done(CommittedSum{
            fetched.answer.commit,
            std::make_shared<const std::string>(std::move(fetched.bytes))});
      });
  impl->begin({donor});
  return std::make_unique<Fetch>(impl);
}

}  // namespace sherd::ft
