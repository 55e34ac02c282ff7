// SPDX-License-Identifier: Apache-2.0
#include "optim/slice_set.h"

#include <fnmatch.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include "base/check.h"

namespace sherd::optim {
namespace {

SliceUpdate::Location location_of(const at::Tensor& tensor) {
  return {
      .storage = reinterpret_cast<std::uintptr_t>(
          tensor.storage().unsafeGetStorageImpl()),
      .address = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr())};
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

// A 1-D view of `elements` elements from element `begin` of `tensor` on.
at::Tensor strip(
    const at::Tensor& tensor, std::int64_t elements, std::int64_t begin = 0) {
  return tensor.as_strided({elements}, {1}, tensor.storage_offset() + begin);
}

// The values, whose memory has them in the order in which that of `slice` has its elements.
at::Tensor in_memory_order_of(
    const at::Tensor& slice, const at::Tensor& values) {
  if (slice.is_contiguous()) {
    return values.contiguous();
  }
  return values.strides() == slice.strides()
      ? values
      : at::empty_like(slice, values.options()).copy_(values);
}

bool all_zero(std::uintptr_t address, std::int64_t bytes) {
  static constexpr char kZeros[kPaddingBytesMax] = {};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): planned as a number, read once.
  const void* const memory = reinterpret_cast<const void*>(address);
  return std::memcmp(memory, kZeros, static_cast<std::size_t>(bytes)) == 0;
}

// The padding between two neighbours if a kernel may run over it, else 0. Reads only bytes that
// have slices of this rank on both sides, because another rank may write the others meanwhile.
std::int64_t zero_padding(const SliceUpdate& before, const SliceUpdate& after) {
  if (!before.has_gradient || !after.has_gradient ||
      before.parameter.storage != after.parameter.storage ||
      before.gradient.storage != after.gradient.storage) {
    return 0;
  }
  const auto bytes = static_cast<std::uintptr_t>(before.bytes);
  const std::uintptr_t parameter_end = before.parameter.address + bytes;
  const std::uintptr_t gradient_end = before.gradient.address + bytes;
  const auto gap =
      static_cast<std::int64_t>(after.parameter.address - parameter_end);
  if (gap <= 0 || gap > kPaddingBytesMax ||
      static_cast<std::int64_t>(after.gradient.address - gradient_end) != gap) {
    return 0;
  }
  return all_zero(parameter_end, gap) && all_zero(gradient_end, gap) ? gap : 0;
}

void check_group(const char* owner, const ParameterGroup& group) {
  SHERD_CHECK(
      !group.names.empty(), "[optim] ", owner,
      ": expected a group to have at least one name pattern, found none");
  check_not_negative(
      owner, "learning_rate_scale of a group", group.learning_rate_scale);
  if (group.weight_decay.has_value()) {
    check_not_negative(owner, "weight_decay of a group", *group.weight_decay);
  }
}

void reset_gradients(const NamedParameters& parameters) {
  for (const NamedParameter& parameter : parameters.items) {
    parameter.slice.mutable_grad().reset();
  }
}

// Undefined slices are refused later.
std::vector<c10::Device> devices_of(const std::vector<NamedParameter>& items) {
  std::vector<c10::Device> devices;
  for (const auto& item : items) {
    devices.push_back(
        item.slice.defined() ? item.slice.device() : c10::Device(at::kCPU));
  }
  return devices;
}

}  // namespace

void check_not_negative(const char* owner, const char* what, double value) {
  SHERD_CHECK(
      std::isfinite(value) && value >= 0.0, "[optim] ", owner, ": expected ",
      what, " to be finite and at least 0, found ", value);
}

void check_slices(
    const char* owner, const std::vector<NamedParameter>& slices) {
  std::unordered_set<std::string> names;
  for (const auto& [name, slice] : slices) {
    SHERD_CHECK(
        names.insert(name).second, "[optim] ", owner,
        ": expected every parameter name once, found \"", name, "\" twice");
    SHERD_CHECK(
        slice.defined() && slice.layout() == at::kStrided &&
            slice.numel() > 0 && slice.is_non_overlapping_and_dense(),
        "[optim] ", owner, ": expected \"", name,
        "\" to be a tensor of at least one element without gaps in memory, "
        "found ",
        slice.defined()
            ? str("shape ", slice.sizes(), " with strides ",
                  slice.layout() == at::kStrided ? slice.strides()
                                                 : at::IntArrayRef())
            : "an undefined tensor");
    SHERD_CHECK(
        at::isFloatingType(slice.scalar_type()), "[optim] ", owner,
        ": expected \"", name, "\" to have a floating-point type, found ",
        slice.scalar_type());
  }
}

