// SPDX-License-Identifier: Apache-2.0
// How a session comes to its neighbours; the rest of it is in session.cpp.
#include "ft/ring/session.h"

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

constexpr Duration kPauseMax = std::chrono::milliseconds(200);

std::uint64_t hash_of(const std::vector<std::int64_t>& elements) {
  Hash64 hash;
  for (const auto count : elements) {
    hash.add(static_cast<std::uint64_t>(count));
  }
  return hash.value();
}

std::string layout_text(const Hello& hello) {
  return str(
      hello.buckets, " buckets of ", hello.elements, " floats (layout ",
      std::hex, hello.layout, std::dec, ") in chunks of ", hello.chunk_elements,
      ", ", hello.window, " at once, between ", hello.members, " members");
}

}  // namespace

Hello Session::own_hello() const {
  const auto& options = context_.options;
  Hello hello;
  hello.run = context_.run;
  hello.from = options.replica;
  hello.from_incarnation = options.incarnation;
  hello.shard_rank = static_cast<std::uint32_t>(options.shard_rank);
  hello.members = static_cast<std::uint32_t>(schedule_.shape().members);
  hello.window = static_cast<std::uint32_t>(options.slots);
  hello.chunk_elements =
      static_cast<std::uint64_t>(schedule_.shape().chunk_elements);
  hello.buckets = context_.elements.size();
  hello.elements = static_cast<std::uint64_t>(std::accumulate(
      context_.elements.begin(), context_.elements.end(), std::int64_t{0}));
  hello.layout = hash_of(context_.elements);
  return hello;
}

std::string Session::stranger(const Hello& hello) const {
  const RingMember& prev = member(-1);
  if (hello.from != prev.replica ||
      hello.from_incarnation != prev.incarnation) {
    return str(
        "expected replica ", prev.replica, " in life ", prev.incarnation,
        ", found replica ", hello.from, " in life ", hello.from_incarnation);
  }
  return {};
}

std::string Session::disagreement(const Hello& hello) const {
  Hello own = own_hello();
  const std::string ours = layout_text(own);
  own.from = hello.from;
  own.from_incarnation = hello.from_incarnation;
  own.to = hello.to;
  own.to_incarnation = hello.to_incarnation;
  own.memory = hello.memory;
  own.memory_key = hello.memory_key;
  if (own == hello) {
    return {};
  }
  return str(
      "replica ", context_.options.replica, " has ", ours, ", replica ",
      hello.from, " has ", layout_text(hello));
}

void Session::adopt(Link link, const Hello& caller) {
  SHERD_ASSERT(!prev_.has_value());
  Hello hello = own_hello();
  hello.to = member(-1).replica;
  hello.to_incarnation = member(-1).incarnation;
  if (context_.options.memory != nullptr && caller.memory.bytes > 0) {
    auto opened = PeerFloats::open(caller.memory);
    if (opened.ok()) {
      prev_memory_.emplace(std::move(opened).value());
      hello.memory_key = prev_memory_->key();
    }
  }
  link.say(frame_of(epoch(), hello));
  link.write();
  prev_.emplace(std::move(link));
  joined_ = greeted_;
}

bool Session::dial(Instant now) {
  if (joined_) {
    return false;
  }
  if (!route_.problem.empty()) {
    end(RingFault::kUnreachable, replica_of(Side::kNext), route_.problem);
    return true;
  }
  if (now >= deadline_) {
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
  if (dialling_.open()) {
    return dialled(now);
  }
  auto begun = begin_connect(route_.next);
  if (begun.ok()) {
    dialling_ = std::move(begun).value();
  } else if (begun.status().code() == ErrorCode::kUnavailable) {
    end(RingFault::kResources, context_.options.replica,
        begun.status().message());
  } else {
    dial_again(now, begun.status().message());
  }
  return true;
}

bool Session::dialled(Instant now) {
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
  const auto& options = context_.options;
  set_peer_options(
      dialling_.get(),
      {.user_timeout = options.user_timeout,
       .keep_alive_idle = options.keep_alive_idle});
  Hello hello = own_hello();
  hello.to = member(1).replica;
  hello.to_incarnation = member(1).incarnation;
  if (options.memory != nullptr) {
    hello.memory = options.memory->name();
  }
  next_.emplace(std::move(dialling_));
  next_->say(frame_of(epoch(), hello));
  next_->write();
  return true;
}

void Session::dial_again(Instant now, const std::string& problem) {
  // Its process listens from its beginning to its end: a refused connection will
  // not be accepted later.
  if (problem == std::strerror(ECONNREFUSED)) {
    end(RingFault::kUnreachable, replica_of(Side::kNext),
        str("replica ", replica_of(Side::kNext), " at ", member(1).host, ":",
            member(1).port, ": ", problem));
    return;
  }
  dial_problem_ = problem;
  dial_at_ = now + pause_;
  pause_ = std::min(2 * pause_, kPauseMax);
}

void Session::read_answer() {
  const ReplicaId next = replica_of(Side::kNext);
  if (next_->header().kind == FrameKind::kRefusal) {
    end(RingFault::kMismatch, next,
        str("replica ", next, " refuses: ", parse_refusal(next_->text())));
    return;
  }
  const auto hello = parse_hello(next_->text());
  if (!hello.ok()) {
    lose(Side::kNext, hello.status());
    return;
  }
  if (hello.value().from != next ||
      hello.value().from_incarnation != member(1).incarnation) {
    end(RingFault::kMismatch, next,
        str("expected replica ", next, " in life ", member(1).incarnation,
            " at ", member(1).host, ":", member(1).port, ", found replica ",
            hello.value().from, " in life ", hello.value().from_incarnation));
    return;
  }
  if (auto why = disagreement(hello.value()); !why.empty()) {
    end(RingFault::kMismatch, next, std::move(why));
    return;
  }
  greeted_ = true;
  const SharedFloats* memory = context_.options.memory;
  next_reads_ = memory != nullptr && hello.value().memory_key == memory->key();
  joined_ = prev_.has_value();
}

}  // namespace sherd::ft::ring
