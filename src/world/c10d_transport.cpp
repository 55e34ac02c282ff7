// SPDX-License-Identifier: Apache-2.0
#include "world/c10d_transport.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include "base/interrupt.h"
#include "world/sigpipe_guard.h"

namespace sherd::world {
namespace {

using std::chrono::milliseconds;

// How long the cause of a broken connection may take to become visible: much longer than usual where
// others have all the cores. It is spent in vain only for a peer that lives and has broken its
// connections without a word.
constexpr milliseconds kPatience(5000);
constexpr milliseconds kForever = std::chrono::hours(24 * 365);
// Receives with these tags are never answered.
constexpr int kPoisonTag = Transport::kCollectiveTags + (1 << 29);
constexpr int kProbeTag = kPoisonTag + 1;
constexpr int kLeaveTag = kPoisonTag + 2;
constexpr int kClosedTag = kPoisonTag + 3;
// The content of a leave message.
constexpr std::uint8_t kInOrder = 1;
constexpr std::uint8_t kByException = 2;
// For a wait for a peer that has left: what it sent has arrived, and needs no time.
constexpr milliseconds kNoTime(1);
// Connections are probed once in this many ticks of the watch.
constexpr int kTicksPerProbe = 5;

void check_tag(int tag) {
  SHERD_CHECK(
      tag >= 0 && tag < kPoisonTag, "[world] expected a tag below 2^30, ",
      "found ", tag);
}

}  // namespace

struct C10dTransport::Operation {
  c10::intrusive_ptr<c10d::Work> work;
  at::Tensor tensor;  // Read or written until the operation ends.
  int source = -1;    // The member that a receive expects it from.
  int tag = -1;
  Instant began{};
};

// `operation` is null if there is nothing to wait for, or if the start failed.
struct C10dTransport::Message final : Transfer {
  Message(C10dTransport& transport, int of, OperationPtr under_way)
      : via(transport), peer(of), operation(std::move(under_way)) {}
  Status wait(const std::string& what) override {
    return via.wait(*this, what, Leaver::kIsDone);
  }

  C10dTransport& via;
  const int peer;  // Index in the group.
  OperationPtr operation;
  bool failed = false;  // Failed at the start; wait() says why.
};

C10dTransport::C10dTransport(
    const Options& options,
    c10::intrusive_ptr<c10d::Backend> backend,
    PeerWatch& watch)
    : Transport(options.ranks, options.own_rank),
      deadline_(options.deadline),
      name_(options.name),
      backend_(std::move(backend)),
      watch_(watch),
      leave_bytes_(at::zeros({size()}, at::kByte)),
      received_(ranks().size()) {
  expect_messages();
  subscription_ = watch_.subscribe([this] { interrupt(); });
}

C10dTransport::~C10dTransport() { watch_.unsubscribe(subscription_); }

bool C10dTransport::has_only(const std::vector<int>& others) const {
  return std::ranges::includes(others, ranks());
}

Status C10dTransport::failure() const {
  const std::lock_guard<std::mutex> lock(mu_);
  return failure_;
}

bool C10dTransport::lost() const {
  return watch_.first_lost(ranks()).has_value();
}

std::unique_ptr<Transfer> C10dTransport::send(
    const at::Tensor& tensor, int peer, int tag) {
  check_tag(tag);
  return std::make_unique<Message>(start(Direction::kSend, tensor, peer, tag));
}

std::unique_ptr<Transfer> C10dTransport::receive(
    const at::Tensor& tensor, int peer, int tag) {
  check_tag(tag);
  return std::make_unique<Message>(
      start(Direction::kReceive, tensor, peer, tag));
}

std::string C10dTransport::doing(const std::string& what, int peer) const {
  return str(
      "rank ", own_rank(), " waited for ", what, " with rank ",
      world_rank(peer));
}

C10dTransport::Message C10dTransport::start(
    Direction direction, const at::Tensor& tensor, int peer, int tag) {
  SHERD_CHECK(
      peer >= 0 && peer < size() && peer != index(), "[world] expected a peer ",
      "other than this rank in a group of ", size(), ", found index ", peer);
  SHERD_CHECK(
      tensor.is_contiguous() && tensor.device().is_cpu(),
      "[world] expected a contiguous CPU tensor, found one on ",
      tensor.device().str(), tensor.is_contiguous() ? "" : ", not contiguous");
  Message message(*this, peer, nullptr);
  const bool sound = failure().ok();
  if (tensor.numel() == 0 && sound) {
    return message;
  }
  if (!sound || lost()) {
    message.failed = true;
    return message;
  }
  std::vector<at::Tensor> tensors{tensor};
  const SigpipeGuard no_sigpipe;
  try {
    auto work = direction == Direction::kSend
        ? backend_->send(tensors, peer, tag)
        : backend_->recv(tensors, peer, tag);
    message.operation = std::make_shared<Operation>(Operation{
        .work = std::move(work),
        .tensor = tensor,
        .source = direction == Direction::kReceive ? peer : -1,
        .tag = tag,
        .began = clock_.now()});
    const std::lock_guard<std::mutex> lock(mu_);
    outstanding_.push_back(message.operation);
  } catch (const std::exception&) {
    message.failed = true;  // The connection is broken; wait() finds out why.
  }
  return message;
}

// Ends with the operation, a loss, a tick of the watch or the deadline.
C10dTransport::Outcome C10dTransport::wait_once(
    const Message& message, milliseconds limit) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (abandoned_) {
      return Outcome::kInterrupted;
    }
    waits_.push_back(&message);
  }
  Outcome outcome = Outcome::kInterrupted;
  // From here on interrupt() and abandon() find this wait; losses recorded before are found here.
  if (!lost()) {
    try {
      outcome = message.operation->work->wait(limit) ? Outcome::kComplete
                                                     : Outcome::kInterrupted;
    } catch (const std::exception&) {
      outcome = Outcome::kBroken;
    }
  }
  const std::lock_guard<std::mutex> lock(mu_);
  waits_.erase(std::ranges::find(waits_, &message));
  return outcome;
}