bool matches_any(
    const std::vector<std::string>& patterns,
    const std::string& name,
    const std::map<std::string, std::string>& tied_names) {
  const auto matches = [&](const std::string& any_name) {
    return std::ranges::any_of(patterns, [&](const std::string& pattern) {
      return ::fnmatch(pattern.c_str(), any_name.c_str(), 0) == 0;
    });
  };
  return matches(name) ||
      std::ranges::any_of(tied_names, [&](const auto& tied) {
           return tied.second == name && matches(tied.first);
         });
}

// Undefined slices are refused later.
NamedParameters without_untrainable(NamedParameters parameters) {
  std::erase_if(parameters.items, [](const NamedParameter& item) {
    return item.slice.defined() && !item.slice.requires_grad() &&
        !at::isFloatingType(item.slice.scalar_type());
  });
  std::erase_if(parameters.whole.items, [](const WholeParameter& item) {
    return !at::isFloatingType(item.options.dtype().toScalarType());
  });
  return parameters;
}

at::Tensor usable_gradient(const char* owner, const NamedParameter& parameter) {
  const at::Tensor& gradient = parameter.slice.grad();
  if (!gradient.defined()) {
    return {};
  }
  SHERD_CHECK(
      gradient.layout() == at::kStrided, "[optim] ", owner,
      ": expected a dense gradient of \"", parameter.name, "\", found layout ",
      gradient.layout());
  SHERD_CHECK(
      gradient.sizes() == parameter.slice.sizes(), "[optim] ", owner,
      ": expected the gradient of \"", parameter.name, "\" to have shape ",
      parameter.slice.sizes(), ", found ", gradient.sizes());
  SHERD_CHECK(
      gradient.device() == parameter.slice.device(), "[optim] ", owner,
      ": expected the gradient of \"", parameter.name, "\" on device ",
      parameter.slice.device(), ", found ", gradient.device());
  const auto cast = gradient.detach().to(parameter.slice.scalar_type());
  return in_memory_order_of(parameter.slice, cast);
}

void drop_gradients(const NamedParameters& parameters) {
  reset_gradients(parameters);
  if (parameters.drop_kept) {
    std::vector<std::string> names;
    names.reserve(parameters.whole.items.size());
    for (const WholeParameter& item : parameters.whole.items) {
      names.push_back(item.name);
    }
    parameters.drop_kept(names);
  }
}

SliceSet::SliceSet(NamedParameters parameters, const Options& options)
    : parameters_(without_untrainable(std::move(parameters))),
      options_(options),
      counts_(devices_of(parameters_.items)) {
  check_not_negative(options_.owner, "weight_decay", options_.weight_decay);
  for (const ParameterGroup& group : options_.groups) {
    check_group(options_.owner, group);
  }
  check_slices(options_.owner, parameters_.items);
  lay_out_state();
  if (parameters_.claim) {
    claim_ = parameters_.claim();
  }
}

int SliceSet::kind_of(const NamedParameter& parameter) {
  const auto group =
      std::ranges::find_if(options_.groups, [&](const ParameterGroup& g) {
        return matches_any(g.names, parameter.name, parameters_.tied_names);
      });
  const UpdateSettings kind{
      .group = static_cast<std::size_t>(group - options_.groups.begin()),
      .dtype = parameter.slice.scalar_type(),
      .device = parameter.slice.device()};
  const auto known = std::ranges::find(kinds_, kind);
  const auto index = static_cast<int>(known - kinds_.begin());
  if (known == kinds_.end()) {
    kinds_.push_back(kind);
  }
  return index;
}

