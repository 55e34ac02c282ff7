// SPDX-License-Identifier: Apache-2.0
//
// Each rank owns a slice and folds what all bring to it in rank order, so the
// bits depend on nothing else. Results may take the place of what was brought:
// nobody but its owner reads a slice, so the owner may overwrite that part of
// every other rank's memory as soon as it has read it.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>
#include "base/check.h"
#include "comm/shm/collectives.h"

namespace sherd::comm::shm {
namespace {

// What is folded at a time when copied directly: with one of each rank it fits
// the second-level cache.
constexpr std::size_t kBlockBytes = std::size_t{128} << 10;

std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

class Reduce {
 public:
  Reduce(Stage& stage, const Reduction& reduction)
      : stage_(stage),
        reduction_(reduction),
        own_(index(stage.rank())),
        round_bytes_(
            stage.options().buffer_bytes / index(stage.ranks()) / kCacheLine *
            kCacheLine) {}

  Status run(const Call& call);

 private:
  // Where the result of the own slice goes on this rank; null: nowhere.
  std::byte* target() const;
  bool gets_results(int rank) const;
  bool alone() const;
  std::byte* place(int source, int slice) const {
    return stage_.buffer(source) + index(slice) * round_bytes_;
  }

  void put(std::size_t offset) const;
  void fold(std::size_t offset) const;
  void take(std::size_t offset) const;
  Status finish_in_rounds() const;

  void put_all() const;
  void fold_all() const;

  Status fold_block(
      std::size_t offset, std::size_t bytes, std::vector<std::byte>& scratch);
  Status finish_directly();

