// SPDX-License-Identifier: Apache-2.0
#include "exchange/device_collectives.h"

#include <numeric>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sherd::exchange {
namespace {

constexpr std::int64_t kAlignmentBytes = 64;

void mean_for_all(const BackendPtr& backend, const at::Tensor& tensor) {
  const double scale = 1.0 / backend->getSize();
  // A sum of fp16 may be too large for it where the mean is not.
  const bool scales_first = tensor.scalar_type() == at::kHalf;
  if (scales_first) {
    tensor.mul_(scale);
  }
  sum_for_all(backend, tensor);
  if (!scales_first) {
    tensor.mul_(scale);
  }
}

// What several tensors like this one, one after the other, consist of, so that each begins as a tensor
// of its own does and can be viewed in another dtype.
at::Tensor aligned(const at::Tensor& flat) {
  const auto block =
      kAlignmentBytes / static_cast<std::int64_t>(flat.element_size());
  const auto numel = (flat.numel() + block - 1) / block * block;
  if (numel == flat.numel()) {
    return flat;
  }
  auto padded = at::empty({numel}, flat.options());
  padded.narrow(0, 0, flat.numel()).copy_(flat);
  return padded;
}

}  // namespace

DeviceCollectives::DeviceCollectives(
    c10::Device device, BackendPtr all, Connect connect)
    : device_(device), all_(std::move(all)), connect_(std::move(connect)) {}

DeviceCollectives::~DeviceCollectives() = default;

void DeviceCollectives::all_reduce_mean(const at::Tensor& tensor) {
  mean_for_all(all_, tensor);
}

void DeviceCollectives::all_reduce_mean(
    const at::Tensor& tensor, const std::vector<int>& members) {
  if (members.size() > 1) {
    mean_for_all(among(members), tensor);
  }
}

void DeviceCollectives::reduce_scatter_mean(
    const at::Tensor& tensor, const std::vector<std::int64_t>& cuts) {
  plan::FlatLayout layout;
  layout.numel = tensor.numel();
  layout.cuts = cuts;
  const auto range = layout.shard(all_->getRank());
  const auto own = tensor.narrow(0, range.begin, range.numel());
  const double scale = 1.0 / all_->getSize();
  const bool scales_first = tensor.scalar_type() == at::kHalf;
  const auto sum =
      sum_for_owner(all_, layout, scales_first ? tensor.mul(scale) : tensor);
  if (!sum.is_alias_of(tensor)) {
    own.copy_(sum);
  }
  if (!scales_first) {
    own.mul_(scale);
  }
}

std::vector<at::Tensor> DeviceCollectives::all_gather(
    const at::Tensor& tensor) {
  const auto flat = tensor.detach().view({-1});
  auto input = aligned(flat);
  auto whole = at::empty({all_->getSize() * input.numel()}, flat.options());
  if (flat.numel() > 0) {
    c10d::AllgatherOptions options;
    options.asyncOp = false;
    all_->_allgather_base(whole, input, options);
  }
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < all_->getSize(); ++rank) {
    all.push_back(whole.narrow(0, rank * input.numel(), flat.numel())
                      .view(tensor.sizes()));
  }
  return all;
}

std::vector<at::Tensor> DeviceCollectives::all_to_all(
    const std::vector<at::Tensor>& to,
    const std::vector<std::int64_t>& numels) {
  std::vector<std::int64_t> sent;
  for (const auto& tensor : to) {
    sent.push_back(tensor.numel());
  }
  auto received = numels;
  auto input = at::cat(to);
  auto output = at::empty(
      {std::accumulate(numels.begin(), numels.end(), std::int64_t{0})},
      input.options());
  c10d::AllToAllOptions options;
  options.asyncOp = false;
  all_->alltoall_base(output, input, received, sent, options);
  return output.split_with_sizes(numels);
}

BackendPtr DeviceCollectives::among(const std::vector<int>& members) {
  if (members.size() == static_cast<std::size_t>(all_->getSize())) {
    return all_;
  }
  {
    const std::lock_guard lock(mu_);
    if (const auto found = some_.find(members); found != some_.end()) {
      return found->second;
    }
  }
  auto made = connect_(members);
  const std::lock_guard lock(mu_);
  return some_.emplace(members, std::move(made)).first->second;
}

void DeviceCollectives::abort() {
  all_->abort();
  const std::lock_guard lock(mu_);
  for (const auto& [members, backend] : some_) {
    backend->abort();
  }
}

}  // namespace sherd::exchange