// State tensors keep the distances of the slices, including small gaps, because only a step can
// tell whether such a gap is padding.
void SliceSet::lay_out_state() {
  const auto& items = parameters_.items;
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t i) {
    const SliceUpdate::Location place = location_of(items[i].slice);
    return std::make_tuple(place.storage, place.address, i);
  };
  std::ranges::sort(
      order, [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  std::vector<SliceUpdate> pieces;
  for (const std::size_t i : order) {
    const SliceUpdate::Location place = location_of(items[i].slice);
    pieces.push_back(
        {.parameter = place,
         .gradient = place,
         .state = place,
         .bytes = bytes_of(items[i].slice),
         .zero_bytes_after = kPaddingBytesMax,
         .kind = static_cast<int>(items[i].slice.scalar_type()),
         .has_gradient = true});
  }
  for (const UpdateRun& run : plan_update_runs(pieces)) {
    const at::Tensor& first = items[order[run.first]].slice;
    const auto element = static_cast<std::int64_t>(first.element_size());
    for (std::size_t k = run.first; k < run.first + run.count; ++k) {
      const auto distance = static_cast<std::int64_t>(
          pieces[k].parameter.address - pieces[run.first].parameter.address);
      by_name_.emplace(items[order[k]].name, slices_.size());
      slices_.push_back(
          {.item = order[k],
           .kind = kind_of(items[order[k]]),
           .range = ranges_.size(),
           .range_offset = distance / element,
           .gradient = {}});
    }
    ranges_.push_back(
        {.elements = run.bytes / element,
         .options = first.options().requires_grad(false),
         .states = {}});
  }
}

std::vector<SliceSet::Batch> SliceSet::begin_update() {
  // Autograd need not know of views that only the kernels see. Its part of making them takes twice
  // as long as the views themselves.
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  for (SliceEntry& slice : slices_) {
    slice.gradient =
        usable_gradient(options_.owner, parameters_.items[slice.item]);
  }
  for (SliceEntry& slice : slices_) {
    if (slice.gradient.defined()) {
      allocate(slice);
      slice.has_state = true;
    }
  }
  std::vector<Batch> batches;
  for (const UpdateSettings& kind : kinds_) {
    batches.push_back(empty_batch(kind));
  }
  if (options_.counts_updates) {
    count_updates();
  }
  const std::vector<SliceUpdate> pieces = this->pieces();
  for (const UpdateRun& run : plan_update_runs(pieces)) {
    add_run(run, batches);
  }
  std::erase_if(batches, [](const Batch& b) { return b.parameters.empty(); });
  return batches;
}

void SliceSet::count_updates() {
  std::vector<std::size_t> updated;
  for (const SliceEntry& slice : slices_) {
    if (slice.gradient.defined()) {
      updated.push_back(slice.item);
    }
  }
  std::ranges::sort(updated);
  counts_.count(updated);
}

SliceSet::Batch SliceSet::empty_batch(const UpdateSettings& kind) const {
  Batch batch;
  batch.weight_decay = options_.weight_decay;
  batch.states.resize(options_.state_tensors);
  if (kind.group < options_.groups.size()) {
    const ParameterGroup& group = options_.groups[kind.group];
    batch.learning_rate_scale = group.learning_rate_scale;
    batch.weight_decay = group.weight_decay.value_or(options_.weight_decay);
  }
  return batch;
}

void SliceSet::allocate(const SliceEntry& slice) {
  auto& range = ranges_[slice.range];
  while (range.states.size() < options_.state_tensors) {
    range.states.push_back(at::zeros({range.elements}, range.options));
  }
}

std::vector<SliceUpdate> SliceSet::pieces() const {
  std::vector<SliceUpdate> pieces;
  pieces.reserve(slices_.size());
  for (const SliceEntry& slice : slices_) {
    const at::Tensor& tensor = tensor_of(slice);
    SliceUpdate& piece = pieces.emplace_back();
    piece.has_gradient = slice.gradient.defined();
    if (!piece.has_gradient) {
      continue;
    }
    piece.parameter = location_of(tensor);
    piece.gradient = location_of(slice.gradient);
    // Ranges never touch each other's state, so the range serves as the storage.
    piece.state = {
        .storage = slice.range,
        .address = static_cast<std::uintptr_t>(slice.range_offset) *
            tensor.element_size()};
    piece.bytes = bytes_of(tensor);
    piece.kind = slice.kind;
    piece.updates = counts_.of(slice.item);
  }
  for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
    if (options_.joins_over_padding && tensor_of(slices_[i]).is_cpu()) {
      pieces[i].zero_bytes_after = zero_padding(pieces[i], pieces[i + 1]);
    }
  }
  return pieces;
}