// For a message whose wait a loss has interrupted, or another failure of the group: whether the
// message ended before, which the failure does not undo. If it did not, this breaks the connections
// of the group, which fails in any case.
bool C10dTransport::has_ended(const Operation& operation) {
  // An interrupt that came when the wait had ended interrupts the first of these.
  for (int look = 0; look < 2; ++look) {
    try {
      if (operation.work->wait(kNoTime)) {
        return true;
      }
    } catch (const std::exception&) {
      return false;
    }
  }
  return false;
}

void C10dTransport::interrupt() {
  const bool probe = !probes_.empty() && ++ticks_ % kTicksPerProbe == 0;
  const bool all = probe || lost() || InterruptibleWait::possible();
  const std::lock_guard<std::mutex> lock(mu_);
  abort_waits(all ? Waits::kAll : Waits::kForLeavers);
}

// REQUIRES: mu_ is held.
void C10dTransport::abort_waits(Waits which) {
  for (const Message* message : waits_) {
    if (which == Waits::kForLeavers && !has_left(message->peer)) {
      continue;
    }
    try {
      message->operation->work->abort();
    } catch (const std::exception&) {
      // A backend whose work cannot be aborted: its deadline ends the wait.
      continue;
    }
  }
}

// Whether the connection with an unwatched peer has broken. A message in the middle of its bytes does
// not notice that, but a receive that has not begun does: its wait, which is aborted before it
// begins, ends with the connection's failure, if there is one, before it ends with the abort.
bool C10dTransport::is_broken(const Probe& probe) {
  if (probe.receive == nullptr) {
    return true;
  }
  const std::lock_guard<std::mutex> probing(probing_);
  try {
    probe.receive->work->abort();
  } catch (const std::exception&) {
    return false;  // A backend whose work cannot be aborted cannot be probed.
  }
  try {
    probe.receive->work->wait(kNoTime);
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

// Peers that have left in order may close their connections, except for `needed`.
void C10dTransport::probe_unwatched(int needed) {
  for (const auto& probe : probes_) {
    if (is_broken(probe) && (probe.peer == needed || !has_left(probe.peer))) {
      watch_.explain_closed(world_rank(probe.peer), kPatience);
    }
  }
}

Status C10dTransport::wait(
    Message& message, const std::string& what, Leaver leaver) {
  const Instant began = clock_.now();
  if (message.failed || (message.operation != nullptr && !failure().ok())) {
    return fail(message, what, began);
  }
  if (message.operation == nullptr) {
    return {};
  }
  InterruptibleWait interrupts;
  int probed = ticks_ / kTicksPerProbe;
  Outcome outcome = Outcome::kInterrupted;
  while (outcome == Outcome::kInterrupted) {
    const auto rest = deadline_ -
        std::chrono::duration_cast<milliseconds>(clock_.now() - began);
    if (rest <= milliseconds(0) || lost() || !failure().ok()) {
      break;
    }
    const bool in_vain = leaver == Leaver::kIsDone && has_left(message.peer);
    outcome = wait_once(message, in_vain ? std::min(rest, kNoTime) : rest);
    if (outcome == Outcome::kInterrupted) {
      if (auto interrupted = interrupts.poll(); !interrupted.ok()) {
        abandon(interrupted);
        return failure();
      }
    }
    const bool left = leaver == Leaver::kIsDone && has_left(message.peer);
    // A thread that polls for interrupts is woken at every tick of the watch.
    const int turn = ticks_ / kTicksPerProbe;
    const bool due = !InterruptibleWait::possible() || turn != probed;
    if (outcome == Outcome::kInterrupted && !probes_.empty() && !left && due) {
      probed = turn;
      probe_unwatched(leaver == Leaver::kGoesOn ? message.peer : -1);
    }
  }
  const bool ended = outcome == Outcome::kComplete ||
      (outcome == Outcome::kInterrupted && lost() && failure().ok() &&
       has_ended(*message.operation));
  if (!ended) {
    return fail(message, what, began);
  }
  const std::lock_guard<std::mutex> lock(mu_);
  std::erase(outstanding_, message.operation);
  if (const int source = message.operation->source; source >= 0) {
    received_[static_cast<std::size_t>(source)] = {
        message.operation->tag, clock_.now()};
  }
  message.operation = nullptr;
  return {};
}

// The first failure determines what every later wait returns.
Status C10dTransport::fail(
    const Message& message, const std::string& what, Instant began) {
  if (auto first = failure(); !first.ok()) {
    return keep(first);
  }
  std::optional<PeerLoss> loss = watch_.first_lost(ranks());
  const bool late = clock_.now() - began >= deadline_;
  const std::string context = doing(what, message.peer);
  if (!loss && late) {
    const std::string how =
        str("did not answer rank ", own_rank(), " within ", seconds(deadline_),
            " s");
    watch_.report({world_rank(message.peer), how});
    return keep(Status(
        ErrorCode::kDeadlineExceeded,
        str("[world] rank ", world_rank(message.peer), " ", how, "; ", context,
            place_of(message))));
  }
  if (!loss) {
    loss = left_in_order(message.peer);
  }
  if (!loss) {
    loss = watch_.explain_closed(world_rank(message.peer), kPatience);
  }
  return keep(Status(
      loss->gave_up ? ErrorCode::kAborted : ErrorCode::kPeerLost,
      watch_.text_of(*loss, str("; ", context, likely_reason(message.peer)))));
}

// Whether `member` has sent what was to come along with the message that `silent` waits for, with
// the same tag. Nothing if nothing was to come. REQUIRES: this group fails.
std::optional<bool> C10dTransport::has_answered(
    int member, const Operation& silent) {
  OperationPtr expected;
  {
    const std::lock_guard<std::mutex> lock(mu_);
    const auto& last = received_[static_cast<std::size_t>(member)];
    if (last.tag == silent.tag && last.when >= silent.began) {
      return true;
    }
    const auto it = std::ranges::find_if(outstanding_, [&](const auto& one) {
      return one->source == member && one->tag == silent.tag;
    });
    if (it == outstanding_.end()) {
      return std::nullopt;
    }
    expected = *it;
  }
  return has_ended(*expected);
}

// To end an error about a silent member of another host.
std::string C10dTransport::place_of(const Message& silent) {
  const int rank = world_rank(silent.peer);
  const auto host = watch_.host_of(rank);
  if (host.empty() || silent.operation == nullptr) {
    return watch_.place_of(rank);
  }
  bool all_silent = true;
  bool own_host_answers = false;
  for (int member = 0; member < size(); ++member) {
    const auto other = watch_.host_of(world_rank(member));
    if (member != index() && (other == host || other.empty())) {
      const auto answered = has_answered(member, *silent.operation);
      all_silent = all_silent && (other.empty() || answered == false);
      own_host_answers =
          own_host_answers || (other.empty() && answered == true);
    }
  }
  return str(
      watch_.place_of(rank),
      all_silent ? ", none of whose ranks has answered" : "",
      all_silent && own_host_answers ? kHostIsSilent : "");
}

// Returns the first failure once all messages have ended with it: then the caller may reuse the
// memory of its tensors, even if a late peer still sends or receives.
Status C10dTransport::keep(const Status& failure) {
  const std::lock_guard<std::mutex> ending(ending_);
  {
    const std::lock_guard<std::mutex> lock(mu_);
    SHERD_RETURN_IF_FAILED(failure_);
    failure_ = failure;
  }
  end_messages();
  return failure;
}

// ---- leave messages ----

// Starts a receive whose message comes late or never. Returns null if the connection is broken; a
// rank that needs the peer finds out.
C10dTransport::OperationPtr C10dTransport::expect(
    const at::Tensor& tensor, int peer, int tag) {
  std::vector<at::Tensor> tensors{tensor};
  try {
    return std::make_shared<Operation>(
        Operation{backend_->recv(tensors, peer, tag), tensor});
  } catch (const std::exception&) {
    return nullptr;
  }
}

void C10dTransport::expect_messages() {
  leave_messages_.resize(ranks().size());
  if (backend_ == nullptr) {
    return;
  }
  const SigpipeGuard no_sigpipe;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == index()) {
      continue;
    }
    leave_messages_[static_cast<std::size_t>(peer)] =
        expect(leave_bytes_.narrow(0, peer, 1), peer, kLeaveTag);
    if (!watch_.watches(world_rank(peer))) {
      probes_.push_back(
          {peer, expect(at::empty({1}, at::kByte), peer, kProbeTag)});
    }
  }
}

