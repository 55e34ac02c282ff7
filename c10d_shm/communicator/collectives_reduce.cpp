// SPDX-License-Identifier: Apache-2.0
//
// Each rank owns a slice and folds all contributions to it in rank order, so the bits depend on
// nothing else. Results may take the place of contributions: only its owner reads a slice, so the
// owner may overwrite that part of every other rank's memory as soon as it has read it.
#include <algorithm>
#include <vector>
#include "base/check.h"
#include "base/status.h"
#include "c10d_shm/communicator/collectives.h"

namespace sherd::c10d_shm {
namespace {

// How much is folded at a time when copied directly: with one block of each rank it fits into the
// second-level cache.
constexpr std::size_t kBlockBytes = std::size_t{128} << 10;

// How much is folded at a time through the segment, so that results are copied there from the
// first-level cache.
constexpr std::size_t kCachedBytes = std::size_t{8} << 10;

using Recipients = ReduceArguments::Recipients;

class Reduce {
 public:
  Reduce(ShmCommunicator& communicator, const ReduceArguments& arguments)
      : communicator_(communicator),
        arguments_(arguments),
        own_(index(communicator.rank())),
        round_bytes_(
            communicator.options().buffer_bytes / index(communicator.ranks()) /
            shm::kCacheLine * shm::kCacheLine),
        inputs_(index(communicator.ranks())) {}

  Status run(const CollectiveCall& call);

 private:
  // Where the result of the own slice goes on this rank; null if it goes nowhere.
  std::byte* target() const;
  bool gets_results(int rank) const;
  std::size_t bytes_in_all() const;
  bool alone() const;
  bool directly() const;
  std::byte* place(int source, int slice) const {
    return communicator_.buffer(source) + index(slice) * round_bytes_;
  }
  void fold_inputs(std::size_t bytes, std::byte* out) const {
    const ReduceKernel& kernel = arguments_.kernel;
    kernel.fold(inputs_, bytes / kernel.element_bytes, out);
  }

  void put(std::size_t offset) const;
  void fold(std::size_t offset);
  void fold_part(std::size_t offset, std::size_t done, std::size_t bytes);
  void take(std::size_t offset) const;
  Status finish_in_rounds();

  void put_all() const;
  void fold_all();

  Status fold_block(std::size_t offset, std::size_t bytes, std::byte* scratch);
  Status finish_directly();

