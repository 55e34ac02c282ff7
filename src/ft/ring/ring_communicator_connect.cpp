// SPDX-License-Identifier: Apache-2.0
// RingCommunicator's connections: dialling, handshakes and their checks.
#include "ft/ring/ring_communicator.h"

#include <poll.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>
#include "base/check.h"
#include "base/hash.h"

namespace sherd::ft::ring {
namespace {

std::uint64_t hash_of(const std::vector<std::int64_t>& elements) {
  Hash64 hash;
  for (const auto count : elements) {
    hash.add(static_cast<std::uint64_t>(count));
  }
  return hash.value();
}

// A lost SYN is sent again after a second only: a new one costs less.
constexpr Duration kDialAgain = std::chrono::milliseconds(300);

std::string layout_text(const Handshake& handshake) {
  return str(
      handshake.buckets, " buckets of ", handshake.elements, " floats (layout ",
      std::hex, handshake.layout, std::dec, ") in chunks of ",
      handshake.chunk_elements, ", ", handshake.window, " at once, between ",
      handshake.members, " members");
}

}  // namespace

Handshake RingCommunicator::own_handshake() const {
  const auto& options = context_.options;
  Handshake handshake;
  handshake.run = context_.run;
  handshake.from = options.replica;
  handshake.from_incarnation = options.incarnation;
  handshake.shard_rank = static_cast<std::uint32_t>(options.shard_rank);
  handshake.members = static_cast<std::uint32_t>(schedule_.shape().members);
  handshake.window = static_cast<std::uint32_t>(options.slots);
  handshake.chunk_elements =
      static_cast<std::uint64_t>(schedule_.shape().chunk_elements);
  handshake.buckets = context_.elements.size();
  handshake.elements = static_cast<std::uint64_t>(std::accumulate(
      context_.elements.begin(), context_.elements.end(), std::int64_t{0}));
  handshake.layout = hash_of(context_.elements);
  return handshake;
}

std::string RingCommunicator::identity_mismatch(
    const Handshake& handshake) const {
  const RingMember& prev = member(-1);
  if (handshake.from != prev.replica ||
      handshake.from_incarnation != prev.incarnation) {
    return str(
        "expected replica ", prev.replica, " in life ", prev.incarnation,
        ", found replica ", handshake.from, " in life ",
        handshake.from_incarnation);
  }
  return {};
}

std::string RingCommunicator::configuration_mismatch(
    const Handshake& handshake) const {
  Handshake own = own_handshake();
  const std::string ours = layout_text(own);
  own.from = handshake.from;
  own.from_incarnation = handshake.from_incarnation;
  own.to = handshake.to;
  own.to_incarnation = handshake.to_incarnation;
  own.memory = handshake.memory;
  own.memory_key = handshake.memory_key;
  own.challenge = handshake.challenge;
  own.proof = handshake.proof;
  if (own == handshake) {
    return {};
  }
  return str(
      "replica ", context_.options.replica, " has ", ours, ", replica ",
      handshake.from, " has ", layout_text(handshake));
}

void RingCommunicator::accept_previous(
    FramedSocket link, const Handshake& caller) {
  SHERD_ASSERT(!prev_.has_value());
  Handshake handshake = own_handshake();
  handshake.to = member(-1).replica;
  handshake.to_incarnation = member(-1).incarnation;
  if (context_.options.memory != nullptr && caller.memory.bytes > 0) {
    auto opened = PeerFloats::open(caller.memory);
    if (opened.ok()) {
      prev_memory_.emplace(std::move(opened).value());
      handshake.memory_key = prev_memory_->key();
    }
  }
  handshake.proof =
      proof_of(epoch(), handshake, {context_.key, caller.challenge});
  link.queue_frame(frame_of(epoch(), handshake));
  link.write();
  prev_.emplace(std::move(link));
  joined_ = greeted_;
}

// The one that was not answered knows which link fails, and tells it round the ring. One that waits
// to be dialled accuses by itself only who does not say so either.
Instant RingCommunicator::deadline() const {
  return greeted_ ? deadline_ + context_.options.connect_timeout / 4
                  : deadline_;
}

bool RingCommunicator::dial(Instant now) {
  if (joined_) {
    return false;
  }
  if (!route_.problem.empty()) {
    end(RingFault::kUnreachable, replica_of(Side::kNext), route_.problem);
    return true;
  }
  if (now >= deadline()) {
    const Side side = greeted_ ? Side::kPrev : Side::kNext;
    end(RingFault::kUnreachable, replica_of(side),
        str("replica ", replica_of(side), " was not connected for ",
            text_of(epoch()), " within ",
            seconds(context_.options.connect_timeout), " s",
            greeted_ || dial_problem_.empty() ? "" : "; it ", dial_problem_));
    return true;
  }
  if (next_ || (!dialling_.open() && now < dial_at_)) {
    return false;
  }
  if (dialling_.open() && now < dial_at_) {
    return dialled(now);
  }
  auto begun = begin_connect(route_.next);
  if (begun.ok()) {
    dialling_ = std::move(begun).value();
    dial_at_ = now + kDialAgain;
  } else if (begun.status().code() == ErrorCode::kUnavailable) {
    end(RingFault::kResources, context_.options.replica,
        begun.status().message());
  } else {
    dial_again(now, begun.status().message());
  }
  return true;
}

bool RingCommunicator::dialled(Instant now) {
  pollfd ready{dialling_.get(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) <= 0) {
    return false;
  }
  const int error = connect_error(dialling_.get());
  if (error != 0) {
    dialling_.close();
    dial_again(now, std::strerror(error));
    return true;
  }
  set_peer_options(
      dialling_.get(),
      {.user_timeout = context_.options.user_timeout,
       .keep_alive_idle = context_.options.keep_alive_idle});
  next_.emplace(std::move(dialling_));  // Its challenge comes first.
  return true;
}

void RingCommunicator::read_challenge() {
  const auto theirs = parse_challenge(next_->text());
  if (!theirs.ok()) {
    on_connection_lost(Side::kNext, theirs.status());
    return;
  }
  const RingMember& next = member(1);
  challenge_ = net::random_number();
  Handshake handshake = own_handshake();
  handshake.to = next.replica;
  handshake.to_incarnation = next.incarnation;
  handshake.challenge = challenge_;
  if (context_.options.memory != nullptr) {
    handshake.memory = context_.options.memory->name();
  }
  handshake.proof = proof_of(epoch(), handshake, {next.key, theirs.value()});
  next_->queue_frame(frame_of(epoch(), handshake));
  next_->write();
}

void RingCommunicator::dial_again(Instant now, const std::string& problem) {
  // A member listens as long as its process lives, so retrying a refused connection is useless.
  if (problem == std::strerror(ECONNREFUSED)) {
    end(RingFault::kUnreachable, replica_of(Side::kNext),
        str("replica ", replica_of(Side::kNext), " at ", member(1).host, ":",
            member(1).port, ": ", problem));
    return;
  }
  dial_problem_ = problem;
  dial_at_ = now + dial_backoff_.next();
}

void RingCommunicator::read_answer() {
  const ReplicaId next = replica_of(Side::kNext);
  if (next_->header().kind == FrameKind::kRefusal) {
    end(RingFault::kMismatch, next,
        str("replica ", next, " refuses: ", parse_refusal(next_->text())));
    return;
  }
  const auto handshake = parse_handshake(next_->text());
  if (!handshake.ok()) {
    on_connection_lost(Side::kNext, handshake.status());
    return;
  }
  const Proof expected{member(1).key, challenge_};
  if (!net::same_code(
          handshake.value().proof,
          proof_of(epoch(), handshake.value(), expected))) {
    end(RingFault::kMismatch, next,
        str("expected replica ", next, " at ", member(1).host, ":",
            member(1).port, ", found somebody who does not know its key"));
    return;
  }
  if (handshake.value().from != next ||
      handshake.value().from_incarnation != member(1).incarnation) {
    end(RingFault::kMismatch, next,
        str("expected replica ", next, " in life ", member(1).incarnation,
            " at ", member(1).host, ":", member(1).port, ", found replica ",
            handshake.value().from, " in life ",
            handshake.value().from_incarnation));
    return;
  }
  if (auto why = configuration_mismatch(handshake.value()); !why.empty()) {
    end(RingFault::kMismatch, next, std::move(why));
    return;
  }
  greeted_ = true;
  const SharedFloats* memory = context_.options.memory;
  next_reads_ =
      memory != nullptr && handshake.value().memory_key == memory->key();
  joined_ = prev_.has_value();
}

}  // namespace sherd::ft::ring
