// SPDX-License-Identifier: Apache-2.0
#include "world/c10d_group.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include "base/clock.h"
#include "world/peer_watch.h"
#include "world/sigpipe_guard.h"
#include "world/store_wait.h"

namespace sherd::world {
namespace {

using std::chrono::milliseconds;

// After a connection broke: how long its cause may take to be seen.
constexpr milliseconds kPatience(300);
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
// Receives of these tags are never answered.
constexpr int kPoisonTag = C10dGroup::kOwnTags + (1 << 29);
constexpr int kProbeTag = kPoisonTag + 1;
constexpr int kLeaveTag = kPoisonTag + 2;
constexpr int kClosedTag = kPoisonTag + 3;
// What a farewell says.
constexpr std::uint8_t kInOrder = 1;
constexpr std::uint8_t kByException = 2;
// A wait for a peer that has left: what it sent has come, and needs no time.
constexpr milliseconds kNoTime(1);
// Connections are probed at every so many ticks of the watch.
constexpr int kTicksPerProbe = 5;

}  // namespace

struct Operation {
  c10::intrusive_ptr<c10d::Work> work;
  at::Tensor tensor;  // Read or written until the operation ends.
};
using OperationPtr = std::shared_ptr<Operation>;

class C10dGroup::Impl {
 public:
  Impl(
      const C10dGroupOptions& options,
      c10::intrusive_ptr<c10d::Backend> backend,
      PeerWatch& watch)
      : options_(options),
        backend_(std::move(backend)),
        watch_(watch),
        leave_bytes_(at::zeros(
            {static_cast<std::int64_t>(options.ranks.size())}, at::kByte)) {
    const auto& ranks = options_.ranks;
    const auto own = std::find(ranks.begin(), ranks.end(), options_.own_rank);
    SHERD_ASSERT(own != ranks.end(), "a group is made by its members");
    index_ = static_cast<int>(own - ranks.begin());
    has_unwatched_ = std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
      return rank != options_.own_rank && !watch_.watches(rank);
    });
    expect_leave_messages();
    subscription_ = watch_.subscribe([this] { interrupt(); });
  }

  ~Impl() { watch_.unsubscribe(subscription_); }

  int index() const { return index_; }
  const std::vector<int>& ranks() const { return options_.ranks; }
  int size() const { return static_cast<int>(options_.ranks.size()); }
  int world_rank(int index) const {
    return options_.ranks.at(static_cast<std::size_t>(index));
  }
  Status failure() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return failure_;
  }
  int next_own_tag() {
    own_tag_ = (own_tag_ + 1) % (1 << 20);
    return kOwnTags + own_tag_;
  }

  enum class Direction { kSend, kReceive };
  Pending start(
      Direction direction, const at::Tensor& tensor, int peer, int tag);
  // Whether a peer that has left sent what is waited for before it left, or as
  // its farewell, or sends it after that.
  enum class Leaver { kIsDone, kSaysSo, kGoesOn };
  Status wait(
      Pending& pending,
      const std::string& what,
      Leaver leaver = Leaver::kIsDone);
  void abandon(const Status& why);
  void leave();
  Status close(const std::string& what, const std::function<void()>& at_last);

 private:
  enum class Outcome { kComplete, kInterrupted, kBroken };
  Outcome wait_once(const Pending& pending, milliseconds limit);
  void probe_unwatched(int needed);
  bool lost() const { return watch_.first_lost(options_.ranks).has_value(); }
  void expect_leave_messages();
  void send_leave_message();
  std::uint8_t leave_message_of(int peer) const;
  bool has_left(int peer) const { return leave_message_of(peer) != 0; }
  std::optional<PeerLoss> left_in_order(int peer) const;
  std::string likely_reason(int peer) const;
  Status fail(const Pending& pending, const std::string& what, Instant began);
  Status keep(const Status& failure);
  void end_messages();
  std::string doing(const std::string& what, int peer) const;
  void interrupt();
  enum class Waits { kAll, kForLeavers };
  void abort_waits(Waits which);
  void break_connections();

  const C10dGroupOptions options_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  PeerWatch& watch_;
  const SteadyClock clock_;
  int index_ = 0;
  bool has_unwatched_ = false;  // Members whose death only connections show.
  int subscription_ = 0;
  int own_tag_ = 0;
  std::atomic<int> ticks_ = 0;
  // The farewell of each member, 0 until it comes; the backend writes it.
  const at::Tensor leave_bytes_;
  std::vector<OperationPtr> leave_messages_;  // Receives of those, by member.

  // Held from a failure until nothing of the group is read or written any more,
  // so that a second thread that fails returns no sooner. Never taken while
  // holding mu_.
  std::mutex ending_;
  mutable std::mutex mu_;
  // Guarded by mu_:
  Status failure_;  // The first one.
  bool abandoned_ = false;
  bool left_ = false;
  // Until waited for: c10d cancels an operation whose last handle goes.
  std::vector<OperationPtr> outstanding_;
  // What some thread of ours waits in, to be interrupted.
  std::vector<const Pending*> waits_;
};