// The byte is written by the backend's thread after everything that the peer sent before, and waits
// for that see it under the backend's own lock.
std::uint8_t C10dTransport::leave_message_of(int peer) const {
  auto* heard = static_cast<std::uint8_t*>(leave_bytes_.mutable_data_ptr());
  return std::atomic_ref<std::uint8_t>(heard[peer])
      .load(std::memory_order_acquire);
}

// Why a wait for `peer` was in vain, if the reason is that it has left. The other groups and ranks
// are told.
std::optional<PeerLoss> C10dTransport::left_in_order(int peer) const {
  if (!has_left(peer)) {
    return std::nullopt;
  }
  watch_.report(
      {world_rank(peer),
       str("closed ", name_,
           leave_message_of(peer) == kByException
               ? " because of an exception"
               : " and takes part no more")});
  return watch_.first_lost({world_rank(peer)});
}

// The likely reason why `peer`, which has no exit status page here, closed its connection: another
// member left before.
std::string C10dTransport::likely_reason(int peer) const {
  for (int other = 0; other < size(); ++other) {
    if (other != peer && has_left(other) && !watch_.watches(world_rank(peer))) {
      return str("; rank ", world_rank(other), " had closed ", name_);
    }
  }
  return "";
}

void C10dTransport::leave() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (!outstanding_.empty()) {
      return;
    }
  }
  send_leave_message();
}

