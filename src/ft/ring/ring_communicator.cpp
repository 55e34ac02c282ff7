// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include "base/check.h"

namespace sherd::ft::ring {
namespace {

// Read calls and sent frames in a turn: about one chunk, after which the thread checks for
// requests.
constexpr int kReadsMax = 8;

// How long a peer that has ended may take to say why.
constexpr Duration kLastWords = std::chrono::milliseconds(100);

RingShape shape_of(const RingContext& context, const Route& route) {
  return {
      static_cast<int>(route.epoch.members.size()), route.position,
      static_cast<std::int64_t>(context.options.chunk_bytes / sizeof(float))};
}

}  // namespace

RingCommunicator::RingCommunicator(
    RingContext& context, Route route, Instant now)
    : context_(context),
      route_(std::move(route)),
      schedule_(context.elements, shape_of(context, route_)),
      dial_at_(now),
      deadline_(now + context.options.connect_timeout),
      joined_(schedule_.shape().members == 1),
      now_(now) {
  all_reduce_.emplace(schedule_, context.buckets, context.options.slots);
}

// ---- members ----

const RingMember& RingCommunicator::member(int distance) const {
  const int count = schedule_.shape().members;
  return route_.epoch.members[static_cast<std::size_t>(
      (route_.position + distance + count) % count)];
}

std::optional<FramedSocket>& RingCommunicator::link(Side side) {
  return side == Side::kPrev ? prev_ : next_;
}

ReplicaId RingCommunicator::replica_of(Side side) const {
  return member(side == Side::kPrev ? -1 : 1).replica;
}

// ---- receiving ----

bool RingCommunicator::read(Side side) {
  bool moved = false;
  for (int i = 0; i < kReadsMax && !ended_ && link(side); ++i) {
    switch (link(side)->read()) {
      case FramedSocket::ReadEvent::kNothing:
        return moved;
      case FramedSocket::ReadEvent::kSome:
        break;
      case FramedSocket::ReadEvent::kHeader:
        read_header(side);
        break;
      case FramedSocket::ReadEvent::kFrame:
        read_frame(side);
        if (read_large_shared_frame(side)) {
          return true;  // It has been read: enough for a turn.
        }
        break;
      case FramedSocket::ReadEvent::kEnd:
        on_connection_lost(side, link(side)->problem());
        break;
    }
    moved = true;
  }
  return moved;
}

bool RingCommunicator::read_large_shared_frame(Side side) {
  if (ended_ || !link(side)) {
    return false;
  }
  const FrameHeader& header = link(side)->header();
  return header.kind == FrameKind::kSharedData &&
      header.payload_bytes >= context_.options.chunk_bytes / 2;
}

void RingCommunicator::read_header(Side side) {
  const FrameHeader& header = link(side)->header();
  // It comes before this side has said which epoch it is for.
  if (header.kind == FrameKind::kChallenge && side == Side::kNext &&
      challenge_ == 0) {
    next_->receive_text();
    return;
  }
  if (header.epoch != epoch()) {
    ++context_.counters.stale_frames;
    end(RingFault::kMismatch, replica_of(side),
        str("replica ", replica_of(side), ": expected frames of ",
            text_of(epoch()), ", found one of ", text_of(header.epoch)));
    return;
  }
  if (header.kind == FrameKind::kData && side == Side::kPrev) {
    read_data_header();
    return;
  }
  if (header.kind == FrameKind::kSharedData && side == Side::kPrev) {
    read_shared_data_header();
    return;
  }
  const bool answer = side == Side::kNext && challenge_ != 0 && !greeted_ &&
      (header.kind == FrameKind::kHandshake ||
       header.kind == FrameKind::kRefusal);
  if (header.kind == FrameKind::kEnding || answer) {
    link(side)->receive_text();
    return;
  }
  end(RingFault::kMismatch, replica_of(side),
      str("replica ", replica_of(side), ": found a frame of kind ",
          static_cast<int>(header.kind), ", expected another"));
}

void RingCommunicator::read_data_header() {
  const FrameHeader& header = prev_->header();
  if (header.step <= finished_step_) {
    ++context_.counters.stale_frames;
  }
  const auto place = header.step <= finished_step_
      ? Result<float*>(Status(
            ErrorCode::kPeerMismatch,
            str("expected a step above ", finished_step_, ", found ",
                header.step)))
      : all_reduce_->place_for(header);
  if (!place.ok()) {
    end(RingFault::kMismatch, replica_of(Side::kPrev),
        str("replica ", replica_of(Side::kPrev), ", step ", header.step, ": ",
            place.status().message()));
    return;
  }
  prev_->receive_into(place.value());
}

void RingCommunicator::read_shared_data_header() {
  const FrameHeader& header = prev_->header();
  Status status;
  if (header.step <= finished_step_) {
    ++context_.counters.stale_frames;
    status = Status(
        ErrorCode::kPeerMismatch,
        str("expected a step above ", finished_step_, ", found ", header.step));
  } else if (!all_reduce_->stale()) {
    status = all_reduce_->expect_shared_data(
        header, prev_memory_ ? &*prev_memory_ : nullptr);
  } else if (header.step != all_reduce_->step()) {
    end_late();
    return;
  }
  if (!status.ok()) {
    end(RingFault::kMismatch, replica_of(Side::kPrev),
        str("replica ", replica_of(Side::kPrev), ", step ", header.step, ": ",
            status.message()));
    return;
  }
  prev_->receive_into(nullptr);
}

void RingCommunicator::read_frame(Side side) {
  const FrameHeader& header = link(side)->header();
  if (!link(side)->intact()) {
    end(RingFault::kChecksum, replica_of(side),
        str("checksum of a frame of replica ", replica_of(side),
            " is wrong: step ", header.step, ", bucket ", header.bucket,
            ", from element ", header.first_element));
    return;
  }
  if (header.kind == FrameKind::kData ||
      header.kind == FrameKind::kSharedData) {
    on_data();
    return;
  }
  if (header.kind == FrameKind::kChallenge) {
    read_challenge();
    return;
  }
  if (header.kind != FrameKind::kEnding) {
    read_answer();
    return;
  }
  const auto ending = parse_ending(link(side)->text());
  if (!ending.ok()) {
    on_connection_lost(side, ending.status());
    return;
  }
  on_peer_ending(side, ending.value());
}

// No other member is to blame.
void RingCommunicator::end_late() {
  end(RingFault::kStopped, context_.options.replica,
      str("replica ", replica_of(Side::kPrev), " has decided step ",
          all_reduce_->step(), " before its sum was read here"));
}

void RingCommunicator::on_data() {
  const FrameHeader& header = prev_->header();
  ++frames_in_;
  if (all_reduce_->stale()) {
    return;
  }
  context_.counters.received_bytes += header.payload_bytes;
  context_.counters.shared_bytes +=
      header.kind == FrameKind::kSharedData ? header.payload_bytes : 0;
  all_reduce_->arrived();
}

void RingCommunicator::on_connection_lost(Side side, Status problem) {
  const ReplicaId replica = replica_of(side);
  if (side == Side::kNext && !greeted_ &&
      problem.code() == ErrorCode::kPeerLost) {
    // The peer may have had too many connections.
    dial_again(now_, problem.message());
    next_.reset();
    challenge_ = 0;
    return;
  }
  // An ending member says why on both sides: perhaps the other one has it.
  const Side other = side == Side::kPrev ? Side::kNext : Side::kPrev;
  if (!std::exchange(losing_, true)) {
    while (!ended_ && link(other) && read(other)) {
    }
  }
  const RingFault fault = problem.code() == ErrorCode::kPeerLost
      ? RingFault::kLost
      : problem.code() == ErrorCode::kAborted ? RingFault::kChecksum
                                              : RingFault::kMismatch;
  end(fault, replica,
      str("connection to replica ", replica, ": ", problem.message()));
}

void RingCommunicator::on_peer_ending(Side side, const Ending& ending) {
  // A member that has the whole sum may leave: it needs nothing more from here, and all it had to
  // send came before.
  if (ending.fault == RingFault::kStopped && begun() &&
      ending.finished_step >= all_reduce_->step() &&
      (side == Side::kNext || all_reduce_->has_arrived())) {
    after_reduction_ = ending;
    context_.closing.add(link(side)->detach({}));
    link(side).reset();
    return;
  }
  end(ending);
}

// ---- reducing ----

void RingCommunicator::begin(const WeightedAttempt& weighted) {
  const ReplicaId self = context_.options.replica;
  const double sum =
      std::accumulate(weighted.weights.begin(), weighted.weights.end(), 0.0);
  if (!joined_) {
    end(RingFault::kMismatch, self,
        "began " + text_of(weighted.attempt) + " before it was joined");
    return;
  }
  if (begun() || weighted.attempt.step <= finished_step_) {
    end(RingFault::kMismatch, self,
        str("began ", text_of(weighted.attempt), " after step ",
            begun() ? all_reduce_->step() : finished_step_));
    return;
  }
  if (!(sum > 0)) {
    end(RingFault::kWeights, self,
        "no member has samples in " + text_of(weighted.attempt));
    return;
  }
  if (context_.options.memory != nullptr) {
    context_.options.memory->begin_lease();
  }
  const double own =
      weighted.weights[static_cast<std::size_t>(route_.position)];
  auto why = all_reduce_->begin(
      weighted.attempt.step,
      own > 0 ? std::optional<float>(static_cast<float>(own / sum))
              : std::nullopt);
  if (!why.empty()) {
    end(RingFault::kMismatch, replica_of(Side::kPrev),
        str("replica ", replica_of(Side::kPrev), ": ", why));
  }
  again_ = weighted.again;
}

bool RingCommunicator::send() {
  bool moved = false;
  while (next_ && next_->can_send()) {
    auto frame = all_reduce_->next_frame(
        next_reads_ ? context_.options.memory : nullptr);
    if (!frame) {
      break;
    }
    frame->header.epoch = epoch();
    const std::size_t bytes = frame->header.payload_bytes;
    next_->send(
        bytes_of(frame->header), frame->payload, bytes_after(frame->header));
    next_->write();
    context_.counters.sent_bytes += bytes;
    ++frames_out_;
    context_.counters.resent_bytes += again_ ? bytes : 0;
    moved = true;
    if (bytes_after(frame->header) >= context_.options.chunk_bytes / 2) {
      break;  // Enough for a turn.
    }
  }
  return moved;
}

void RingCommunicator::finish() {
  if (!all_reduce_->finished() || (next_ && !next_->can_send())) {
    return;
  }
  take_sum();
  if (after_reduction_) {
    end(*after_reduction_);
  }
}

void RingCommunicator::take_sum() {
  finished_step_ = all_reduce_->step();
  reduced_ = Reduced{{epoch(), finished_step_}, all_reduce_->digest()};
  ++context_.counters.reductions;
  all_reduce_.emplace(schedule_, context_.buckets, context_.options.slots);
}

std::optional<RingCommunicator::Reduced> RingCommunicator::take_reduced() {
  return std::exchange(reduced_, std::nullopt);
}

RingProgress RingCommunicator::progress() const {
  RingProgress progress;
  if (ended_ || !joined_) {
    return progress;
  }
  if (schedule_.steps() > 0) {
    progress.neighbours = RingProgress::Neighbours{
        epoch(), replica_of(Side::kPrev), replica_of(Side::kNext), frames_in_,
        frames_out_};
  }
  if (!begun()) {
    return progress;
  }
  progress.attempt = Attempt{epoch(), all_reduce_->step()};
  progress.slices = schedule_.slices();
  progress.slices_done = all_reduce_->slices_done();
  if (progress.slices_done < progress.slices) {
    progress.bucket = schedule_.bucket_of(progress.slices_done);
  }
  if (next_ && next_->wants_to_write()) {
    progress.waits_for = replica_of(Side::kNext);
    progress.to_read = true;
  } else if (!all_reduce_->lacks_bucket() && schedule_.steps() > 0) {
    progress.waits_for = replica_of(Side::kPrev);
  }
  return progress;
}

// ---- running ----

bool RingCommunicator::advance(Instant now) {
  if (ended_) {
    return false;
  }
  now_ = now;
  bool moved = dial(now);
  for (const Side side : {Side::kNext, Side::kPrev}) {
    if (!ended_ && link(side)) {
      link(side)->write();
      moved = read(side) || moved;
    }
  }
  if (!ended_) {
    moved = all_reduce_->work() || moved;
    moved = send() || moved;
    finish();
  }
  // The previous member is about to say why, has died, or has gone on without this one.
  if (!ended_ && all_reduce_->stale()) {
    late_until_ = late_until_.value_or(now + kLastWords);
    if (!prev_) {
      end(*after_reduction_);
    } else if (now >= *late_until_) {
      end_late();
    }
  }
  return moved;
}

void RingCommunicator::polls(std::vector<pollfd>& list) const {
  const auto add = [&](int fd, bool writes) {
    const int events = writes ? POLLIN | POLLOUT : POLLIN;
    list.push_back({fd, static_cast<short>(events), 0});
  };
  if (dialling_.open()) {
    add(dialling_.get(), true);
  }
  for (const auto* one : {&prev_, &next_}) {
    if (one->has_value()) {
      add((*one)->fd(), (*one)->wants_to_write());
    }
  }
}

std::optional<Instant> RingCommunicator::next_instant() const {
  if (!ended_ && late_until_) {
    return late_until_;
  }
  if (ended_ || joined_) {
    return std::nullopt;
  }
  return next_ ? deadline() : std::min(deadline(), dial_at_);
}

// ---- the end ----

void RingCommunicator::end(
    RingFault fault, ReplicaId accused, std::string reason) {
  Ending ending;
  ending.fault = fault;
  ending.accused = accused;
  ending.reporter = context_.options.replica;
  ending.reason = std::move(reason);
  end(std::move(ending));
}

void RingCommunicator::end(Ending ending) {
  if (ended_) {
    return;
  }
  ended_ = true;
  // The whole sum is here, although the next member may lack some of it.
  if (all_reduce_->complete()) {
    take_sum();
  }
  // A finished sum may still be read by a member that has not all of it.
  if (begun() && context_.options.memory != nullptr) {
    context_.options.memory->end_lease();
  }
  ending.finished_step = finished_step_;
  ending_ = std::move(ending);
  const std::string words = frame_of(epoch(), ending_);
  for (auto* one : {&prev_, &next_}) {
    if (one->has_value()) {
      context_.closing.add((*one)->detach(words));
      one->reset();
    }
  }
  dialling_.close();
}

}  // namespace sherd::ft::ring