std::string C10dGroup::Impl::doing(const std::string& what, int peer) const {
  return str(
      "rank ", options_.own_rank, " waited for ", what, " with rank ",
      world_rank(peer));
}

Pending C10dGroup::Impl::start(
    Direction direction, const at::Tensor& tensor, int peer, int tag) {
  SHERD_CHECK(
      peer >= 0 && peer < size() && peer != index_, "[world] expected a peer ",
      "other than this rank in a group of ", size(), ", found index ", peer);
  SHERD_CHECK(
      tensor.is_contiguous() && tensor.device().is_cpu(),
      "[world] expected a contiguous CPU tensor, found one on ",
      tensor.device().str(), tensor.is_contiguous() ? "" : ", not contiguous");
  Pending pending{.work = nullptr, .peer = peer};
  const bool sound = failure().ok();
  if (tensor.numel() == 0 && sound) {
    return pending;
  }
  if (!sound || lost()) {
    pending.failed = true;
    return pending;
  }
  std::vector<at::Tensor> tensors{tensor};
  const SigpipeGuard no_sigpipe;
  try {
    auto work = direction == Direction::kSend
        ? backend_->send(tensors, peer, tag)
        : backend_->recv(tensors, peer, tag);
    pending.work =
        std::make_shared<Operation>(Operation{std::move(work), tensor});
    const std::lock_guard<std::mutex> lock(mu_);
    outstanding_.push_back(pending.work);
  } catch (const std::exception&) {
    pending.failed = true;  // The connection is broken; wait() finds out why.
  }
  return pending;
}

// Ends with the operation, a loss, a tick of the watch or the limit.
C10dGroup::Impl::Outcome C10dGroup::Impl::wait_once(
    const Pending& pending, milliseconds limit) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (abandoned_) {
      return Outcome::kInterrupted;
    }
    waits_.push_back(&pending);
  }
  Outcome outcome = Outcome::kInterrupted;
  // From here on interrupt() and abandon() find this wait; a loss recorded
  // before is found here.
  if (!lost()) {
    try {
      outcome = pending.work->work->wait(limit) ? Outcome::kComplete
                                                : Outcome::kInterrupted;
    } catch (const std::exception&) {
      outcome = Outcome::kBroken;
    }
  }
  const std::lock_guard<std::mutex> lock(mu_);
  waits_.erase(std::find(waits_.begin(), waits_.end(), &pending));
  return outcome;
}

void C10dGroup::Impl::interrupt() {
  const bool probe = has_unwatched_ && ++ticks_ % kTicksPerProbe == 0;
  const bool all = probe || lost();
  const std::lock_guard<std::mutex> lock(mu_);
  abort_waits(all ? Waits::kAll : Waits::kForLeavers);
}

