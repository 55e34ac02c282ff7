// SPDX-License-Identifier: Apache-2.0
//
// Rank 0 is the host, the others are guests:
//
//   host                                guest
//   make segment, listen
//   put address             ------>     get address, connect
//   check                   <------     hello
//   segment                 ------>     map it, enter as peer
//   wait for all            <------     "mapped"
//   outcome: open -> joined
//   "joined"                ------>     return
//
// The outcome is a word of the segment that changes once, from open to joined
// (by the host) or to withdrawn (by anybody who fails after it has mapped the
// segment): so all agree, whoever dies between two messages. Messages carry
// reasons and tell by their end that a process has died.
#include "comm/shm/join.h"

#include <poll.h>
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <utility>
#include "base/check.h"
#include "comm/shm/descriptor_passing.h"
#include "comm/shm/join_text.h"

namespace sherd::comm::shm {
namespace {

constexpr const char* kMapped = "mapped";
constexpr const char* kJoined = "joined";
// How long a guest looks for the reason why the host is gone, and how much
// longer than the host it waits: the host's deadline names who is missing.
constexpr Duration kReasonPatience = std::chrono::seconds(1);
constexpr Duration kLookPeriod = std::chrono::milliseconds(100);

struct alignas(kCacheLine) Head {
  // kOpen, kIsJoined, or kWithdrawn + the rank that withdrew.
  std::uint32_t outcome;
};
constexpr std::uint32_t kOpen = 0;
constexpr std::uint32_t kIsJoined = 1;
constexpr std::uint32_t kWithdrawn = 2;

// Changes the outcome unless it is decided already; returns what it is then.
// Acquire and release: who sees "joined" sees all peers' records.
std::uint32_t decide(const Segment& segment, std::uint32_t wish) {
  std::uint32_t found = kOpen;
  const bool changed =
      std::atomic_ref(segment.at<Head>(0, 1)[0].outcome)
          .compare_exchange_strong(found, wish, std::memory_order_acq_rel);
  return changed ? wish : found;
}

// What overflows stays too large for any segment.
std::size_t sum(std::size_t a, std::size_t b) {
  return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

std::string seconds_text(Duration d) { return str(seconds(d), " s"); }

// What both sides know.
struct Meeting {
  const JoinOptions& options;
  const Clock& clock;
  const Instant until;

  std::string name(int rank) const {
    return str(
        "rank ",
        options.names.empty() ? rank
                              : options.names[static_cast<std::size_t>(rank)]);
  }
  Status failure(ErrorCode code, const std::string& what) const {
    return {code, str("[comm] joining a shared segment: ", what)};
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
    whole.reserve_bytes = sum(options.segment.reserve_bytes, head);
    return whole;
  }
  Hello hello() const {
    return {
        .rank = options.rank,
        .ranks = options.ranks,
        .bytes = options.segment.bytes,
        .reserve_bytes = options.segment.reserve_bytes};
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

// Ends what host and guest have in common: all are in.
Result<HostSegment> joined(Segment segment, std::unique_ptr<Peers> peers) {
  if (Status failed = peers->watch(); !failed.ok()) {
    return failed;
  }
  return HostSegment(std::move(segment), std::move(peers));
}

// --- Rank 0.

class Host {
 public:
  explicit Host(const Meeting& meeting) : meeting_(meeting) {}
  Result<HostSegment> run();

 private:
  struct Guest {
    Channel channel;
    int rank = -1;  // Until its hello.
    bool mapped = false;
  };

  Status open();
  Status serve();
  Status accept();
  // Takes what `guest` has sent; clears `keep` when it is a stranger.
  Status listen_to(Guest& guest, bool& keep);
  Status greet(Guest& guest, const Hello& hello);
  Status too_late() const;
  bool all_mapped() const;
  void tell_failure(const Status& why);

  const Meeting& meeting_;
  Segment segment_;
  std::unique_ptr<Peers> peers_;
  std::optional<Listener> listener_;
  std::vector<Guest> guests_;
};

Result<HostSegment> Host::run() {
  Status failed = open();
  if (failed.ok()) {
    failed = serve();
  }
  if (failed.ok()) {
    const std::uint32_t outcome = decide(segment_, kIsJoined);
    if (outcome != kIsJoined) {
      failed = meeting_.withdrew(outcome);
    }
  }
  if (!failed.ok()) {
    tell_failure(failed);
    return failed;
  }
  for (Guest& guest : guests_) {
    // One that died since is missed at the first wait for it.
    static_cast<void>(guest.channel.send(kJoined));
  }
  return joined(std::move(segment_), std::move(peers_));
}

Status Host::open() {
  Result<Segment> made = Segment::create(meeting_.segment());
  if (!made.ok()) {
    return made.status();
  }
  segment_ = std::move(made).value();
  peers_ = meeting_.peers(segment_);
  peers_->enter();
  if (meeting_.options.ranks == 1) {
    return {};
  }
  Result<Listener> listener = Listener::open();
  if (!listener.ok()) {
    return listener.status();
  }
  listener_ = std::move(listener).value();
  return meeting_.options.store.put(meeting_.options.key, listener_->address());
}

bool Host::all_mapped() const {
  const auto count = std::count_if(
      guests_.begin(), guests_.end(), [](const Guest& g) { return g.mapped; });
  return count == meeting_.options.ranks - 1;
}

Status Host::serve() {
  while (!all_mapped()) {
    const Instant now = meeting_.clock.now();
    if (now >= meeting_.until) {
      return too_late();
    }
    std::vector<pollfd> fds{{listener_->descriptor(), POLLIN, 0}};
    for (const Guest& guest : guests_) {
      fds.push_back({guest.channel.descriptor(), POLLIN, 0});
    }
    const auto& look = meeting_.options.store.look;
    const Instant next =
        look ? std::min(meeting_.until, now + kLookPeriod) : meeting_.until;
    ::poll(fds.data(), fds.size(), poll_ms(now, next));
    if (Status lost = look ? look() : Status(); !lost.ok()) {
      return lost;
    }
    // Backwards, because strangers are dropped on the way.
    for (std::size_t i = guests_.size(); i-- > 0;) {
      bool keep = true;
      Status failed =
          fds[i + 1].revents == 0 ? Status() : listen_to(guests_[i], keep);
      if (!failed.ok()) {
        return failed;
      }
      if (!keep) {
        guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (Status failed = accept(); !failed.ok()) {
      return failed;
    }
  }
  return {};
}

Status Host::accept() {
  for (;;) {
    Result<std::optional<Channel>> next = listener_->try_accept();
    if (!next.ok()) {
      return next.status();
    }
    std::optional<Channel> channel = std::move(next).value();
    if (!channel) {
      return {};
    }
    guests_.push_back({.channel = *std::move(channel)});
  }
}

Status Host::listen_to(Guest& guest, bool& keep) {
  Result<std::optional<Message>> next = guest.channel.try_receive();
  if (!next.ok()) {
    if (guest.rank >= 0) {
      return next.status().code() == ErrorCode::kPeerLost
          ? meeting_.died(guest.rank)
          : next.status();
    }
    keep = false;  // Died before it said who it is; it will be missed.
    return {};
  }
  const std::optional<Message> message = std::move(next).value();
  if (!message) {
    return {};
  }
  if (guest.rank < 0) {
    const auto hello = Hello::from_text(message->text);
    keep = hello.has_value();
    return hello ? greet(guest, *hello) : Status();
  }
  if (message->text == kMapped) {
    guest.mapped = true;
    return {};
  }
  if (const auto why = failure_from_text(message->text)) {
    return {
        why->code(), str(why->message(), " (", meeting_.name(guest.rank), ")")};
  }
  return meeting_.failure(
      ErrorCode::kPeerMismatch,
      str("expected '", kMapped, "' of ", meeting_.name(guest.rank),
          ", found '", message->text, "'"));
}

Status Host::greet(Guest& guest, const Hello& hello) {
  const std::string difference = meeting_.hello().difference(hello);
  if (!difference.empty()) {
    return meeting_.failure(
        ErrorCode::kPeerMismatch,
        str(meeting_.name(0), " expected ", difference, " on ",
            hello.rank < meeting_.options.ranks ? meeting_.name(hello.rank)
                                                : str("rank ", hello.rank)));
  }
  const bool twice = hello.rank == 0 || hello.rank >= meeting_.options.ranks ||
      std::any_of(guests_.begin(), guests_.end(),
                  [&](const Guest& other) { return other.rank == hello.rank; });
  if (twice) {
    return meeting_.failure(
        ErrorCode::kPeerMismatch,
        str("expected the other ranks of ", meeting_.options.ranks,
            " once each, found one more that says it has place ", hello.rank));
  }
  guest.rank = hello.rank;
  const Status sent = guest.channel.send("segment", segment_.descriptor());
  return sent.ok() || sent.code() != ErrorCode::kPeerLost
      ? sent
      : meeting_.died(guest.rank);
}

Status Host::too_late() const {
  std::string missing;
  for (int r = 1; r < meeting_.options.ranks; ++r) {
    const bool here = std::any_of(
        guests_.begin(), guests_.end(),
        [r](const Guest& g) { return g.rank == r && g.mapped; });
    if (!here) {
      missing += str(missing.empty() ? "" : ", ", meeting_.name(r));
    }
  }
  return meeting_.failure(
      ErrorCode::kDeadlineExceeded,
      str("expected all ranks within ", seconds_text(meeting_.options.deadline),
          ", not responding: ", missing));
}

// To those who are here by their connection, to those who come later by the
// store. Who cannot be told will find nobody at the address.
void Host::tell_failure(const Status& why) {
  if (segment_.data() != nullptr) {
    decide(segment_, meeting_.withdrawal());
  }
  if (meeting_.options.ranks == 1) {
    return;
  }
  const std::string text = failure_text(why);
  static_cast<void>(meeting_.options.store.put(meeting_.options.key, text));
  for (Guest& guest : guests_) {
    static_cast<void>(guest.channel.send(text));
  }
}

// --- The other ranks.

class Guest {
 public:
  explicit Guest(const Meeting& meeting) : meeting_(meeting) {}
  Result<HostSegment> run();

 private:
  Result<HostSegment> take_part();
  Result<Channel> find_host();
  Status take_segment(Channel& host);
  // Waits for the host's last word; ok when it is "joined".
  Status await_outcome(Channel& host);
  // Why the host is gone: what it left in the store, else that it died. Notes
  // where it left another offer than the one that this rank took.
  Status host_is_gone();
  Status explain(const Status& failed);

  const Meeting& meeting_;
  std::string offer_;  // Where the host said that it listens.
  bool offered_again_ = false;
  Instant until_{0};  // Of the host's answers.
  Segment segment_;
  std::unique_ptr<Peers> peers_;
};

// A host that has given up may have begun anew meanwhile.
Result<HostSegment> Guest::run() {
  Result<HostSegment> outcome = take_part();
  while (!outcome.ok() && offered_again_ &&
         meeting_.clock.now() < meeting_.until) {
    offered_again_ = false;
    outcome = take_part();
  }
  return outcome;
}

Result<HostSegment> Guest::take_part() {
  Result<Channel> found = find_host();
  if (!found.ok()) {
    return found.status();
  }
  Channel host = std::move(found).value();
  // The host listened before now, so its own deadline is over before this.
  until_ = meeting_.clock.now() + meeting_.options.deadline + kReasonPatience;
  Status failed = take_segment(host);
  if (!failed.ok()) {
    static_cast<void>(host.send(failure_text(failed)));
    return failed;
  }
  failed = await_outcome(host);
  // Too late to fail where all have joined: this rank has, too. And with a
  // "joined" this is what sees the records of all.
  if (decide(segment_, meeting_.withdrawal()) == kIsJoined) {
    return joined(std::move(segment_), std::move(peers_));
  }
  if (failed.ok()) {
    failed = host_is_gone();
  }
  static_cast<void>(host.send(failure_text(failed)));
  return failed;
}

Result<Channel> Guest::find_host() {
  const Duration rest = meeting_.until - meeting_.clock.now();
  const Result<std::string> text =
      meeting_.options.store.get(meeting_.options.key, rest);
  if (!text.ok()) {
    return meeting_.failure(
        text.status().code(),
        str("expected ", meeting_.name(0), " to offer one within ",
            seconds_text(meeting_.options.deadline),
            ", found none: ", text.status().message()));
  }
  if (auto told = failure_from_text(text.value())) {
    return *std::move(told);
  }
  offer_ = text.value();
  Result<Channel> host =
      Channel::connect(offer_, meeting_.clock, meeting_.until);
  if (!host.ok() && host.status().code() == ErrorCode::kUnavailable) {
    return host_is_gone();
  }
  return host;
}

Status Guest::take_segment(Channel& host) {
  if (Status failed = host.send(meeting_.hello().to_text()); !failed.ok()) {
    return explain(failed);
  }
  Result<Message> received = host.receive(meeting_.clock, until_);
  if (!received.ok()) {
    return explain(received.status());
  }
  Message message = std::move(received).value();
  if (auto told = failure_from_text(message.text)) {
    return *std::move(told);
  }
  Result<Segment> mapped = Segment::from_descriptor(
      std::move(message.descriptor), meeting_.segment());
  if (!mapped.ok()) {
    return mapped.status();
  }
  segment_ = std::move(mapped).value();
  peers_ = meeting_.peers(segment_);
  peers_->enter();
  return {};
}

Status Guest::await_outcome(Channel& host) {
  if (Status failed = host.send(kMapped); !failed.ok()) {
    return explain(failed);
  }
  const Result<Message> last = host.receive(meeting_.clock, until_);
  if (!last.ok()) {
    return explain(last.status());
  }
  return failure_from_text(last.value().text).value_or(Status());
}

Status Guest::explain(const Status& failed) {
  if (failed.code() == ErrorCode::kPeerLost) {
    return host_is_gone();
  }
  if (failed.code() == ErrorCode::kDeadlineExceeded) {
    return meeting_.failure(
        failed.code(),
        str(meeting_.name(0), " is not responding within ",
            seconds_text(meeting_.options.deadline)));
  }
  return failed;
}

Status Guest::host_is_gone() {
  const Result<std::string> text =
      meeting_.options.store.get(meeting_.options.key, kReasonPatience);
  if (text.ok()) {
    if (auto told = failure_from_text(text.value())) {
      return *std::move(told);
    }
    offered_again_ = text.value() != offer_;
  }
  return meeting_.died(0);
}

Status check_options(const JoinOptions& options) {
  const bool named = options.names.empty() ||
      options.names.size() == static_cast<std::size_t>(options.ranks);
  if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks ||
      !named) {
    return {
        ErrorCode::kInvalidArgument,
        str("[comm] joining a shared segment: expected a rank below the "
            "number of ranks and a name for each, found rank ",
            options.rank, " of ", options.ranks, " with ", options.names.size(),
            " names")};
  }
  return {};
}

}  // namespace

std::size_t HostSegment::head_bytes(int ranks) {
  return whole_pages(sizeof(Head) + Peers::bytes(ranks));
}

Result<HostSegment> join_segment(
    const JoinOptions& options, const Clock& clock) {
  if (Status wrong = check_options(options); !wrong.ok()) {
    return wrong;
  }
  const Meeting meeting{
      .options = options,
      .clock = clock,
      .until = clock.now() + options.deadline};
  return options.rank == 0 ? Host(meeting).run() : Guest(meeting).run();
}

}  // namespace sherd::comm::shm
