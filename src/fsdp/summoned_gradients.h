// SPDX-License-Identifier: Apache-2.0
//
// SummonedGradients holds full copies of sharded gradients while a SummonScope with gradients lives,
// and copies the elements that were written back. Ranks send each other their slices, one parameter after
// another. Thread rule: the engine's lock.
#pragma once

#include <functional>
#include <memory>
#include <vector>
#include <ATen/core/Tensor.h>
#include "fsdp/model_units.h"
#include "fsdp/slices.h"
#include "world/transport.h"

namespace sherd::fsdp {

class SummonedGradients {
 public:
  struct Options {
    // Connects the ranks that hold a gradient together. Null if each has every gradient as a whole.
    std::shared_ptr<world::Transport> via;
    // Returns the number of the slice that such a rank, an index in `via`, owns (plan::FlatLayout).
    std::function<int(int index)> slice_of = nullptr;
    std::vector<int> parameters;  // Those with a gradient on some rank.
    bool rank0_only = false;
    bool keep = true;      // This rank has the copies.
    bool writable = true;  // take_back() is called.
  };

  // Collective. Throws Error if a rank is lost. All arguments must outlive it.
  SummonedGradients(
      const ModelUnits& model, Slices& slices, const Options& options);

  // Undefined if the parameter has no gradient.
  const at::Tensor& gradient(int parameter) const {
    return full_[static_cast<std::size_t>(parameter)];
  }
  // This rank's slices take the elements that were written, but for gradients that were cleared
  // meanwhile. Other elements stay as they are in the slices, which may have been written, too.
  // REQUIRES: writable.
  void take_back();

 private:
  at::Tensor gather(int parameter, const Options& options);

  const ModelUnits& model_;
  Slices& slices_;
  std::vector<at::Tensor> full_;  // By parameter.
  std::vector<at::Tensor>
      before_;  // This rank's part of each, as it was, if writable.
  std::vector<bool> had_gradient_;  // Of this rank's slices, at first.
};

}  // namespace sherd::fsdp
