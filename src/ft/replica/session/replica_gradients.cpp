// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/replica_gradients.h"

#include <cstring>
#include <utility>
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "autograd/backward.h"
#include "base/check.h"
#include "base/copy_bytes.h"

namespace sherd::ft {
namespace {

// Sums of marks stay positive whatever the weights of replicas, and do not change the norm of a
// bucket.
constexpr float kMark = 1e-20F;

std::vector<std::int64_t> sizes_of(const NamedParameters& parameters) {
  std::vector<std::int64_t> sizes;
  for (const auto& item : parameters.items) {
    SHERD_CHECK(
        item.slice.scalar_type() == at::kFloat, "[ft] ", item.name,
        ": expected an fp32 tensor, found ",
        c10::toString(item.slice.scalar_type()));
    sizes.push_back(item.slice.numel());
  }
  return sizes;
}

c10::Device device_of(const NamedParameters& parameters) {
  const auto& items = parameters.items;
  const auto device =
      items.empty() ? c10::Device(c10::kCPU) : items.front().slice.device();
  for (const auto& item : items) {
    SHERD_CHECK(
        item.slice.device() == device,
        "[ft] expected all parameters on one device, found ",
        items.front().name, " on ", device.str(), " and ", item.name, " on ",
        item.slice.device().str());
  }
  return device;
}

std::vector<std::string> names_of(const auto& items) {
  std::vector<std::string> names;
  for (const auto& item : items) {
    names.push_back(item.name);
  }
  return names;
}

std::size_t bytes_of(std::int64_t elements) {
  return static_cast<std::size_t>(elements) * sizeof(float);
}

// Copies into contiguous memory of the host.
void copy_to_host(const at::Tensor& from, float* to) {
  if (from.is_cpu()) {
    copy_bytes(
        to, from.contiguous().const_data_ptr<float>(), bytes_of(from.numel()));
  } else {
    at::from_blob(to, from.sizes(), at::kFloat)
        .copy_(from.detach(), /*non_blocking=*/true);
  }
}

void copy_from_host(const float* from, const at::Tensor& to) {
  if (to.is_cpu()) {
    copy_bytes(to.mutable_data_ptr<float>(), from, bytes_of(to.numel()));
  } else {
    to.copy_(
        at::from_blob(const_cast<float*>(from), to.sizes(), at::kFloat),
        /*non_blocking=*/true);
  }
}

}  // namespace

ReplicaGradients::ReplicaGradients(
    const NamedParameters& parameters, std::int64_t bucket_elements)
    : parameters_(parameters),
      device_(device_of(parameters)),
      names_(names_of(parameters.items)),
      whole_names_(names_of(parameters.whole.items)),
      layout_(sizes_of(parameters), bucket_elements),
      slices_(parameters.items.size()),
      missing_elements_(layout_.buckets().size()) {
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    slices_[i].parameter = parameters_.items[i].slice;
  }
  // It knows whether a backward broke off.
  autograd::install_backward_engine();
  if (parameters_.update_in_backward) {
    // Throws if an optimizer updates in backward: it would make steps that are not decided yet.
    (void)parameters_.update_in_backward(all_of([](auto...) {}));
  }
}

BackwardUpdate ReplicaGradients::all_of(
    decltype(BackwardUpdate::update) update) const {
  return {.names = names_, .update = std::move(update), .writes = false};
}

void ReplicaGradients::begin(float* to, std::function<void(int bucket)> give) {
  taken_.reset();
  copied_.clear();
  broken_before_ = autograd::broken_backward();
  if (parameters_.drop_kept) {
    // What no_sync() has kept in a step that broke off.
    parameters_.drop_kept(whole_names_);
  }
  clear();
  to_ = to;
  give_ = std::move(give);
  for (auto& slice : slices_) {
    slice.earlier = false;
    slice.came.store(0, std::memory_order_relaxed);
  }
  for (std::size_t i = 0; i < missing_elements_.size(); ++i) {
    missing_elements_[i].store(layout_.buckets()[i], std::memory_order_relaxed);
  }
}

void ReplicaGradients::last_backward() {
  // The host would have to wait for a device within backward.
  if (!device_.is_cpu() || !parameters_.update_in_backward || taken_) {
    return;
  }
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    // The gradient is taken away, so that this backward can bring sums.
    slices_[i].earlier = copy_from_grad(i);
  }
  taken_ = parameters_.update_in_backward(all_of(
      [this](std::size_t index, std::int64_t begin, const at::Tensor& part) {
        add_part(index, begin, part);
      }));
}