void C10dTransport::send_leave_message() {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    if (left_ || !failure_.ok()) {
      return;
    }
    left_ = true;
  }
  const at::Tensor reason = at::empty({1}, at::kByte);
  reason.fill_(std::uncaught_exceptions() > 0 ? kByException : kInOrder);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != index()) {
      start(Direction::kSend, reason, peer, kLeaveTag);
    }
  }
}

Status C10dTransport::close(
    const std::string& what, const std::function<void()>& at_last) {
  send_leave_message();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == index()) {
      continue;
    }
    Message left(*this, peer, leave_messages_[static_cast<std::size_t>(peer)]);
    left.failed = left.operation == nullptr;
    SHERD_RETURN_IF_FAILED(wait(left, what, Leaver::kSaysSo));
  }
  if (index() != 0) {
    Message closed =
        start(Direction::kReceive, at::empty({1}, at::kByte), 0, kClosedTag);
    return wait(closed, what, Leaver::kGoesOn);
  }
  at_last();
  std::vector<Message> told;
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

// ---- ending ----

void C10dTransport::abandon(const Status& why) {
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
          str("[world] rank ", own_rank(),
              " gave up: ", why.ok() ? "no reason given" : why.message()));
    }
    abort_waits(Waits::kAll);
  }
  if (gave_up) {
    // Peers see the connections break and look for the reason on this rank's exit status page.
    watch_.give_up(why.ok() ? "gave up" : str("gave up: ", why.message()));
  }
  end_messages();
}

// Gloo reads and writes the memory of a message until its connection is closed. The handles are
// released after that: a connection in the middle of a message without a handle would never end.
void C10dTransport::end_messages() {
  break_connections();
  const std::lock_guard<std::mutex> lock(mu_);
  outstanding_.clear();
}

// c10d cannot close a Gloo group while its peers live. But a wait that times out breaks all its
// connections, so this forces a time-out with a receive that nobody answers.
void C10dTransport::break_connections() {
  const SigpipeGuard no_sigpipe;
  for (int peer = 0; backend_ != nullptr && peer < size(); ++peer) {
    if (peer == index()) {
      continue;
    }
    std::vector<at::Tensor> tensors{at::empty({1}, at::kByte)};
    try {
      backend_->recv(tensors, peer, kPoisonTag)->wait(milliseconds(1));
    } catch (const std::exception&) {
      // Expected: either the time-out, or a connection that was broken before. In the latter case
      // the connection to the next peer may still be intact.
      continue;
    }
  }
}

}  // namespace sherd::world
