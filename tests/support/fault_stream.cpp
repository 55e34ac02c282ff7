// SPDX-License-Identifier: Apache-2.0
#include "support/fault_stream.h"

#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

namespace sherd::test {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10U;
// A slow link makes its sender wait; a long one holds what is in flight.
constexpr std::size_t kQueueBytes = std::size_t{256} << 10U;
constexpr std::size_t kLongQueueBytes = std::size_t{64} << 20U;

}  // namespace

bool FaultStream::wants_input(const Faults& faults) const {
  const std::size_t most =
      faults.delay > Duration(0) ? kLongQueueBytes : kQueueBytes;
  return !input_over_ && !faults.paused && (swallows_ || queued_ < most);
}

std::optional<Instant> FaultStream::deadline(const Faults& faults) const {
  if (pieces_.empty() || wants_room_ || faults.paused) {
    return std::nullopt;
  }
  return faults.bytes_per_second > 0 ? std::max(pieces_.front().due, free_at_)
                                     : pieces_.front().due;
}

Cut FaultStream::take(
    const Faults& faults, Instant now, std::mt19937_64& random) {
  std::array<char, kReadBytes> buffer;  // NOLINT: recv() fills it.
  const ssize_t count =
      ::recv(from_, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0) {
    if (errno == EAGAIN || errno == EINTR) {
      return Cut::kNone;
    }
    input_over_ = true;
    return swallows_ ? Cut::kNone : Cut::kReset;
  }
  const std::int64_t flip = faults.flip_bit_at - in_;
  if (faults.flip_bit_at != Faults::kNever && flip >= 0 && flip < count) {
    char& flipped = buffer.at(static_cast<std::size_t>(flip));
    flipped = static_cast<char>(static_cast<unsigned char>(flipped) ^ 1U);
    struck_ = true;
  }
  if (in_ == 0 && faults.frames_again_after != Faults::kNever) {
    repeater_.emplace();
  }
  in_ += count;
  input_over_ = count == 0;
  if (swallows_) {
    return Cut::kNone;
  }
  Duration late = faults.delay;
  if (faults.jitter > Duration(0)) {
    late += Duration(static_cast<std::int64_t>(
        random() % static_cast<std::uint64_t>(faults.jitter.count())));
  }
  std::string bytes(buffer.data(), static_cast<std::size_t>(count));
  if (repeater_ && !input_over_) {
    bytes = repeater_->feed(bytes, faults);
    if (bytes.empty()) {  // That would be the end of the stream.
      return Cut::kNone;
    }
  }
  add(std::move(bytes), now + late);
  return Cut::kNone;
}

void FaultStream::add(std::string bytes, Instant due) {
  last_due_ = std::max(last_due_, due);
  queued_ += bytes.size();
  pieces_.push_back({std::move(bytes), last_due_});
}

Cut FaultStream::forward(const Faults& faults, Instant now) {
  while (true) {
    const Cut cut = cut_reached(faults);
    if (cut != Cut::kNone) {
      return cut;
    }
    const std::optional<Instant> due = deadline(faults);
    if (!due || now < *due) {
      return Cut::kNone;
    }
    if (!write_front(faults, now)) {
      return broken_ ? Cut::kReset : Cut::kNone;
    }
  }
}

Cut FaultStream::cut_reached(const Faults& faults) {
  const auto reached = [&](std::int64_t offset) {
    return offset != Faults::kNever && out_ >= offset;
  };
  if (swallows_ || ended_) {
    return Cut::kNone;  // The connection has already been cut.
  }
  if (reached(faults.reset_after) || reached(faults.close_after)) {
    struck_ = true;
    return reached(faults.reset_after) ? Cut::kReset : Cut::kClose;
  }
  if (reached(faults.half_close_after)) {
    struck_ = true;
    end();
    swallow();
  } else if (reached(faults.black_hole_after)) {
    struck_ = true;
    swallow();
  }
  return Cut::kNone;
}

std::size_t FaultStream::bytes_until_cut(const Faults& faults) const {
  std::int64_t nearest = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t offset :
       {faults.black_hole_after, faults.close_after, faults.reset_after,
        faults.half_close_after}) {
    if (offset != Faults::kNever) {
      nearest = std::min(nearest, offset - out_);
    }
  }
  return static_cast<std::size_t>(nearest);
}

bool FaultStream::write_front(const Faults& faults, Instant now) {
  std::string& bytes = pieces_.front().bytes;
  if (bytes.empty()) {
    pieces_.pop_front();
    end();
    return false;
  }
  std::size_t most = std::min(bytes.size(), bytes_until_cut(faults));
  if (faults.bytes_per_second > 0) {
    // Small enough for an even rate, large enough to be worth a call.
    most = std::min(
        most, static_cast<std::size_t>(faults.bytes_per_second / 100 + 1));
  }
  const ssize_t count =
      ::send(to_, bytes.data(), most, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count < 0) {
    wants_room_ = errno == EAGAIN;
    broken_ = errno != EAGAIN && errno != EINTR;
    return false;
  }
  out_ += count;
  queued_ -= static_cast<std::size_t>(count);
  if (faults.bytes_per_second > 0) {
    free_at_ = std::max(free_at_, now) +
        Duration(std::chrono::seconds(1)) * count / faults.bytes_per_second;
  }
  bytes.erase(0, static_cast<std::size_t>(count));
  if (bytes.empty()) {
    pieces_.pop_front();
  }
  return true;
}

void FaultStream::swallow() {
  swallows_ = true;
  pieces_.clear();
  queued_ = 0;
}

void FaultStream::end() {
  ::shutdown(to_, SHUT_WR);
  ended_ = true;
}

}  // namespace sherd::test