// REQUIRES: mu_ is held.
void C10dGroup::Impl::abort_waits(Waits which) {
  for (const Pending* pending : waits_) {
    if (which == Waits::kForLeavers && !has_left(pending->peer)) {
      continue;
    }
    try {
      pending->work->work->abort();
    } catch (const std::exception&) {
      // A backend whose work cannot be aborted: its deadline ends the wait.
      continue;
    }
  }
}

// A message under way is not told that its connection broke. Starting another
// on that connection is. Who has left in order may close it, save `needed`.
void C10dGroup::Impl::probe_unwatched(int needed) {
  const SigpipeGuard no_sigpipe;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == index_ || watch_.watches(world_rank(peer))) {
      continue;
    }
    std::vector<at::Tensor> tensors{at::empty({1}, at::kByte)};
    try {
      backend_->recv(tensors, peer, kProbeTag);
    } catch (const std::exception&) {
      if (peer == needed || !has_left(peer)) {
        watch_.explain_closed(world_rank(peer), kPatience);
      }
    }
  }
}

Status C10dGroup::Impl::wait(
    Pending& pending, const std::string& what, Leaver leaver) {
  const Instant began = clock_.now();
  if (pending.failed || (pending.work != nullptr && !failure().ok())) {
    return fail(pending, what, began);
  }
  if (pending.work == nullptr) {
    return {};
  }
  Outcome outcome = Outcome::kInterrupted;
  while (outcome == Outcome::kInterrupted) {
    const auto rest = options_.deadline -
        std::chrono::duration_cast<milliseconds>(clock_.now() - began);
    if (rest <= milliseconds(0) || lost() || !failure().ok()) {
      break;
    }
    const bool in_vain = leaver == Leaver::kIsDone && has_left(pending.peer);
    outcome = wait_once(pending, in_vain ? std::min(rest, kNoTime) : rest);
    const bool left = leaver == Leaver::kIsDone && has_left(pending.peer);
    if (outcome == Outcome::kInterrupted && has_unwatched_ && !left) {
      probe_unwatched(leaver == Leaver::kGoesOn ? pending.peer : -1);
    }
  }
  if (outcome != Outcome::kComplete) {
    return fail(pending, what, began);
  }
  const std::lock_guard<std::mutex> lock(mu_);
  std::erase(outstanding_, pending.work);
  pending.work = nullptr;
  return {};
}

// The first failure decides what every later wait returns.
Status C10dGroup::Impl::fail(
    const Pending& pending, const std::string& what, Instant began) {
  if (auto first = failure(); !first.ok()) {
    return keep(first);
  }
  std::optional<PeerLoss> loss = watch_.first_lost(options_.ranks);
  const bool late = clock_.now() - began >= options_.deadline;
  const std::string context = doing(what, pending.peer);
  if (!loss && late) {
    const std::string how =
        str("did not answer rank ", options_.own_rank, " within ",
            seconds(options_.deadline), " s");
    watch_.report({world_rank(pending.peer), how});
    return keep(Status(
        ErrorCode::kDeadlineExceeded,
        str("[world] rank ", world_rank(pending.peer), " ", how, "; ",
            context)));
  }
  if (!loss) {
    loss = left_in_order(pending.peer);
  }
  if (!loss) {
    loss = watch_.explain_closed(world_rank(pending.peer), kPatience);
  }
  return keep(Status(
      loss->gave_up ? ErrorCode::kAborted : ErrorCode::kPeerLost,
      str("[world] rank ", loss->rank, " was lost: it ", loss->how, "; ",
          context, likely_reason(pending.peer))));
}

// Returns the first failure, when all messages have ended with it: the caller
// may use the memory of its tensors for something else then, while a peer that
// is late may still send, and receive.
Status C10dGroup::Impl::keep(const Status& failure) {
  const std::lock_guard<std::mutex> ending(ending_);
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!failure_.ok()) {
      return failure_;
    }
    failure_ = failure;
  }
  end_messages();
  return failure;
}

