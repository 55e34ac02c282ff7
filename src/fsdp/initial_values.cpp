// SPDX-License-Identifier: Apache-2.0
#include "fsdp/initial_values.h"

#include <algorithm>
#include <exception>
#include <set>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include "base/check.h"
#include "base/status.h"
#include "fsdp/unit_modules.h"

namespace sherd::fsdp {
namespace {

// Gives memory to a tensor on the meta device, which stays the same object with
// the same hooks. Returns that as a plain tensor, without gradients.
at::Tensor make_real(const at::Tensor& tensor, c10::Device device) {
  // In inference mode new tensors would be inference tensors and never train.
  const c10::InferenceMode off(false);
  auto value = at::empty(
      tensor.sizes(), tensor.options().device(device).requires_grad(false));
  // What set_data() does, which refuses to change the kind of device; and then
  // set_data(), which forgets what autograd remembers of the device.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(value.getIntrusivePtr());
  tensor.set_data(value);
  return value;
}

}  // namespace

InitialValues::InitialValues(
    const torch::nn::Module& module,
    const ModelUnits& model,
    const World& world,
    const FullyShardOptions& options)
    : world_(world),
      options_(options),
      device_(model.device),
      synchronised_(options.sync_module_states && world.size() > 1),
      receives_(synchronised_ && world.rank() != 0),
      compares_(
          options.compare_initial_values && !options.sync_module_states &&
          world.size() > 1),
      parameters_(model.parameters.size()) {
  for (const auto& parameter : model.parameters) {
    items_.push_back({parameter.name, parameter.tensor});
  }
  std::set<const c10::TensorImpl*> seen;
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.value().defined() &&
        !is_ignored(options.ignored, buffer.key()) &&
        seen.insert(buffer.value().unsafeGetTensorImpl()).second) {
      items_.push_back({buffer.key(), buffer.value()});
    }
  }
}

void InitialValues::check() {
  refuse_items(
      [&](const at::Tensor& tensor) {
        return tensor.layout() != c10::kStrided && (compares_ || synchronised_);
      },
      "is sparse",
      ", and its values cannot be compared or sent; expected a dense tensor, "
      "one in options.ignored, or equal values by your own care and "
      "options.compare_initial_values = false");
  if (synchronised_) {
    check_buffers();
    // Rank 0's values are written element by element, which LibTorch refuses for an expanded
    // tensor: the ranks that write would throw while the others wait for them. An expanded tensor
    // on the meta device is fine, because it gets memory for each element.
    refuse_items(
        [&](const at::Tensor& tensor) {
          return receives_ && !tensor.is_meta() &&
              at::has_internal_overlap(tensor) == at::MemOverlap::Yes;
        },
        "has elements that share memory",
        ", so that options.sync_module_states cannot write rank 0's values to "
        "it; expected a tensor that holds each element once, as contiguous() "
        "returns it");
  }
  refuse_items(
      [&](const at::Tensor& tensor) {
        return tensor.is_meta() && !options_.initialise && !receives_;
      },
      "is on the meta device",
      "; expected options.initialise (init_fn in Python), which writes its "
      "value, or a tensor with memory");
  if (world_.size() > 1 && !options_.sync_module_states) {
    agree_when_to_compare();
  }
  if (compares_ && !compares_at_end_) {
    for (std::size_t item = 0; item < items_.size(); ++item) {
      add_digest(item);
    }
    check_equal();
  }
}

void InitialValues::agree_when_to_compare() {
  const bool meta = std::ranges::any_of(
      items_, [](const Item& item) { return item.tensor.is_meta(); });
  const auto all = world_.all_gather(
      {options_.compare_initial_values ? 1.0 : 0.0, meta ? 1.0 : 0.0});
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    SHERD_CHECK_AS(
        kPeerMismatch, all[rank][0] == all[0][0],
        "[fsdp] ranks disagree on options.compare_initial_values: rank 0 has ",
        all[0][0] != 0.0, ", rank ", rank, " has ", all[rank][0] != 0.0);
    compares_at_end_ = compares_at_end_ || all[rank][1] != 0.0;
  }
}

void InitialValues::add_digest(std::size_t item) {
  digests_.push_back(
      {str(kind_of(item), items_[item].name),
       world::digest_of(items_[item].tensor)});
}

