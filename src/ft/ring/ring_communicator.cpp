// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include "base/check.h"

namespace sherd::ft::ring {
namespace {

// How many read calls and sent frames a turn has: about one chunk, after which the thread checks
// for requests.
constexpr int kReadsMax = 8;

// How long a peer that has ended may take to say why.
constexpr Duration kLastWords = std::chrono::milliseconds(100);

bool is_data(const FrameHeader& header) {
  return header.kind == FrameKind::kData ||
      header.kind == FrameKind::kSharedData;
}

ReduceSchedule::Options schedule_options(
    const RingContext& context, const RingCommunicator::Route& route) {
  return {
      static_cast<int>(route.epoch.members.size()), route.position,
      static_cast<std::int64_t>(context.options.chunk_bytes / sizeof(float))};
}

std::vector<PeerLink> links_of(const ReduceSchedule& schedule, Instant now) {
  std::vector<PeerLink> links;
  for (const bool is_sender : {false, true}) {
    const auto& positions =
        is_sender ? schedule.senders() : schedule.receivers();
    for (std::size_t i = 0; i < positions.size(); ++i) {
      PeerLink& link = links.emplace_back();
      link.is_sender = is_sender;
      link.index = static_cast<int>(i);
      link.position = positions[i];
      link.dial_at = now;
    }
  }
  return links;
}

}  // namespace

RingCommunicator::RingCommunicator(
    RingContext& context, Route route, Instant now)
    : context_(context),
      route_(std::move(route)),
      schedule_(context.options.elements, schedule_options(context, route_)),
      links_(links_of(schedule_, now)),
      deadline_(now + context.options.connect_timeout),
      joined_(links_.empty()),
      now_(now),
      receivers_{
          std::vector<bool>(schedule_.receivers().size()),
          std::vector<bool>(schedule_.receivers().size()),
          context.options.memory} {
  all_reduce_.emplace(schedule_, context.buckets, context.options.slots);
}

// ---- members ----

const RingMember& RingCommunicator::member(const PeerLink& link) const {
  return route_.epoch.members[static_cast<std::size_t>(link.position)];
}

const PeerLink& RingCommunicator::sender(int index) const {
  return links_[schedule_.receivers().size() + static_cast<std::size_t>(index)];
}

PeerLink& RingCommunicator::sender(int index) {
  return links_[schedule_.receivers().size() + static_cast<std::size_t>(index)];
}

// ---- receiving ----

bool RingCommunicator::read(PeerLink& link) {
  bool moved = false;
  for (int i = 0; i < kReadsMax && !ended_ && link.socket; ++i) {
    switch (link.socket->read()) {
      case FramedSocket::ReadEvent::kNothing:
        return moved;
      case FramedSocket::ReadEvent::kSome:
        break;
      case FramedSocket::ReadEvent::kHeader:
        read_header(link);
        break;
      case FramedSocket::ReadEvent::kFrame:
        read_frame(link);
        // A large frame is enough for a turn. What comes after a sender's last frame belongs to the
        // next step, so finish() runs first.
        if (read_large_shared_frame(link) || has_all_from(link)) {
          return true;
        }
        break;
      case FramedSocket::ReadEvent::kEnd:
        on_connection_lost(link, link.socket->problem());
        break;
    }
    moved = true;
  }
  return moved;
}

bool RingCommunicator::read_large_shared_frame(const PeerLink& link) const {
  if (ended_ || !link.socket) {
    return false;
  }
  const FrameHeader& header = link.socket->header();
  return header.kind == FrameKind::kSharedData &&
      header.payload_bytes >= context_.options.chunk_bytes / 2;
}

// Whether this sender has sent all of the reduction under way.
bool RingCommunicator::has_all_from(const PeerLink& link) const {
  return !ended_ && link.is_sender && begun() &&
      all_reduce_->has_arrived_from(link.index);
}

void RingCommunicator::read_header(PeerLink& link) {
  const FrameHeader& header = link.socket->header();
  const bool dialled = !link.is_sender;
  // The challenge comes before this side has said which epoch the connection is for.
  if (header.kind == FrameKind::kChallenge && dialled && link.challenge == 0) {
    link.socket->receive_text();
    return;
  }
  if (header.epoch != epoch()) {
    ++context_.counters.stale_frames;
    end(RingFault::kMismatch, replica_of(link),
        str("replica ", replica_of(link), ": expected frames of ",
            text_of(epoch()), ", found one of ", text_of(header.epoch)));
    return;
  }
  if (is_data(header) && !dialled) {
    read_data_header(link);
    return;
  }
  const bool answer = dialled && link.challenge != 0 && !link.connected &&
      (header.kind == FrameKind::kHandshake ||
       header.kind == FrameKind::kRefusal);
  if (header.kind == FrameKind::kEnding || answer) {
    link.socket->receive_text();
    return;
  }
  end(RingFault::kMismatch, replica_of(link),
      str("replica ", replica_of(link), ": found a frame of kind ",
          static_cast<int>(header.kind), ", expected another"));
}

void RingCommunicator::read_data_header(PeerLink& link) {
  const FrameHeader& header = link.socket->header();
  const bool is_shared = header.kind == FrameKind::kSharedData;
  Status status;
  float* place = nullptr;
  if (header.step <= finished_step_) {
    ++context_.counters.stale_frames;
    status = Status(
        ErrorCode::kPeerMismatch,
        str("expected a step above ", finished_step_, ", found ", header.step));
  } else if (has_all_from(link) && header.step > all_reduce_->step()) {
    end_late(link.index);
    return;
  } else if (!is_shared) {
    const auto found = all_reduce_->place_for(header, link.index);
    status = found.status();
    place = found.ok() ? found.value() : nullptr;
  } else if (!all_reduce_->stale()) {
    status = all_reduce_->expect_shared_data(
        header, link.index, link.memory ? &*link.memory : nullptr);
  } else if (header.step != all_reduce_->step()) {
    end_late(link.index);
    return;
  }
  if (!status.ok()) {
    end(RingFault::kMismatch, replica_of(link),
        str("replica ", replica_of(link), ", step ", header.step, ": ",
            status.message()));
    return;
  }
  if (!is_shared) {
    link.rate.begins(now_);
  }
  link.socket->receive_into(place);
}

void RingCommunicator::read_frame(PeerLink& link) {
  const FrameHeader& header = link.socket->header();
  if (!link.socket->intact()) {
    end(RingFault::kChecksum, replica_of(link),
        str("checksum of a frame of replica ", replica_of(link),
            " is wrong: step ", header.step, ", bucket ", header.bucket,
            ", from element ", header.first_element));
    return;
  }
  if (is_data(header)) {
    on_data(link);
    return;
  }
  if (header.kind == FrameKind::kChallenge) {
    read_challenge(link);
    return;
  }
  if (header.kind != FrameKind::kEnding) {
    read_answer(link);
    return;
  }
  const auto ending = parse_ending(link.socket->text());
  if (!ending.ok()) {
    on_connection_lost(link, ending.status());
    return;
  }
  on_peer_ending(link, ending.value());
}

// No other member is to blame, since this one was late.
void RingCommunicator::end_late(int index) {
  end(RingFault::kStopped, context_.options.replica,
      str("replica ", replica_of(sender(index)), " has decided step ",
          all_reduce_->step(), " before its sum was read here"));
}

void RingCommunicator::on_data(PeerLink& link) {
  const FrameHeader& header = link.socket->header();
  ++link.frames;
  if (header.kind == FrameKind::kData) {
    link.rate.ends(header.payload_bytes, now_);
  }
  if (all_reduce_->stale()) {
    return;
  }
  context_.counters.received_bytes += header.payload_bytes;
  context_.counters.shared_bytes +=
      header.kind == FrameKind::kSharedData ? header.payload_bytes : 0;
  all_reduce_->arrived(link.index);
}

void RingCommunicator::on_connection_lost(
    PeerLink& link, const Status& problem) {
  const ReplicaId replica = replica_of(link);
  if (!link.is_sender && !link.connected &&
      problem.code() == ErrorCode::kPeerLost) {
    // The peer may have had too many connections.
    dial_again(link, now_, problem.message());
    link.socket.reset();
    link.challenge = 0;
    return;
  }
  const RingFault fault = problem.code() == ErrorCode::kPeerLost
      ? RingFault::kLost
      : problem.code() == ErrorCode::kAborted ? RingFault::kChecksum
                                              : RingFault::kMismatch;
  std::string reason =
      str("connection to replica ", replica, ": ", problem.message());
  // An ending member tells all its peers why, so another connection may have the reason.
  if (!std::exchange(losing_, true)) {
    for (auto& other : links_) {
      while (!ended_ && &other != &link && other.socket && read(other)) {
      }
    }
  }
  end(fault, replica, std::move(reason));
}

void RingCommunicator::on_peer_ending(
    PeerLink& link, const RingEnding& ending) {
  // A member that has the whole sum may leave: it needs nothing more from this one, and everything
  // it had to send has arrived.
  if (ending.fault == RingFault::kStopped && begun() &&
      ending.finished_step >= all_reduce_->step() &&
      (!link.is_sender || has_all_from(link))) {
    after_reduction_ = ending;
    context_.closing.add(link.socket->detach({}));
    link.socket.reset();
    return;
  }
  end(ending);
}

// ---- reducing ----

void RingCommunicator::begin(const ReduceTask& task) {
  const ReplicaId self = context_.options.replica;
  again_ =
      std::exchange(context_.last_step, task.attempt.step) == task.attempt.step;
  const double sum =
      std::accumulate(task.weights.begin(), task.weights.end(), 0.0);
  if (!joined_) {
    end(RingFault::kMismatch, self,
        "began " + text_of(task.attempt) + " before it was joined");
    return;
  }
  if (begun() || task.attempt.step <= finished_step_) {
    end(RingFault::kMismatch, self,
        str("began ", text_of(task.attempt), " after step ",
            begun() ? all_reduce_->step() : finished_step_));
    return;
  }
  if (!(sum > 0)) {
    end(RingFault::kWeights, self,
        "no member has samples in " + text_of(task.attempt));
    return;
  }
  if (context_.options.memory != nullptr) {
    context_.options.memory->begin_lease();
  }
  const double own = task.weights[static_cast<std::size_t>(route_.position)];
  auto why = all_reduce_->begin(
      task.attempt.step,
      own > 0 ? std::optional<float>(static_cast<float>(own / sum))
              : std::nullopt);
  if (!why.empty()) {
    const ReplicaId other = replica_of(sender(all_reduce_->told_by()));
    end(RingFault::kMismatch, other, str("replica ", other, ": ", why));
  }
}

bool RingCommunicator::send() {
  bool moved = false;
  for (;;) {
    for (std::size_t i = 0; i < receivers_.free.size(); ++i) {
      receivers_.free[i] = links_[i].socket && links_[i].socket->can_send();
    }
    auto frame = all_reduce_->next_frame(receivers_);
    if (!frame) {
      break;
    }
    PeerLink& link = links_[static_cast<std::size_t>(frame->to)];
    frame->header.epoch = epoch();
    const std::size_t bytes = frame->header.payload_bytes;
    link.socket->send(
        bytes_of(frame->header), frame->payload, bytes_after(frame->header));
    link.socket->write();
    context_.counters.sent_bytes += bytes;
    ++link.frames;
    context_.counters.resent_bytes += again_ ? bytes : 0;
    moved = true;
    if (bytes_after(frame->header) >= context_.options.chunk_bytes / 2) {
      break;  // That is enough for a turn.
    }
  }
  return moved;
}

bool RingCommunicator::has_sent_all() const {
  return std::ranges::all_of(links_, [](const PeerLink& link) {
    return link.is_sender || !link.socket || link.socket->can_send();
  });
}

void RingCommunicator::finish() {
  if (!all_reduce_->finished() || !has_sent_all()) {
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
  auto& place = progress.place.emplace();
  place.epoch = epoch();
  place.links = link_frames();
  progress.speeds = link_speeds();
  if (!begun()) {
    return progress;
  }
  progress.attempt = Attempt{epoch(), all_reduce_->step()};
  place.slices = schedule_.slices();
  place.slices_done = all_reduce_->slices_done();
  if (place.slices_done < place.slices) {
    place.bucket =
        static_cast<std::uint32_t>(schedule_.bucket_of(place.slices_done));
  }
  const auto writes = std::ranges::find_if(links_, [](const PeerLink& link) {
    return !link.is_sender && link.socket && link.socket->wants_to_write();
  });
  if (writes != links_.end()) {
    progress.waits_for = replica_of(*writes);
    progress.to_read = true;
  } else if (const auto from = all_reduce_->waits_for();
             from && !all_reduce_->lacks_bucket()) {
    progress.waits_for = replica_of(sender(*from));
  }
  return progress;
}

// Data may come from a peer, go to it, or both.
std::vector<RingLink> RingCommunicator::link_frames() const {
  std::vector<RingLink> frames;
  for (const auto& link : links_) {
    const ReplicaId peer = replica_of(link);
    auto one = std::ranges::find_if(
        frames, [&](const RingLink& other) { return other.peer == peer; });
    if (one == frames.end()) {
      one = frames.insert(frames.end(), {.peer = peer});
    }
    (link.is_sender ? one->frames_in : one->frames_out) = link.frames;
  }
  return frames;
}

std::vector<LinkSpeed> RingCommunicator::link_speeds() const {
  std::vector<LinkSpeed> speeds;
  for (const auto& link : links_) {
    if (const auto speed = link.rate.bytes_per_s()) {
      speeds.push_back({replica_of(link), *speed});
    }
  }
  return speeds;
}

// ---- running ----

bool RingCommunicator::advance(Instant now) {
  if (ended_) {
    return false;
  }
  now_ = now;
  bool moved = false;
  for (auto& link : links_) {
    if (!ended_ && link.socket) {
      link.socket->write();
      moved = read(link) || moved;
    }
  }
  // After the reads: this process may not have run for a while, and an answer that has arrived
  // meanwhile is in time.
  if (!ended_) {
    moved = dial(now) || moved;
  }
  if (!ended_) {
    moved = all_reduce_->work() || moved;
    moved = send() || moved;
    finish();
  }
  // The sender is about to say why, has died, or has gone on without this member.
  const auto stale = ended_ ? std::nullopt : all_reduce_->stale();
  if (stale) {
    late_until_ = late_until_.value_or(now + kLastWords);
    if (!sender(*stale).socket) {
      end(*after_reduction_);
    } else if (now >= *late_until_) {
      end_late(*stale);
    }
  }
  return moved;
}

void RingCommunicator::polls(std::vector<pollfd>& list) const {
  const auto add = [&](int fd, bool writes) {
    const int events = writes ? POLLIN | POLLOUT : POLLIN;
    list.push_back({fd, static_cast<short>(events), 0});
  };
  for (const auto& link : links_) {
    if (link.dialling.open()) {
      add(link.dialling.get(), true);
    }
    if (link.socket) {
      add(link.socket->fd(), link.socket->wants_to_write());
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
  Instant next = deadline();
  for (const auto& link : links_) {
    if (!link.is_sender && !link.socket) {
      next = std::min(next, link.dial_at);
    }
  }
  return next;
}

// ---- the end ----

void RingCommunicator::end(
    RingFault fault, ReplicaId accused, std::string reason) {
  RingEnding ending;
  ending.fault = fault;
  ending.accused = accused;
  ending.reporter = context_.options.replica;
  ending.reason = std::move(reason);
  end(std::move(ending));
}

void RingCommunicator::end(RingEnding ending) {
  if (ended_) {
    return;
  }
  ended_ = true;
  // The whole sum is here, although other members may lack some of it.
  if (all_reduce_->complete()) {
    take_sum();
  }
  // A finished sum may still be read by a member that lacks some of it.
  if (begun() && context_.options.memory != nullptr) {
    context_.options.memory->end_lease();
  }
  ending.finished_step = finished_step_;
  ending_ = std::move(ending);
  const std::string words = frame_of(epoch(), ending_);
  for (auto& link : links_) {
    if (link.socket) {
      context_.closing.add(link.socket->detach(words));
      link.socket.reset();
    }
    link.dialling.close();
  }
}

}  // namespace sherd::ft::ring