// ---- farewells ----

void C10dGroup::Impl::expect_leave_messages() {
  leave_messages_.resize(options_.ranks.size());
  if (backend_ == nullptr || options_.name.empty()) {
    return;
  }
  const SigpipeGuard no_sigpipe;
  for (int peer = 0; peer < size(); ++peer) {
    std::vector<at::Tensor> tensors{leave_bytes_.narrow(0, peer, 1)};
    try {
      leave_messages_[static_cast<std::size_t>(peer)] = peer == index_
          ? nullptr
          : std::make_shared<Operation>(Operation{
                backend_->recv(tensors, peer, kLeaveTag), tensors[0]});
    } catch (const std::exception&) {
      continue;  // The connection is broken: who needs the peer finds out.
    }
  }
}

// The byte is written by the backend's thread after everything that the peer
// sent before, whose waits find it under the backend's own lock.
std::uint8_t C10dGroup::Impl::leave_message_of(int peer) const {
  auto* heard = static_cast<std::uint8_t*>(leave_bytes_.mutable_data_ptr());
  return std::atomic_ref<std::uint8_t>(heard[peer])
      .load(std::memory_order_acquire);
}

// Why a wait for `peer` was in vain, if that is because it has left. The other
// groups and ranks are told.
std::optional<PeerLoss> C10dGroup::Impl::left_in_order(int peer) const {
  if (!has_left(peer)) {
    return std::nullopt;
  }
  watch_.report(
      {world_rank(peer),
       str("closed ", options_.name,
           leave_message_of(peer) == kByException ? " because of an exception"
                                             : " and takes part no more")});
  return watch_.first_lost({world_rank(peer)});
}

// Where `peer` has no board that tells why it closed its connection: the likely
// reason, if another member has left before.
std::string C10dGroup::Impl::likely_reason(int peer) const {
  for (int other = 0; other < size(); ++other) {
    if (other != peer && has_left(other) && !watch_.watches(world_rank(peer))) {
      return str("; rank ", world_rank(other), " had closed ", options_.name);
    }
  }
  return "";
}

void C10dGroup::Impl::leave() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!outstanding_.empty()) {
      return;
    }
  }
  send_leave_message();
}

void C10dGroup::Impl::send_leave_message() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (left_ || !failure_.ok() || options_.name.empty()) {
      return;
    }
    left_ = true;
  }
  const at::Tensor farewell = at::empty({1}, at::kByte);
  farewell.fill_(std::uncaught_exceptions() > 0 ? kByException : kInOrder);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != index_) {
      start(Direction::kSend, farewell, peer, kLeaveTag);
    }
  }
}

Status C10dGroup::Impl::close(
    const std::string& what, const std::function<void()>& at_last) {
  send_leave_message();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == index_) {
      continue;
    }
    Pending farewell{
        .work = leave_messages_[static_cast<std::size_t>(peer)], .peer = peer};
    farewell.failed = farewell.work == nullptr;
    if (auto status = wait(farewell, what, Leaver::kSaysSo); !status.ok()) {
      return status;
    }
  }
  if (index_ != 0) {
    Pending closed =
        start(Direction::kReceive, at::empty({1}, at::kByte), 0, kClosedTag);
    return wait(closed, what, Leaver::kGoesOn);
  }
  at_last();
  std::vector<Pending> told;
  for (int peer = 1; peer < size(); ++peer) {
    told.push_back(
        start(Direction::kSend, at::zeros({1}, at::kByte), peer, kClosedTag));
  }
  Status first;
  for (auto& one : told) {
    auto status = wait(one, what, Leaver::kGoesOn);
    first = first.ok() ? status : first;
  }
  return first;
}

// ---- the end ----