  ShmCommunicator& communicator_;
  const ReduceArguments& arguments_;
  const std::size_t own_;
  const std::size_t round_bytes_;
  std::vector<const std::byte*> inputs_;  // The inputs being folded, by rank.
};

std::byte* Reduce::target() const {
  return arguments_.recipients == Recipients::kOwner ? arguments_.target.data()
      : gets_results(communicator_.rank()) ? arguments_.slices[own_].data()
                                           : nullptr;
}

bool Reduce::gets_results(int rank) const {
  return arguments_.recipients == Recipients::kAll ||
      (arguments_.recipients == Recipients::kRoot && rank == arguments_.root);
}

std::size_t Reduce::bytes_in_all() const {
  std::size_t all = 0;
  for (const Bytes slice : arguments_.slices) {
    all += slice.size();
  }
  return all;
}

// The result is the same on all ranks whose slices match, as that of directly().
bool Reduce::alone() const {
  return arguments_.recipients == Recipients::kAll &&
      bytes_in_all() <= std::min(
                            communicator_.options().sum_alone_bytes_max,
                            communicator_.options().buffer_bytes);
}

bool Reduce::directly() const {
  return communicator_.single_copy() &&
      bytes_in_all() >= communicator_.options().single_copy_sum_bytes_min;
}

// --- Through the segment, a part of every slice per round.

void Reduce::put(std::size_t offset) const {
  for (int r = 0; r < communicator_.ranks(); ++r) {
    const Bytes slice = arguments_.slices[index(r)];
    if (r != communicator_.rank() && offset < slice.size()) {
      copy_bytes(
          slice.data() + offset, place(communicator_.rank(), r),
          std::min(round_bytes_, slice.size() - offset));
    }
  }
}

// Results for other ranks go where no rank puts anything else: the place of the own slice in the
// own buffer.
void Reduce::fold(std::size_t offset) {
  const Bytes slice = arguments_.slices[own_];
  if (offset >= slice.size()) {
    return;
  }
  const std::size_t bytes = std::min(round_bytes_, slice.size() - offset);
  for (std::size_t done = 0; done < bytes; done += kCachedBytes) {
    fold_part(offset, done, std::min(kCachedBytes, bytes - done));
  }
}

// `done` is how much of this round's part of the slice is folded.
void Reduce::fold_part(
    std::size_t offset, std::size_t done, std::size_t bytes) {
  for (int r = 0; r < communicator_.ranks(); ++r) {
    inputs_[index(r)] = done +
        (r == communicator_.rank() ? arguments_.slices[own_].data() + offset
                                   : place(r, communicator_.rank()));
  }
  std::byte* const shared =
      place(communicator_.rank(), communicator_.rank()) + done;
  std::byte* const out =
      target() == nullptr ? shared : target() + offset + done;
  fold_inputs(bytes, out);
  if (arguments_.recipients != Recipients::kOwner && out != shared) {
    copy_bytes(out, shared, bytes);
  }
}

void Reduce::take(std::size_t offset) const {
  if (!gets_results(communicator_.rank())) {
    return;
  }
  for (int i = 1; i < communicator_.ranks(); ++i) {
    const int r = (communicator_.rank() + i) % communicator_.ranks();
    const Bytes slice = arguments_.slices[index(r)];
    if (offset < slice.size()) {
      copy_bytes(
          place(r, r), slice.data() + offset,
          std::min(round_bytes_, slice.size() - offset));
    }
  }
}

Status Reduce::finish_in_rounds() {
  const std::size_t all =
      std::max(communicator_.largest_piece(), arguments_.slices[own_].size());
  for (std::size_t done = 0;; done += round_bytes_) {
    fold(done);
    if (arguments_.recipients != Recipients::kOwner) {
      SHERD_RETURN_IF_FAILED(communicator_.meet());
      take(done);
    }
    if (done + round_bytes_ >= all) {
      return {};
    }
    communicator_.next_round();
    put(done + round_bytes_);
    SHERD_RETURN_IF_FAILED(communicator_.meet());
  }
}

// --- Through the segment, all at once; every rank folds everything.

void Reduce::put_all() const {
  std::byte* to = communicator_.buffer(communicator_.rank());
  for (const Bytes slice : arguments_.slices) {
    copy_bytes(slice.data(), to, slice.size());
    to += slice.size();
  }
}

void Reduce::fold_all() {
  std::size_t offset = 0;
  for (const Bytes slice : arguments_.slices) {
    for (int r = 0; r < communicator_.ranks(); ++r) {
      inputs_[index(r)] = r == communicator_.rank()
          ? slice.data()
          : communicator_.buffer(r) + offset;
    }
    if (!slice.empty()) {
      fold_inputs(slice.size(), slice.data());
    }
    offset += slice.size();
  }
}

// --- From process to process.

Status Reduce::fold_block(
    std::size_t offset, std::size_t bytes, std::byte* scratch) {
  for (int r = 0; r < communicator_.ranks(); ++r) {
    std::byte* const block = scratch + index(r) * kBlockBytes;
    inputs_[index(r)] = r == communicator_.rank()
        ? arguments_.slices[own_].data() + offset
        : block;
    if (r != communicator_.rank()) {
      SHERD_RETURN_IF_FAILED(
          communicator_.read(r, communicator_.rank(), offset, {block, bytes}));
    }
  }
  std::byte* const out =
      target() == nullptr ? scratch + own_ * kBlockBytes : target() + offset;
  fold_inputs(bytes, out);
  for (int i = 1; i < communicator_.ranks(); ++i) {
    const int r = (communicator_.rank() + i) % communicator_.ranks();
    if (gets_results(r)) {
      SHERD_RETURN_IF_FAILED(
          communicator_.write(r, communicator_.rank(), offset, {out, bytes}));
    }
  }
  return {};
}

Status Reduce::finish_directly() {
  const std::size_t all = arguments_.slices[own_].size();
  std::byte* const scratch =
      communicator_.scratch(index(communicator_.ranks()) * kBlockBytes);
  for (std::size_t done = 0; done < all; done += kBlockBytes) {
    SHERD_RETURN_IF_FAILED(
        fold_block(done, std::min(kBlockBytes, all - done), scratch));
  }
  // No rank reads from this one, or writes to it, any more.
  return communicator_.meet();
}

Status Reduce::run(const CollectiveCall& call) {
  const auto slices = arguments_.slices;
  SHERD_ASSERT(
      shm::kCacheLine % arguments_.kernel.element_bytes == 0 &&
          (arguments_.recipients != Recipients::kOwner ||
           arguments_.target.size() == slices[own_].size()),
      "whole elements, and room for the result");
  const std::vector<std::size_t> wanted(slices.size(), slices[own_].size());
  SHERD_RETURN_IF_FAILED(communicator_.begin(
      call, slices, wanted, ShmCommunicator::PieceSizes::kFitWhenEqual));
  const bool everybody_folds = alone();
  const bool copies_directly = directly();
  if (everybody_folds) {
    put_all();
  } else if (!copies_directly) {
    put(0);
  }
  SHERD_RETURN_IF_FAILED(communicator_.meet_and_compare());
  if (everybody_folds) {
    fold_all();
    return {};
  }
  return copies_directly ? finish_directly() : finish_in_rounds();
}

}  // namespace

Status reduce(
    ShmCommunicator& communicator,
    const CollectiveCall& call,
    const ReduceArguments& arguments) {
  return Reduce(communicator, arguments).run(call);
}

}  // namespace sherd::c10d_shm
