// SPDX-License-Identifier: Apache-2.0
//
// The same parameters twice: once as slices of sherd's optimizers, in a chosen
// memory layout, once as unrelated tensors for torch::optim. Both get the same
// values and gradients, and must stay equal. Thread rule: one thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include <sherd/optim/named_parameters.h>

namespace sherd::testing {

enum class SliceMemory {
  kApart,           // Each slice and gradient is allocated on its own.
  kTight,           // One storage, no gaps.
  kAligned,         // One storage, 64-byte aligned, zeros in the gaps: a flat.
  kDirtyGaps,       // As kAligned, but the gaps hold other numbers.
  kGradientsApart,  // As kAligned, but each gradient on its own.
};

inline std::string name_of(SliceMemory memory) {
  switch (memory) {
    case SliceMemory::kApart:
      return "Apart";
    case SliceMemory::kTight:
      return "Tight";
    case SliceMemory::kAligned:
      return "Aligned";
    case SliceMemory::kDirtyGaps:
      return "DirtyGaps";
    case SliceMemory::kGradientsApart:
      return "GradientsApart";
  }
  return "?";
}

class OptimizerTwin {
 public:
  OptimizerTwin(
      const std::vector<std::string>& names,
      const std::vector<std::int64_t>& sizes,
      SliceMemory memory,
      std::uint64_t seed)
      : memory_(memory), random_(seed) {
    // More threads would wait longer than they work.
    torch::set_num_threads(1);
    torch::manual_seed(static_cast<std::int64_t>(seed));
    std::int64_t end = 0;
    for (const std::int64_t size : sizes) {
      offsets_.push_back(end);
      end += memory == SliceMemory::kTight ? size : (size + 15) / 16 * 16;
    }
    const bool dirty = memory == SliceMemory::kDirtyGaps;
    flat_ = dirty ? torch::randn({end}) : torch::zeros({end});
    gradient_flat_ = dirty ? torch::randn({end}) : torch::zeros({end});
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto values = torch::randn({sizes[i]});
      auto slice = memory == SliceMemory::kApart
          ? values.clone()
          : flat_.narrow(0, offsets_[i], sizes[i]);
      slice.copy_(values);
      slices.items.push_back({names[i], slice.detach().requires_grad_(true)});
      twins.push_back(values.clone().requires_grad_(true));
    }
    flat_at_start_ = flat_.clone();
  }

  // New gradients on both sides; each is missing with probability `missing`.
  void set_gradients(double missing) {
    std::bernoulli_distribution leave_out(missing);
    for (std::size_t i = 0; i < twins.size(); ++i) {
      if (leave_out(random_)) {
        slices.items[i].slice.mutable_grad().reset();
        twins[i].mutable_grad().reset();
        continue;
      }
      const auto values = torch::randn_like(twins[i]).detach();
      twins[i].mutable_grad() = values.clone();
      if (memory_ == SliceMemory::kApart ||
          memory_ == SliceMemory::kGradientsApart) {
        slices.items[i].slice.mutable_grad() = values.clone();
      } else {
        auto place = gradient_flat_.narrow(0, offsets_[i], values.numel());
        place.copy_(values);
        slices.items[i].slice.mutable_grad() = place;
      }
    }
  }

  void expect_equal(double tolerance = 1e-6) const {
    for (std::size_t i = 0; i < twins.size(); ++i) {
      const auto& [name, slice] = slices.items[i];
      EXPECT_LE((slice - twins[i]).abs().max().item<double>(), tolerance)
          << name;
    }
  }

  // What lies between slices belongs to another owner.
  void expect_gaps_untouched() const {
    auto mask = torch::ones_like(flat_);
    for (std::size_t i = 0; i < twins.size(); ++i) {
      mask.narrow(0, offsets_[i], twins[i].numel()).zero_();
    }
    EXPECT_TRUE(torch::equal(flat_ * mask, flat_at_start_ * mask));
  }

  NamedParameters slices;
  std::vector<torch::Tensor> twins;

 private:
  SliceMemory memory_;
  std::mt19937_64 random_;
  std::vector<std::int64_t> offsets_;
  torch::Tensor flat_, gradient_flat_, flat_at_start_;
};

}  // namespace sherd::testing