void C10dGroup::Impl::abandon(const Status& why) {
  const std::lock_guard<std::mutex> ending(ending_);
  bool gave_up = false;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (std::exchange(abandoned_, true)) {
      return;
    }
    gave_up = failure_.ok();
    if (gave_up) {
      failure_ = Status(
          ErrorCode::kAborted,
          str("[world] rank ", options_.own_rank,
              " gave up: ", why.ok() ? "no reason given" : why.message()));
    }
    abort_waits(Waits::kAll);
  }
  if (gave_up) {
    // Peers see the connections break and look for the reason on our board.
    watch_.give_up(why.ok() ? "gave up" : str("gave up: ", why.message()));
  }
  end_messages();
}

// Gloo reads and writes the memory of a message until its connection is closed.
// The handles go after that: a connection in the middle of a message without
// one would never come to its end.
void C10dGroup::Impl::end_messages() {
  break_connections();
  const std::lock_guard<std::mutex> lock(mu_);
  outstanding_.clear();
}

// c10d cannot close a Gloo group while its peers live. But a wait that times
// out breaks all its connections, so one is made to: a receive nobody answers.
void C10dGroup::Impl::break_connections() {
  const SigpipeGuard no_sigpipe;
  for (int peer = 0; backend_ != nullptr && peer < size(); ++peer) {
    if (peer == index_) {
      continue;
    }
    std::vector<at::Tensor> tensors{at::empty({1}, at::kByte)};
    try {
      backend_->recv(tensors, peer, kPoisonTag)->wait(milliseconds(1));
    } catch (const std::exception&) {
      // Expected: either the time-out or a connection that was broken before;
      // in that case the next peer's may still be whole.
      continue;
    }
  }
}

C10dGroup::C10dGroup(
    const C10dGroupOptions& options,
    c10::intrusive_ptr<c10d::Backend> backend,
    PeerWatch& watch)
    : impl_(std::make_unique<Impl>(options, std::move(backend), watch)) {}
C10dGroup::~C10dGroup() = default;

int C10dGroup::index() const { return impl_->index(); }
int C10dGroup::size() const { return impl_->size(); }
int C10dGroup::world_rank(int index) const { return impl_->world_rank(index); }
bool C10dGroup::has_only(const std::vector<int>& ranks) const {
  return std::includes(
      ranks.begin(), ranks.end(), impl_->ranks().begin(), impl_->ranks().end());
}
Status C10dGroup::failure() const { return impl_->failure(); }
int C10dGroup::next_own_tag() { return impl_->next_own_tag(); }
Pending C10dGroup::send(const at::Tensor& tensor, int peer, int tag) {
  return impl_->start(Impl::Direction::kSend, tensor, peer, tag);
}
Pending C10dGroup::receive(const at::Tensor& tensor, int peer, int tag) {
  return impl_->start(Impl::Direction::kReceive, tensor, peer, tag);
}
Status C10dGroup::wait(Pending& pending, const std::string& what) {
  return impl_->wait(pending, what);
}
void C10dGroup::abandon(const Status& why) { impl_->abandon(why); }
void C10dGroup::leave() { impl_->leave(); }
Status C10dGroup::close(
    const std::string& what, const std::function<void()>& at_last) {
  return impl_->close(what, at_last);
}

// Dissemination: in round k a rank tells the one 2^k ahead; after ceil(log2 W)
// rounds everybody has heard, directly or not, from everybody.
Status C10dGroup::barrier(const std::string& what) {
  const int tag = next_own_tag();
  for (int step = 1; step < size(); step *= 2) {
    const at::Tensor token = at::zeros({1}, at::kByte);
    const at::Tensor heard = at::empty({1}, at::kByte);
    Pending out = send(token, (index() + step) % size(), tag);
    Pending in = receive(heard, (index() + size() - step) % size(), tag);
    // Evaluate both: after a failure each must still be waited for.
    const Status sent = wait(out, what);
    const Status received = wait(in, what);
    if (!sent.ok() || !received.ok()) {
      return sent.ok() ? received : sent;
    }
  }
  return {};
}

}  // namespace sherd::world
