// SPDX-License-Identifier: Apache-2.0
//
// Rank 0 is the leader, the others are followers:
//
//   leader                                follower
//   make segment, listen
//   put address             ------>     get address, connect
//   check                   <------     request
//   segment                 ------>     map it, enter as peer
//   wait for all            <------     "mapped"
//   outcome: open -> joined
//   "joined"                ------>     return
//
// The outcome is a word of the segment that changes once, from open to joined (by the leader) or to
// withdrawn (by any rank that fails after it has mapped the segment). So all agree, no matter which
// rank dies between two messages. Messages carry reasons, and their end shows that a process has
// died.
#include "shm/join.h"

#include <poll.h>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include "base/check.h"
#include "shm/join_messages.h"
#include "shm/unix_socket.h"

namespace sherd::shm {
namespace {

constexpr const char* kMapped = "mapped";
constexpr const char* kJoined = "joined";
// How long a follower looks for the reason why the leader is gone, and how much longer than the
// leader it waits, so that the leader's deadline can name the missing rank.
constexpr Duration kReasonPatience = std::chrono::seconds(1);
constexpr Duration kLookPeriod = std::chrono::milliseconds(100);

struct alignas(kCacheLine) Head {
  // kOpen, kIsJoined, or kWithdrawn + the rank that withdrew.
  std::uint32_t outcome;
};
constexpr std::uint32_t kOpen = 0;
constexpr std::uint32_t kIsJoined = 1;
constexpr std::uint32_t kWithdrawn = 2;

// Changes the outcome unless it is already decided, and returns it. Acquire and release: a rank
// that sees "joined" sees all peers' records.
std::uint32_t decide(const Segment& segment, std::uint32_t proposed) {
  std::uint32_t found = kOpen;
  const bool changed =
      std::atomic_ref(segment.at<Head>(0, 1)[0].outcome)
          .compare_exchange_strong(found, proposed, std::memory_order_acq_rel);
  return changed ? proposed : found;
}

// A sum that overflows becomes too large for any segment.
std::size_t sum(std::size_t a, std::size_t b) {
  return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

std::string seconds_text(Duration d) { return str(seconds(d), " s"); }

// What both sides have in common.
struct JoinContext {
  const SegmentJoinOptions& options;
  const Clock& clock;
  const Instant until;

  std::string name(int rank) const {
    return str(
        "rank ",
        options.names.empty() ? rank
                              : options.names[static_cast<std::size_t>(rank)]);
  }
  Status failure(ErrorCode code, const std::string& what) const {
    return {code, str("[shm] joining a shared segment: ", what)};
  }
  Status died(int rank) const {
    return failure(ErrorCode::kPeerLost, str(name(rank), " has died"));
  }
  Status withdrew(std::uint32_t outcome) const {
    return failure(
        ErrorCode::kPeerLost,
        str(name(static_cast<int>(outcome - kWithdrawn)), " has withdrawn"));
  }
  // The whole segment.
  SegmentOptions segment() const {
    const std::size_t head = HostSegment::head_bytes(options.ranks);
    SegmentOptions whole = options.segment;
    whole.bytes = sum(options.segment.bytes, head);
    if (options.segment.touched_bytes > 0) {
      whole.touched_bytes = sum(options.segment.touched_bytes, head);
    }
    return whole;
  }
  JoinRequest request() const {
    return {
        .rank = options.rank,
        .ranks = options.ranks,
        .bytes = options.segment.bytes};
  }
  std::unique_ptr<Peers> peers(const Segment& segment) const {
    return std::make_unique<Peers>(
        segment.at<std::byte>(sizeof(Head), Peers::bytes(options.ranks)),
        PeersOptions{
            .rank = options.rank,
            .ranks = options.ranks,
            .names = options.names});
  }
  std::uint32_t withdrawal() const {
    return kWithdrawn + static_cast<std::uint32_t>(options.rank);
  }
};

// The last step of both the leader and a follower, when all ranks have joined.
Result<HostSegment> joined(Segment segment, std::unique_ptr<Peers> peers) {
  if (Status failed = peers->watch(); !failed.ok()) {
    peers->give_up(failed.message());  // The others have joined.
    return failed;
  }
  return HostSegment(std::move(segment), std::move(peers));
}

// --- Rank 0.

class JoinLeader {
 public:
  explicit JoinLeader(const JoinContext& context) : context_(context) {}
  Result<HostSegment> run();

 private:
  struct Follower {
    UnixConnection connection;
    int rank = -1;  // Known once its request has arrived.
    bool mapped = false;
  };

  Status open();
  Status serve();
  Status accept();
  // Handles the messages of `follower`; clears `keep` if it is no rank of the group.
  Status listen_to(Follower& follower, bool& keep);
  Status admit(Follower& follower, const JoinRequest& request);
  Status too_late() const;
  bool all_mapped() const;
  void tell_failure(const Status& why);

  const JoinContext& context_;
  Segment segment_;
  std::unique_ptr<Peers> peers_;
  std::optional<UnixListener> listener_;
  std::vector<Follower> followers_;
};

Result<HostSegment> JoinLeader::run() {
  Status failed = open();
  if (failed.ok()) {
    failed = serve();
  }
  if (failed.ok()) {
    const std::uint32_t outcome = decide(segment_, kIsJoined);
    if (outcome != kIsJoined) {
      failed = context_.withdrew(outcome);
    }
  }
  if (!failed.ok()) {
    tell_failure(failed);
    return failed;
  }
  for (Follower& follower : followers_) {
    // If it has died since, the first wait for it will notice.
    static_cast<void>(follower.connection.send(kJoined));
  }
  return joined(std::move(segment_), std::move(peers_));
}

Status JoinLeader::open() {
  Result<Segment> made = Segment::create(context_.segment());
  if (!made.ok()) {
    return made.status();
  }
  segment_ = std::move(made).value();
  peers_ = context_.peers(segment_);
  peers_->enter();
  if (context_.options.ranks == 1) {
    return {};
  }
  Result<UnixListener> listener = UnixListener::open();
  if (!listener.ok()) {
    return listener.status();
  }
  listener_ = std::move(listener).value();
  return context_.options.store.put(context_.options.key, listener_->address());
}

bool JoinLeader::all_mapped() const {
  const auto count = std::count_if(
      followers_.begin(), followers_.end(),
      [](const Follower& g) { return g.mapped; });
  return count == context_.options.ranks - 1;
}

Status JoinLeader::serve() {
  while (!all_mapped()) {
    const Instant now = context_.clock.now();
    if (now >= context_.until) {
      return too_late();
    }
    std::vector<pollfd> fds{{listener_->descriptor(), POLLIN, 0}};
    for (const Follower& follower : followers_) {
      fds.push_back({follower.connection.descriptor(), POLLIN, 0});
    }
    const auto& check_others = context_.options.store.check_others;
    const Instant next = check_others
        ? std::min(context_.until, now + kLookPeriod)
        : context_.until;
    ::poll(fds.data(), fds.size(), poll_ms(now, next));
    if (Status lost = check_others ? check_others() : Status(); !lost.ok()) {
      return lost;
    }
    // From back to front, because unrelated processes are dropped on the way.
    for (std::size_t i = followers_.size(); i-- > 0;) {
      bool keep = true;
      Status failed =
          fds[i + 1].revents == 0 ? Status() : listen_to(followers_[i], keep);
      if (!failed.ok()) {
        return failed;
      }
      if (!keep) {
        followers_.erase(followers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (Status failed = accept(); !failed.ok()) {
      return failed;
    }
  }
  return {};
}

Status JoinLeader::accept() {
  for (;;) {
    Result<std::optional<UnixConnection>> next = listener_->try_accept();
    if (!next.ok()) {
      return next.status();
    }
    std::optional<UnixConnection> connection = std::move(next).value();
    if (!connection) {
      return {};
    }
    followers_.push_back({.connection = *std::move(connection)});
  }
}

Status JoinLeader::listen_to(Follower& follower, bool& keep) {
  Result<std::optional<UnixMessage>> next = follower.connection.try_receive();
  if (!next.ok()) {
    if (follower.rank >= 0) {
      return next.status().code() == ErrorCode::kPeerLost
          ? context_.died(follower.rank)
          : next.status();
    }
    keep = false;  // It died before it said who it is; the rank will be missed.
    return {};
  }
  const std::optional<UnixMessage> message = std::move(next).value();
  if (!message) {
    return {};
  }
  if (follower.rank < 0) {
    const auto request = JoinRequest::from_text(message->text);
    keep = request.has_value();
    return request ? admit(follower, *request) : Status();
  }
  if (message->text == kMapped) {
    follower.mapped = true;
    return {};
  }
  if (const auto why = failure_from_text(message->text)) {
    return {
        why->code(),
        str(why->message(), " (", context_.name(follower.rank), ")")};
  }
  return context_.failure(
      ErrorCode::kPeerMismatch,
      str("expected '", kMapped, "' of ", context_.name(follower.rank),
          ", found '", message->text, "'"));
}

Status JoinLeader::admit(Follower& follower, const JoinRequest& request) {
  const std::string difference = context_.request().difference(request);
  if (!difference.empty()) {
    return context_.failure(
        ErrorCode::kPeerMismatch,
        str(context_.name(0), " expected ", difference, " on ",
            request.rank < context_.options.ranks
                ? context_.name(request.rank)
                : str("rank ", request.rank)));
  }
  const bool twice =
      request.rank == 0 || request.rank >= context_.options.ranks ||
      std::any_of(
          followers_.begin(), followers_.end(),
          [&](const Follower& other) { return other.rank == request.rank; });
  if (twice) {
    return context_.failure(
        ErrorCode::kPeerMismatch,
        str("expected the other ranks of ", context_.options.ranks,
            " once each, found one more that says it has place ",
            request.rank));
  }
  follower.rank = request.rank;
  const Status sent =
      follower.connection.send("segment", segment_.descriptor());
  return sent.ok() || sent.code() != ErrorCode::kPeerLost
      ? sent
      : context_.died(follower.rank);
}

Status JoinLeader::too_late() const {
  std::string missing;
  for (int r = 1; r < context_.options.ranks; ++r) {
    const bool here = std::any_of(
        followers_.begin(), followers_.end(),
        [r](const Follower& g) { return g.rank == r && g.mapped; });
    if (!here) {
      missing += str(missing.empty() ? "" : ", ", context_.name(r));
    }
  }
  return context_.failure(
      ErrorCode::kDeadlineExceeded,
      str("expected all ranks within ", seconds_text(context_.options.deadline),
          ", not responding: ", missing));
}

// Connected ranks are told over their connection, later ones through the store. A rank that cannot
// be told will find nobody at the address.
void JoinLeader::tell_failure(const Status& why) {
  if (segment_.data() != nullptr) {
    decide(segment_, context_.withdrawal());
  }
  if (context_.options.ranks == 1) {
    return;
  }
  const std::string text = failure_text(why);
  static_cast<void>(context_.options.store.put(context_.options.key, text));
  for (Follower& follower : followers_) {
    static_cast<void>(follower.connection.send(text));
  }
}

// --- The other ranks.

class JoinFollower {
 public:
  explicit JoinFollower(const JoinContext& context) : context_(context) {}
  Result<HostSegment> run();

 private:
  Result<HostSegment> take_part();
  Result<UnixConnection> find_leader();
  Status take_segment(UnixConnection& leader);
  // Waits for the leader's last message; returns ok if it is "joined".
  Status await_outcome(UnixConnection& leader);
  // Why the leader is gone: what it left in the store, or what the store knows about a loss, or
  // else that it died. Notes if it left another offer there than the one that this rank took.
  Status leader_is_gone();
  Status explain(const Status& failed);

  const JoinContext& context_;
  std::string offer_;  // Where the leader announced that it listens.
  bool offered_again_ = false;
  Instant until_{0};  // The deadline for the leader's answers.
  Segment segment_;
  std::unique_ptr<Peers> peers_;
};

// A leader that has given up may have started over meanwhile.
Result<HostSegment> JoinFollower::run() {
  Result<HostSegment> outcome = take_part();
  while (!outcome.ok() && offered_again_ &&
         context_.clock.now() < context_.until) {
    offered_again_ = false;
    outcome = take_part();
  }
  return outcome;
}

Result<HostSegment> JoinFollower::take_part() {
  Result<UnixConnection> found = find_leader();
  if (!found.ok()) {
    return found.status();
  }
  UnixConnection leader = std::move(found).value();
  // The leader started to listen earlier, so its own deadline ends before this one.
  until_ = context_.clock.now() + context_.options.deadline + kReasonPatience;
  Status failed = take_segment(leader);
  if (!failed.ok()) {
    static_cast<void>(leader.send(failure_text(failed)));
    return failed;
  }
  failed = await_outcome(leader);
  // If all have joined it is too late to fail: this rank has joined, too. After a "joined" message,
  // this load also makes the records of all ranks visible.
  if (decide(segment_, context_.withdrawal()) == kIsJoined) {
    return joined(std::move(segment_), std::move(peers_));
  }
  if (failed.ok()) {
    failed = leader_is_gone();
  }
  static_cast<void>(leader.send(failure_text(failed)));
  return failed;
}

Result<UnixConnection> JoinFollower::find_leader() {
  const Duration rest = context_.until - context_.clock.now();
  const Result<std::string> text =
      context_.options.store.get(context_.options.key, rest);
  if (!text.ok()) {
    return context_.failure(
        text.status().code(),
        str("expected ", context_.name(0), " to offer one within ",
            seconds_text(context_.options.deadline),
            ", found none: ", text.status().message()));
  }
  if (auto told = failure_from_text(text.value())) {
    return *std::move(told);
  }
  offer_ = text.value();
  Result<UnixConnection> leader =
      UnixConnection::connect(offer_, context_.clock, context_.until);
  if (!leader.ok() && leader.status().code() == ErrorCode::kUnavailable) {
    return leader_is_gone();
  }
  return leader;
}

Status JoinFollower::take_segment(UnixConnection& leader) {
  if (Status failed = leader.send(context_.request().to_text()); !failed.ok()) {
    return explain(failed);
  }
  Result<UnixMessage> received = leader.receive(context_.clock, until_);
  if (!received.ok()) {
    return explain(received.status());
  }
  UnixMessage message = std::move(received).value();
  if (auto told = failure_from_text(message.text)) {
    return *std::move(told);
  }
  Result<Segment> mapped = Segment::from_descriptor(
      std::move(message.descriptor), context_.segment());
  if (!mapped.ok()) {
    return mapped.status();
  }
  segment_ = std::move(mapped).value();
  peers_ = context_.peers(segment_);
  peers_->enter();
  return {};
}

Status JoinFollower::await_outcome(UnixConnection& leader) {
  if (Status failed = leader.send(kMapped); !failed.ok()) {
    return explain(failed);
  }
  const Result<UnixMessage> last = leader.receive(context_.clock, until_);
  if (!last.ok()) {
    return explain(last.status());
  }
  return failure_from_text(last.value().text).value_or(Status());
}

Status JoinFollower::explain(const Status& failed) {
  if (failed.code() == ErrorCode::kPeerLost) {
    return leader_is_gone();
  }
  if (failed.code() == ErrorCode::kDeadlineExceeded) {
    return context_.failure(
        failed.code(),
        str(context_.name(0), " is not responding within ",
            seconds_text(context_.options.deadline)));
  }
  return failed;
}

Status JoinFollower::leader_is_gone() {
  const Result<std::string> text =
      context_.options.store.get(context_.options.key, kReasonPatience);
  if (text.ok()) {
    if (auto told = failure_from_text(text.value())) {
      return *std::move(told);
    }
    offered_again_ = text.value() != offer_;
  } else if (text.status().code() == ErrorCode::kPeerLost) {
    // The store went with the leader, and its side knows what brought both down.
    return context_.failure(
        ErrorCode::kPeerLost,
        str(context_.name(0), " is gone: ", text.status().message()));
  }
  return context_.died(0);
}

Status check_options(const SegmentJoinOptions& options) {
  const bool named = options.names.empty() ||
      options.names.size() == static_cast<std::size_t>(options.ranks);
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks ||
      !named) {
    return {
        ErrorCode::kInvalidArgument,
        str("[shm] joining a shared segment: expected a rank below the "
            "number of ranks and a name for each, found rank ",
            options.rank, " of ", options.ranks, " with ", options.names.size(),
            " names")};
  }
  return {};
}

}  // namespace

std::size_t HostSegment::head_bytes(int ranks) {
  return round_up_to_pages(sizeof(Head) + Peers::bytes(ranks));
}

Result<HostSegment> join_segment(
    const SegmentJoinOptions& options, const Clock& clock) {
  if (Status wrong = check_options(options); !wrong.ok()) {
    return wrong;
  }
  const JoinContext context{
      .options = options,
      .clock = clock,
      .until = clock.now() + options.deadline};
  return options.rank == 0 ? JoinLeader(context).run()
                           : JoinFollower(context).run();
}

}  // namespace sherd::shm