  Stage& stage_;
  const Reduction& reduction_;
  const std::size_t own_;
  const std::size_t round_bytes_;
};

std::byte* Reduce::target() const {
  return reduction_.share == Share::kOwner ? reduction_.target.data()
      : gets_results(stage_.rank())        ? reduction_.slices[own_].data()
                                           : nullptr;
}

bool Reduce::gets_results(int rank) const {
  return reduction_.share == Share::kAll ||
      (reduction_.share == Share::kRoot && rank == reduction_.root);
}

// The same on all ranks whose slices fit together.
bool Reduce::alone() const {
  std::size_t all = 0;
  for (const Bytes slice : reduction_.slices) {
    all += slice.size();
  }
  return reduction_.share == Share::kAll &&
      all <=
      std::min(
          stage_.options().sum_alone_bytes_max, stage_.options().buffer_bytes);
}

// --- Through the segment, a part of every slice a round.

void Reduce::put(std::size_t offset) const {
  for (int r = 0; r < stage_.ranks(); ++r) {
    const Bytes slice = reduction_.slices[index(r)];
    if (r != stage_.rank() && offset < slice.size()) {
      copy_bytes(
          slice.data() + offset, place(stage_.rank(), r),
          std::min(round_bytes_, slice.size() - offset));
    }
  }
}

// What others shall get goes where nobody else puts anything: the place of the
// own slice in the own buffer.
void Reduce::fold(std::size_t offset) const {
  const Bytes slice = reduction_.slices[own_];
  if (offset >= slice.size()) {
    return;
  }
  const std::size_t bytes = std::min(round_bytes_, slice.size() - offset);
  std::vector<const std::byte*> inputs;
  for (int r = 0; r < stage_.ranks(); ++r) {
    inputs.push_back(
        r == stage_.rank() ? slice.data() + offset : place(r, stage_.rank()));
  }
  std::byte* const shared = place(stage_.rank(), stage_.rank());
  std::byte* const out = target() == nullptr ? shared : target() + offset;
  reduction_.fold(inputs, bytes / reduction_.element_bytes, out);
  if (reduction_.share != Share::kOwner && out != shared) {
    copy_bytes(out, shared, bytes);
  }
}

void Reduce::take(std::size_t offset) const {
  if (!gets_results(stage_.rank())) {
    return;
  }
  for (int i = 1; i < stage_.ranks(); ++i) {
    const int r = (stage_.rank() + i) % stage_.ranks();
    const Bytes slice = reduction_.slices[index(r)];
    if (offset < slice.size()) {
      copy_bytes(
          place(r, r), slice.data() + offset,
          std::min(round_bytes_, slice.size() - offset));
    }
  }
}

Status Reduce::finish_in_rounds() const {
  const std::size_t all =
      std::max(stage_.largest_piece(), reduction_.slices[own_].size());
  for (std::size_t done = 0;; done += round_bytes_) {
    fold(done);
    if (reduction_.share != Share::kOwner) {
      if (Status s = stage_.meet(); !s.ok()) {
        return s;
      }
      take(done);
    }
    if (done + round_bytes_ >= all) {
      return {};
    }
    stage_.next_round();
    put(done + round_bytes_);
    if (Status s = stage_.meet(); !s.ok()) {
      return s;
    }
  }
}

// --- Through the segment, all at once, everybody folds everything.

void Reduce::put_all() const {
  std::byte* to = stage_.buffer(stage_.rank());
  for (const Bytes slice : reduction_.slices) {
    copy_bytes(slice.data(), to, slice.size());
    to += slice.size();
  }
}

void Reduce::fold_all() const {
  std::size_t offset = 0;
  std::vector<const std::byte*> inputs(index(stage_.ranks()));
  for (const Bytes slice : reduction_.slices) {
    for (int r = 0; r < stage_.ranks(); ++r) {
      inputs[index(r)] =
          r == stage_.rank() ? slice.data() : stage_.buffer(r) + offset;
    }
    if (!slice.empty()) {
      reduction_.fold(
          inputs, slice.size() / reduction_.element_bytes, slice.data());
    }
    offset += slice.size();
  }
}

// --- From process to process.

Status Reduce::fold_block(
    std::size_t offset, std::size_t bytes, std::vector<std::byte>& scratch) {
  std::vector<const std::byte*> inputs;
  for (int r = 0; r < stage_.ranks(); ++r) {
    std::byte* const block = scratch.data() + index(r) * kBlockBytes;
    inputs.push_back(
        r == stage_.rank() ? reduction_.slices[own_].data() + offset : block);
    if (r != stage_.rank()) {
      Status s = stage_.read(r, stage_.rank(), offset, {block, bytes});
      if (!s.ok()) {
        return s;
      }
    }
  }
  std::byte* const out = target() == nullptr
      ? scratch.data() + own_ * kBlockBytes
      : target() + offset;
  reduction_.fold(inputs, bytes / reduction_.element_bytes, out);
  for (int i = 1; i < stage_.ranks(); ++i) {
    const int r = (stage_.rank() + i) % stage_.ranks();
    if (gets_results(r)) {
      if (Status s = stage_.write(r, stage_.rank(), offset, {out, bytes});
          !s.ok()) {
        return s;
      }
    }
  }
  return {};
}

Status Reduce::finish_directly() {
  const std::size_t all = reduction_.slices[own_].size();
  std::vector<std::byte> scratch(index(stage_.ranks()) * kBlockBytes);
  for (std::size_t done = 0; done < all; done += kBlockBytes) {
    const Status s =
        fold_block(done, std::min(kBlockBytes, all - done), scratch);
    if (!s.ok()) {
      return s;
    }
  }
  return stage_.meet();  // Nobody reads of this rank, or writes, any more.
}

Status Reduce::run(const Call& call) {
  const auto slices = reduction_.slices;
  SHERD_ASSERT(
      kCacheLine % reduction_.element_bytes == 0 &&
          (reduction_.share != Share::kOwner ||
           reduction_.target.size() == slices[own_].size()),
      "whole elements, and room for the result");
  const std::vector<std::size_t> wanted(slices.size(), slices[own_].size());
  Status outcome = stage_.begin(call, slices, wanted);
  if (!outcome.ok()) {
    return outcome;
  }
  const std::size_t direct_from =
      stage_.single_copy() ? stage_.options().single_copy_bytes_min : SIZE_MAX;
  std::size_t largest = 0;
  for (const Bytes slice : slices) {
    largest = std::max(largest, slice.size());
  }
  const bool everybody_folds = alone();
  if (everybody_folds) {
    put_all();
  } else if (largest < direct_from) {
    put(0);
  }
  outcome = stage_.meet_and_compare();
  if (!outcome.ok()) {
    return outcome;
  }
  if (everybody_folds) {
    fold_all();
    return {};
  }
  return largest >= direct_from ? finish_directly() : finish_in_rounds();
}

}  // namespace

Status reduce(Stage& stage, const Call& call, const Reduction& reduction) {
  return Reduce(stage, reduction).run(call);
}

}  // namespace sherd::comm::shm
