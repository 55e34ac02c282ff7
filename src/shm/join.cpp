// SPDX-License-Identifier: Apache-2.0
//
// Rank 0 is the leader, the others are followers; docs/design/shared_memory.md shows what they say
// to each other. The outcome is a word of the segment that changes once, from open to joined (by the
// leader) or to withdrawn (by any rank that fails after it has mapped the segment). So all agree, no
// matter which rank dies between two messages. Messages carry reasons, and their end shows that a
// process has died.
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

  std::string name(int rank) const { return options.peers.name(rank); }
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
    const std::size_t head = HostSegment::head_bytes(options.peers.ranks);
    SegmentOptions whole = options.segment;
    whole.bytes = sum(options.segment.bytes, head);
    if (options.segment.touched_bytes > 0) {
      whole.touched_bytes = sum(options.segment.touched_bytes, head);
    }
    return whole;
  }
  JoinRequest request() const {
    return {
        .rank = options.peers.rank,
        .ranks = options.peers.ranks,
        .bytes = options.segment.bytes};
  }
  std::unique_ptr<Peers> peers(const Segment& segment) const {
    return std::make_unique<Peers>(
        segment.at<std::byte>(sizeof(Head), Peers::bytes(options.peers.ranks)),
        options.peers);
  }
  std::uint32_t withdrawal() const {
    return kWithdrawn + static_cast<std::uint32_t>(options.peers.rank);
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
  // Passes the segment to all and decides the outcome; ok if all have joined.
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
  SHERD_ASSIGN_OR_RETURN(segment_, Segment::create(context_.segment()));
  peers_ = context_.peers(segment_);
  peers_->enter();
  if (context_.options.peers.ranks == 1) {
    return {};
  }
  SHERD_ASSIGN_OR_RETURN(listener_, UnixListener::open());
  return context_.options.store.put(listener_->address());
}

bool JoinLeader::all_mapped() const {
  return std::ranges::count(followers_, true, &Follower::mapped) ==
      context_.options.peers.ranks - 1;
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
    SHERD_RETURN_IF_FAILED(check_others ? check_others() : Status());
    // From back to front, because unrelated processes are dropped on the way.
    for (std::size_t i = followers_.size(); i-- > 0;) {
      bool keep = true;
      SHERD_RETURN_IF_FAILED(
          fds[i + 1].revents == 0 ? Status() : listen_to(followers_[i], keep));
      if (!keep) {
        followers_.erase(followers_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    SHERD_RETURN_IF_FAILED(accept());
  }
  const std::uint32_t outcome = decide(segment_, kIsJoined);
  return outcome == kIsJoined ? Status() : context_.withdrew(outcome);
}

Status JoinLeader::accept() {
  for (;;) {
    SHERD_ASSIGN_OR_RETURN(
        std::optional<UnixConnection> connection, listener_->try_accept());
    if (!connection) {
      return {};
    }
    followers_.push_back({.connection = *std::move(connection)});
  }
}

Status JoinLeader::listen_to(Follower& follower, bool& keep) {
  auto next = follower.connection.try_receive();
  if (!next.ok()) {
    if (follower.rank >= 0) {
      return next.status().code() == ErrorCode::kPeerLost
          ? context_.died(follower.rank)
          : next.status();
    }
    keep = false;  // It died before it said who it is; the rank will be missed.
    return {};
  }
  const auto message = std::move(next).value();
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
            request.rank < context_.options.peers.ranks
                ? context_.name(request.rank)
                : str("rank ", request.rank)));
  }
  const bool twice = request.rank == 0 ||
      request.rank >= context_.options.peers.ranks ||
      std::ranges::count(followers_, request.rank, &Follower::rank) > 0;
  if (twice) {
    return context_.failure(
        ErrorCode::kPeerMismatch,
        str("expected the other ranks of ", context_.options.peers.ranks,
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
  for (int r = 1; r < context_.options.peers.ranks; ++r) {
    const auto found = std::ranges::find(followers_, r, &Follower::rank);
    if (found == followers_.end() || !found->mapped) {
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
  if (context_.options.peers.ranks == 1) {
    return;
  }
  const std::string text = failure_text(why);
  static_cast<void>(context_.options.store.put(text));
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
  // The reason of a failure of the connection with the leader; ok stays ok.
  Status explain(const Status& outcome);

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
  SHERD_ASSIGN_OR_RETURN(UnixConnection leader, find_leader());
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
  const Result<std::string> text = context_.options.store.get(rest);
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
  SHERD_RETURN_IF_FAILED(explain(leader.send(context_.request().to_text())));
  auto received = leader.receive(context_.clock, until_);
  SHERD_RETURN_IF_FAILED(explain(received.status()));
  UnixConnection::Message message = std::move(received).value();
  if (auto told = failure_from_text(message.text)) {
    return *std::move(told);
  }
  SHERD_ASSIGN_OR_RETURN(
      segment_,
      Segment::from_descriptor(
          std::move(message.descriptor), context_.segment()));
  peers_ = context_.peers(segment_);
  peers_->enter();
  return {};
}

Status JoinFollower::await_outcome(UnixConnection& leader) {
  SHERD_RETURN_IF_FAILED(explain(leader.send(kMapped)));
  const auto last = leader.receive(context_.clock, until_);
  SHERD_RETURN_IF_FAILED(explain(last.status()));
  return failure_from_text(last.value().text).value_or(Status());
}

Status JoinFollower::explain(const Status& outcome) {
  if (!outcome.ok() && outcome.code() == ErrorCode::kPeerLost) {
    return leader_is_gone();
  }
  if (!outcome.ok() && outcome.code() == ErrorCode::kDeadlineExceeded) {
    return context_.failure(
        outcome.code(),
        str(context_.name(0), " is not responding within ",
            seconds_text(context_.options.deadline)));
  }
  return outcome;
}

Status JoinFollower::leader_is_gone() {
  const Result<std::string> text = context_.options.store.get(kReasonPatience);
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

Status check_peers(const PeersOptions& peers) {
  const bool named = peers.names.empty() ||
      peers.names.size() == static_cast<std::size_t>(peers.ranks);
  if (peers.ranks < 1 || peers.rank < 0 || peers.rank >= peers.ranks ||
      !named) {
    return {
        ErrorCode::kInvalidArgument,
        str("[shm] joining a shared segment: expected a rank below the "
            "number of ranks and a name for each, found rank ",
            peers.rank, " of ", peers.ranks, " with ", peers.names.size(),
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
  SHERD_RETURN_IF_FAILED(check_peers(options.peers));
  const JoinContext context{
      .options = options,
      .clock = clock,
      .until = clock.now() + options.deadline};
  return options.peers.rank == 0 ? JoinLeader(context).run()
                                 : JoinFollower(context).run();
}

}  // namespace sherd::shm
