// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/collectives.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>
#include "base/check.h"

namespace sherd::comm::shm {
namespace {

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// What of `piece` travels in a round that begins at `offset`.
Bytes part(Bytes piece, std::size_t offset, std::size_t round_bytes) {
  return offset >= piece.size()
      ? Bytes()
      : piece.subspan(offset, std::min(round_bytes, piece.size() - offset));
}

void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
  if (bytes > 0 && from != to) {
    std::memcpy(to, from, bytes);
  }
}

class Move {
 public:
  Move(Stage& stage, const Movement& movement)
      : stage_(stage),
        movement_(movement),
        // How much of a piece fits into a buffer.
        round_bytes_(
            (movement.one_source
                 ? stage.options().buffer_bytes
                 : stage.options().buffer_bytes / index(stage.ranks())) /
            kCacheLine * kCacheLine) {}

  Status run(const Call& call);

 private:
  void copy_own() const {
    const std::size_t own = index(stage_.rank());
    const Bytes source = movement_.sources[own];
    copy_bytes(source.data(), movement_.targets[own].data(), source.size());
  }
  std::byte* place(int source, int target) const {
    return stage_.buffer(source) +
        (movement_.one_source ? 0 : index(target) * round_bytes_);
  }
  void put(std::size_t offset) const;
  void take(std::size_t offset) const;
  Status finish_directly() const;

  Stage& stage_;
  const Movement& movement_;
  const std::size_t round_bytes_;
};

void Move::put(std::size_t offset) const {
  for (int r = 0; r < stage_.ranks(); ++r) {
    const Bytes piece = part(movement_.sources[index(r)], offset, round_bytes_);
    if (r != stage_.rank() && !piece.empty()) {
      copy_bytes(piece.data(), place(stage_.rank(), r), piece.size());
      if (movement_.one_source) {
        return;
      }
    }
  }
}

// Each begins with its neighbour, so that not all read of the same rank.
void Move::take(std::size_t offset) const {
  for (int i = 1; i < stage_.ranks(); ++i) {
    const int r = (stage_.rank() + i) % stage_.ranks();
    const Bytes piece = part(movement_.targets[index(r)], offset, round_bytes_);
    copy_bytes(place(r, stage_.rank()), piece.data(), piece.size());
  }
}

Status Move::finish_directly() const {
  for (int i = 1; i < stage_.ranks(); ++i) {
    const int r = (stage_.rank() + i) % stage_.ranks();
    const Bytes target = movement_.targets[index(r)];
    if (!target.empty()) {
      if (Status s = stage_.read(r, stage_.rank(), 0, target); !s.ok()) {
        return s;
      }
    }
  }
  copy_own();
  return stage_.meet();  // Nobody reads of this rank any more.
}

Status Move::run(const Call& call) {
  const std::size_t ranks = index(stage_.ranks());
  const std::size_t own = index(stage_.rank());
  SHERD_ASSERT(
      movement_.sources[own].size() == movement_.targets[own].size(),
      "a rank has room for its own piece");
  std::vector<std::size_t> wanted(ranks);
  std::size_t largest = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    wanted[r] = movement_.targets[r].size();
    if (r != own) {
      largest = std::max({largest, wanted[r], movement_.sources[r].size()});
    }
  }
  Status outcome = stage_.begin(call, movement_.sources, wanted);
  if (!outcome.ok()) {
    return outcome;
  }
  const std::size_t direct_from =
      stage_.single_copy() ? stage_.options().single_copy_bytes_min : SIZE_MAX;
  // In vain only where another rank turns out to have large pieces.
  if (largest < direct_from) {
    put(0);
  }
  outcome = stage_.meet_and_compare();
  if (!outcome.ok()) {
    return outcome;
  }
  const std::size_t all = stage_.largest_piece();
  if (all >= direct_from) {
    return finish_directly();
  }
  take(0);
  for (std::size_t done = round_bytes_; done < all; done += round_bytes_) {
    stage_.next_round();
    put(done);
    outcome = stage_.meet();
    if (!outcome.ok()) {
      return outcome;
    }
    take(done);
  }
  copy_own();
  return {};
}

}  // namespace

Status move(Stage& stage, const Call& call, const Movement& movement) {
  return Move(stage, movement).run(call);
}

Status barrier(Stage& stage, const Call& call) {
  Status outcome = stage.begin(call, {}, {});
  return outcome.ok() ? stage.meet_and_compare() : outcome;
}

}  // namespace sherd::comm::shm