// Copies from `.grad()`, which may be sparse; returns false if there is none.
bool ReplicaGradients::copy_from_grad(std::size_t index) {
  const auto& gradient = slices_[index].parameter.grad();
  if (gradient.defined()) {
    copy_to_host(
        gradient.layout() == at::kStrided ? gradient : gradient.to_dense(),
        to_ + layout_.begin_of(index));
  }
  return gradient.defined();
}

void ReplicaGradients::add_part(
    std::size_t index, std::int64_t begin, const at::Tensor& part) {
  auto& slice = slices_[index];
  const auto came =
      slice.came.fetch_add(part.numel(), std::memory_order_relaxed);
  SHERD_CHECK_AS(
      kFailedPrecondition, came + part.numel() <= slice.parameter.numel(),
      "[ft] expected one backward between last_backward() and finish_step(), "
      "found another one");
  float* place = to_ + layout_.begin_of(index) + begin;
  if (slice.earlier) {
    at::from_blob(place, part.sizes(), at::kFloat).add_(part);
  } else {
    copy_bytes(place, part.const_data_ptr<float>(), bytes_of(part.numel()));
  }
  count(index, part.numel());
  if (came + part.numel() == slice.parameter.numel()) {
    mark(index, true);
  }
}

void ReplicaGradients::mark(std::size_t index, bool has_gradient) {
  to_[layout_.mark_of(index)] = has_gradient ? kMark : 0.F;
  count(index, 1);
}

// The thread that adds the last part of a bucket sees what the others have added. What a device
// adds arrives later.
void ReplicaGradients::count(std::size_t index, std::int64_t elements) {
  const auto bucket = layout_.bucket_of(index);
  auto& lacks = missing_elements_[static_cast<std::size_t>(bucket)];
  if (lacks.fetch_sub(elements, std::memory_order_acq_rel) != elements) {
    return;
  }
  if (device_.is_cpu()) {
    give_(bucket);
  } else {
    copied_.emplace_back(bucket, device::Stream::current(device_).record());
  }
}

void ReplicaGradients::finish() {
  taken_.reset();
  const auto broken = autograd::broken_backward();
  SHERD_CHECK_AS(
      kFailedPrecondition, broken == 0 || broken == broken_before_,
      "[ft] expected the gradients of a backward, found none: a backward "
      "broke off");
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    const auto& slice = slices_[i];
    const auto elements = slice.parameter.numel();
    const auto came = slice.came.load(std::memory_order_relaxed);
    if (came == elements) {
      continue;
    }
    SHERD_CHECK_AS(
        kFailedPrecondition, came == 0, "[ft] ", names_[i],
        ": expected gradients of ", elements, " elements, found ", came,
        ": a backward broke off");
    const bool has_gradient = copy_from_grad(i) || slice.earlier;
    if (!has_gradient) {
      std::memset(to_ + layout_.begin_of(i), 0, bytes_of(elements));
    }
    count(i, elements);
    mark(i, has_gradient);
  }
  for (const auto& [bucket, copied] : copied_) {
    copied.synchronize();  // The device goes on with the next buckets.
    give_(bucket);
  }
}

// The sum lies where ranks expect to see each other's gradients. It is contiguous, as sums are,
// whatever the parameter's strides.
at::Tensor ReplicaGradients::sum_tensor(std::size_t index) const {
  const auto& parameter = slices_[index].parameter;
  for (const auto& whole : parameters_.whole.items) {
    if (whole.name == names_[index] && whole.gradient.defined()) {
      return whole.gradient.view({-1}).narrow(
          0, whole.slice_begin, parameter.numel());
    }
  }
  const auto& gradient = parameter.grad();
  return gradient.defined() && gradient.layout() == at::kStrided &&
          gradient.is_contiguous()
      ? gradient
      : at::empty(parameter.sizes(), parameter.options().requires_grad(false));
}

void ReplicaGradients::show(int bucket, const float* sum) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    if (layout_.bucket_of(i) != bucket) {
      continue;
    }
    auto& slice = slices_[i];
    if (sum[layout_.mark_of(i)] == 0.F) {
      slice.parameter.mutable_grad() = at::Tensor();
      continue;
    }
    if (!slice.sum.defined()) {
      slice.sum = sum_tensor(i);
    }
    copy_from_host(sum + layout_.begin_of(i), slice.sum);
    slice.parameter.mutable_grad() = slice.sum;
  }
  shown_ = device::Stream::current(device_).record();
}

void ReplicaGradients::clear() {
  for (const auto& slice : slices_) {
    slice.parameter.mutable_grad() = at::Tensor();
  }
  std::exchange(shown_, {}).synchronize();
}

}  // namespace sherd::ft