// Shards of different models would make one that no rank has had.
void InitialValues::check_equal() const {
  const auto different = world::difference_between(world_, digests_);
  SHERD_CHECK_AS(
      kPeerMismatch, different.empty(),
      "[fsdp] ranks hold different initial values: ", different,
      "; expected equal ones: call torch::manual_seed() with one number on all "
      "ranks before the model is made, read one file, or set "
      "options.sync_module_states, which gives all ranks those of rank 0 (or "
      "options.compare_initial_values = false, where a checkpoint is loaded "
      "next)");
}

// Ranks have equal parameters by now; a broadcast for each buffer needs equal
// buffers, too.
void InitialValues::check_buffers() const {
  double bytes = 0.0;
  for (auto item = parameters_; item < items_.size(); ++item) {
    bytes += static_cast<double>(items_[item].tensor.nbytes());
  }
  const auto buffers = static_cast<double>(items_.size() - parameters_);
  const auto all = world_.all_gather({buffers, bytes});
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    SHERD_CHECK_AS(
        kPeerMismatch, all[rank] == all[0],
        "[fsdp] ranks disagree on the buffers that rank 0 gives them: rank 0 "
        "has ",
        all[0][0], " of ", all[0][1], " bytes, rank ", rank, " has ",
        all[rank][0], " of ", all[rank][1], " bytes");
  }
}

void InitialValues::initialise_item(std::size_t item) {
  const auto& tensor = items_[item].tensor;
  if (tensor.is_meta()) {
    const auto value = make_real(tensor, device_);
    if (!receives_) {
      initialise(item, value);
    }
  }
  if (synchronised_) {
    const auto plain = tensor.detach();
    const auto value = plain.contiguous().cpu();  // Messages go from there.
    world_.broadcast({value});
    if (receives_ && !value.is_same(plain)) {
      const at::NoGradGuard no_grad;
      plain.copy_(value);
    }
  }
  if (compares_ && compares_at_end_) {
    add_digest(item);
  }
}

// Goes on after an exception: peers count on this rank's part in what follows.
void InitialValues::initialise(std::size_t item, const at::Tensor& value) {
  if (failed_ >= 0) {
    return;
  }
  try {
    const c10::InferenceMode off(false);
    const at::NoGradGuard no_grad;
    if (value.is_cpu()) {
      options_.initialise(items_[item].name, value);
    } else {
      const auto on_host =
          at::empty(value.sizes(), value.options().device(at::kCPU));
      options_.initialise(items_[item].name, on_host);
      value.copy_(on_host);
    }
  } catch (...) {
    failed_ = static_cast<std::ptrdiff_t>(item);
    failure_ = reason_of(std::current_exception());
  }
}

void InitialValues::finish() {
  for (auto item = parameters_; item < items_.size(); ++item) {
    initialise_item(item);
  }
  throw_where_found(
      failed_, "has no value: options.initialise threw",
      failed_ < 0 ? "" : ": " + failure_);
  if (compares_ && compares_at_end_) {
    check_equal();
  }
}

const char* InitialValues::kind_of(std::size_t item) const {
  return item < parameters_ ? "parameter " : "buffer ";
}

void InitialValues::refuse_items(
    const std::function<bool(const at::Tensor&)>& is_wrong,
    const std::string& what,
    const std::string& reason) const {
  const auto found = std::ranges::find_if(items_, is_wrong, &Item::tensor);
  throw_where_found(
      found == items_.end() ? -1 : found - items_.begin(), what, reason);
}

void InitialValues::throw_where_found(
    std::ptrdiff_t mine,
    const std::string& what,
    const std::string& reason) const {
  const auto all = world_.all_gather({static_cast<double>(mine)});
  const auto describe = [&](std::size_t item) {
    return str(
        kind_of(item),
        item < items_.size() ? items_[item].name : "that only others have");
  };
  SHERD_CHECK(
      mine < 0, "[fsdp] ", describe(static_cast<std::size_t>(mine)), " ", what,
      reason);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    SHERD_CHECK(
        all[rank][0] < 0, "[fsdp] ",
        describe(static_cast<std::size_t>(all[rank][0])), " ", what,
        " on rank ", rank, reason.empty() ? "; its error says why" : reason);
  }
}

}  // namespace sherd::fsdp
