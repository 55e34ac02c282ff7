// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/communicator/collectives.h"

#include <algorithm>
#include <cstdint>
#include <vector>
#include "base/check.h"

namespace sherd::c10d_shm {
namespace {

// The part of `piece` that is moved in a round that begins at `offset`.
Bytes part(Bytes piece, std::size_t offset, std::size_t round_bytes) {
  return offset >= piece.size()
      ? Bytes()
      : piece.subspan(offset, std::min(round_bytes, piece.size() - offset));
}

class AllToAll {
 public:
  AllToAll(ShmCommunicator& communicator, const AllToAllArguments& arguments)
      : communicator_(communicator),
        arguments_(arguments),
        // How much of a piece fits into a buffer.
        round_bytes_(
            (arguments.one_source ? communicator.options().buffer_bytes
                                  : communicator.options().buffer_bytes /
                     index(communicator.ranks())) /
            shm::kCacheLine * shm::kCacheLine) {}

  Status run(const CollectiveCall& call);

 private:
  void copy_own() const {
    const std::size_t own = index(communicator_.rank());
    const Bytes source = arguments_.sources[own];
    copy_bytes(source.data(), arguments_.targets[own].data(), source.size());
  }
  // Whether this rank's pieces have one size, as in an all-gather.
  bool all_equal() const {
    const std::size_t size = arguments_.sources[0].size();
    const auto same = [&](Bytes piece) { return piece.size() == size; };
    return std::ranges::all_of(arguments_.sources, same) &&
        std::ranges::all_of(arguments_.targets, same);
  }
  std::byte* place(int source, int target) const {
    return communicator_.buffer(source) +
        (arguments_.one_source ? 0 : index(target) * round_bytes_);
  }
  void put(std::size_t offset) const;
  void take(std::size_t offset) const;
  Status finish_directly() const;

  ShmCommunicator& communicator_;
  const AllToAllArguments& arguments_;
  const std::size_t round_bytes_;
};

void AllToAll::put(std::size_t offset) const {
  for (int r = 0; r < communicator_.ranks(); ++r) {
    const Bytes piece =
        part(arguments_.sources[index(r)], offset, round_bytes_);
    if (r != communicator_.rank() && !piece.empty()) {
      copy_bytes(piece.data(), place(communicator_.rank(), r), piece.size());
      if (arguments_.one_source) {
        return;
      }
    }
  }
}

// Each rank begins with its neighbour, so that not all read from the same rank.
void AllToAll::take(std::size_t offset) const {
  for (int i = 1; i < communicator_.ranks(); ++i) {
    const int r = (communicator_.rank() + i) % communicator_.ranks();
    const Bytes piece =
        part(arguments_.targets[index(r)], offset, round_bytes_);
    copy_bytes(place(r, communicator_.rank()), piece.data(), piece.size());
  }
}

Status AllToAll::finish_directly() const {
  for (int i = 1; i < communicator_.ranks(); ++i) {
    const int r = (communicator_.rank() + i) % communicator_.ranks();
    const Bytes target = arguments_.targets[index(r)];
    if (!target.empty()) {
      SHERD_RETURN_IF_FAILED(
          communicator_.read(r, communicator_.rank(), 0, target));
    }
  }
  copy_own();
  return communicator_.meet();  // No rank reads from this one any more.
}

Status AllToAll::run(const CollectiveCall& call) {
  const std::size_t ranks = index(communicator_.ranks());
  const std::size_t own = index(communicator_.rank());
  SHERD_ASSERT(
      arguments_.sources[own].size() == arguments_.targets[own].size(),
      "a rank has room for its own piece");
  std::vector<std::size_t> wanted(ranks);
  std::size_t largest = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    wanted[r] = arguments_.targets[r].size();
    if (r != own) {
      largest = std::max({largest, wanted[r], arguments_.sources[r].size()});
    }
  }
  SHERD_RETURN_IF_FAILED(communicator_.begin(
      call, arguments_.sources, wanted,
      all_equal() ? ShmCommunicator::PieceSizes::kFitWhenEqual
                  : ShmCommunicator::PieceSizes::kAny));
  const std::size_t direct_from = communicator_.single_copy()
      ? communicator_.options().single_copy_bytes_min
      : SIZE_MAX;
  // In vain only if another rank turns out to have large pieces.
  if (largest < direct_from) {
    put(0);
  }
  SHERD_RETURN_IF_FAILED(communicator_.meet_and_compare());
  const std::size_t all = communicator_.largest_piece();
  if (all >= direct_from) {
    return finish_directly();
  }
  take(0);
  for (std::size_t done = round_bytes_; done < all; done += round_bytes_) {
    communicator_.next_round();
    put(done);
    SHERD_RETURN_IF_FAILED(communicator_.meet());
    take(done);
  }
  copy_own();
  return {};
}

}  // namespace

Status all_to_all(
    ShmCommunicator& communicator,
    const CollectiveCall& call,
    const AllToAllArguments& arguments) {
  return AllToAll(communicator, arguments).run(call);
}

Status barrier(ShmCommunicator& communicator, const CollectiveCall& call) {
  SHERD_RETURN_IF_FAILED(communicator.begin(
      call, {}, {}, ShmCommunicator::PieceSizes::kFitWhenEqual));
  return communicator.meet_and_compare();
}

}  // namespace sherd::c10d_shm