void SliceSet::add_run(const UpdateRun& run, std::vector<Batch>& batches) {
  const SliceEntry& slice = slices_[run.first];
  const at::Tensor& tensor = tensor_of(slice);
  const auto elements =
      run.bytes / static_cast<std::int64_t>(tensor.element_size());
  add_elements(
      slice, 0, strip(tensor, elements), strip(slice.gradient, elements),
      batches[static_cast<std::size_t>(slice.kind)]);
}

void SliceSet::add_elements(
    const SliceEntry& slice,
    std::int64_t begin,
    const at::Tensor& parameter,
    const at::Tensor& gradient,
    Batch& batch) const {
  batch.parameters.push_back(parameter);
  batch.gradients.push_back(gradient);
  if (options_.counts_updates) {
    batch.steps.push_back(counts_.for_kernel(slice.item));
  }
  for (std::size_t s = 0; s < options_.state_tensors; ++s) {
    batch.states[s].push_back(strip(
        ranges_[slice.range].states[s], parameter.numel(),
        slice.range_offset + begin));
  }
}

void SliceSet::update_in_backward(Kernel kernel) {
  if (!parameters_.update_in_backward) {
    return;
  }
  in_backward_ = parameters_.update_in_backward(
      {.names = names(),
       .update = [this, kernel = std::move(kernel)](
                     std::size_t item, std::int64_t begin,
                     const at::Tensor& gradient) {
         SliceEntry& slice = slices_[index_of(parameters_.items[item].name)];
         if (begin == 0) {
           allocate(slice);
           slice.has_state = true;
           counts_.count_one(slice.item);
           tensor_of(slice).unsafeGetTensorImpl()->bump_version();
         }
         kernel(part(slice, begin, gradient));
       }});
}

SliceSet::Batch SliceSet::part(
    const SliceEntry& slice,
    std::int64_t begin,
    const at::Tensor& gradient) const {
  Batch batch = empty_batch(kinds_[static_cast<std::size_t>(slice.kind)]);
  const at::Tensor tensor = tensor_of(slice).detach();
  // Other slices than contiguous ones get their gradients whole.
  const auto in_order = tensor.is_contiguous()
      ? gradient
      : strip(
            in_memory_order_of(tensor, gradient.view(tensor.sizes())),
            gradient.numel());
  add_elements(
      slice, begin, strip(tensor, gradient.numel(), begin), in_order, batch);
  return batch;
}

void SliceSet::end_update() {
  for (SliceEntry& slice : slices_) {
    if (slice.gradient.defined() && !tensor_of(slice).is_inference()) {
      tensor_of(slice).unsafeGetTensorImpl()->bump_version();
    }
    slice.gradient.reset();
  }
  if (in_backward_ != nullptr) {
    reset_gradients(parameters_);  // Those that were not used in backward.
  }
  if (parameters_.publish) {
    parameters_.publish();
  }
}

std::vector<std::string> SliceSet::names() const {
  std::vector<std::string> names;
  names.reserve(parameters_.items.size());
  for (const NamedParameter& parameter : parameters_.items) {
    names.push_back(parameter.name);
  }
  return names;
}

at::Tensor SliceSet::state(const std::string& name, std::size_t which) {
  const SliceEntry& slice = slices_[index_of(name)];
  allocate(slice);
  const at::Tensor& tensor = tensor_of(slice);
  return ranges_[slice.range].states[which].as_strided(
      tensor.sizes(), tensor.strides(), slice.range_offset);
}

at::Tensor SliceSet::step(const std::string& name) {
  return counts_.on_host(slices_[index_of(name)].item);
}

std::size_t SliceSet::index_of(const std::string& name) const {
  const auto found = by_name_.find(name);
  SHERD_CHECK(
      found != by_name_.end(), "[optim] ", options_.owner,
      ": expected the name of a slice of this rank, found \"", name, "\"");
  return found->second;
}

}  // namespace sherd::optim
