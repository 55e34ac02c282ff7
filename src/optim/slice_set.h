// SPDX-License-Identifier: Apache-2.0
//
// SliceSet is what sherd's elementwise optimizers have in common: the named slices with their
// groups, state tensors with the same layout as the slices, and for each step the fewest tensors
// that cover all slices with a gradient. Optimizers add the arithmetic. It shares the slices and
// owns the state. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>
#include "optim/update_counts.h"
#include "optim/update_runs.h"

namespace sherd::optim {

// Throws Error "[optim] `owner`: expected `what` ..., found `value`" unless the value is finite and
// at least 0.
void check_not_negative(const char* owner, const char* what, double value);

// Whether a parameter's whole name, or one of its further names (NamedParameters::tied_names),
// matches one of the shell patterns; `*` also matches dots.
bool matches_any(
    const std::vector<std::string>& patterns,
    const std::string& name,
    const std::map<std::string, std::string>& tied_names);

// Returns the parameters without frozen integers and the like, which can never have a gradient.
NamedParameters without_untrainable(NamedParameters parameters);

// Throws Error if a name appears twice, or if a slice is undefined, empty, has gaps in memory or is
// not of a floating-point type.
void check_slices(const char* owner, const std::vector<NamedParameter>& slices);

// Returns the slice's gradient, in its dtype and its order of memory, or an undefined tensor if
// there is none. Throws Error if the gradient is sparse, or has another shape or device.
at::Tensor usable_gradient(const char* owner, const NamedParameter& parameter);

// What an optimizer's zero_grad() does: makes the gradients of all slices undefined, and drops what
// no_sync() has kept of them.
void drop_gradients(const NamedParameters& parameters);

class SliceSet {
 public:
  struct Options {
    const char* owner = "";          // Name of the optimizer, for messages.
    std::size_t state_tensors = 0;   // The number per slice.
    bool counts_updates = false;     // Slices have step counts, which cut runs.
    bool joins_over_padding = true;  // The arithmetic keeps zero padding zero.
    double weight_decay = 0.0;       // Unless a group has its own.
    std::vector<ParameterGroup> groups = {};
  };

  // What one kernel call updates: parallel lists, one entry per run.
  struct Batch {
    double learning_rate_scale = 1.0;
    double weight_decay = 0.0;
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> steps;  // Updates including this one, as floats.
    std::vector<std::vector<at::Tensor>> states;  // [state tensor][run]
  };

  // Throws Error for bad slices or groups; see AdamW. Leaves out frozen slices that are not of a
  // floating-point type.
  SliceSet(NamedParameters parameters, const Options& options);
  SliceSet(const SliceSet&) = delete;
  SliceSet& operator=(const SliceSet&) = delete;

  // Returns everything with a gradient, ready for the kernels, and counts the update. Throws Error
  // with nothing changed when a gradient does not fit.
  std::vector<Batch> begin_update();

  // Makes backward, if it can, call `kernel` with one run of one slice at a time; each call counts
  // as an update.
  using Kernel = std::function<void(const Batch&)>;
  void update_in_backward(Kernel kernel);

  // Call it after the kernels: publishes, and makes backward over graphs of the old values throw
  // LibTorch's usual error.
  void end_update();

  void zero_grad() { drop_gradients(parameters_); }
  std::vector<std::string> names() const;

  // Views of the state of one slice. Throw Error for an unknown name.
  at::Tensor state(const std::string& name, std::size_t which);
  at::Tensor step(const std::string& name);

  // Whether a slice has had an update, or set_has_state() said so; values stay as they are.
  bool has_state(const std::string& name) const {
    return slices_[index_of(name)].has_state;
  }
  void set_has_state(const std::string& name, bool has) {
    slices_[index_of(name)].has_state = has;
  }

 private:
  // Slices with the same settings and dtype.
  struct UpdateSettings {
    std::size_t group;
    at::ScalarType dtype;
    at::Device device;
    bool operator==(const UpdateSettings&) const = default;
  };
  struct SliceEntry {
    std::size_t item;  // Index in parameters_.items.
    int kind;
    std::size_t range;
    std::int64_t range_offset;  // Elements from the start of its range.
    at::Tensor gradient;  // Only set between begin_update() and end_update().
    // Its range may have state for the sake of a neighbour.
    bool has_state = false;
  };
  // Adjacent slices share one allocation per state tensor, so that a run of slices is also a run of
  // state.
  struct Range {
    std::int64_t elements;
    at::TensorOptions options;
    std::vector<at::Tensor> states;  // Empty until needed.
  };

  const at::Tensor& tensor_of(const SliceEntry& slice) const {
    return parameters_.items[slice.item].slice;
  }
  int kind_of(const NamedParameter& parameter);
  void lay_out_state();
  void allocate(const SliceEntry& slice);
  Batch part(
      const SliceEntry& slice,
      std::int64_t begin,
      const at::Tensor& gradient) const;
  std::vector<SliceUpdate> pieces() const;
  // A batch with the settings of a kind and without runs.
  Batch empty_batch(const UpdateSettings& kind) const;
  void count_updates();
  void add_run(const UpdateRun& run, std::vector<Batch>& batches);
  // Adds those that begin at element `begin` of the slice.
  void add_elements(
      const SliceEntry& slice,
      std::int64_t begin,
      const at::Tensor& parameter,
      const at::Tensor& gradient,
      Batch& batch) const;
  // In slices_. Throws Error for an unknown name.
  std::size_t index_of(const std::string& name) const;

  NamedParameters parameters_;
  std::shared_ptr<void> claim_;  // While held, this optimizer publishes.
  const Options options_;
  std::vector<UpdateSettings> kinds_;
  std::vector<SliceEntry> slices_;  // In order of memory.
  std::vector<Range> ranges_;
  std::unordered_map<std::string, std::size_t> by_name_;  // Indices in slices_.
  UpdateCounts counts_;                                   // By item.
  std::shared_ptr<void> in_backward_;  // Held while backward updates slices.
};

}  // namespace sherd::optim
