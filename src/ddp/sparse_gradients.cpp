// SPDX-License-Identifier: Apache-2.0
#include "ddp/sparse_gradients.h"

#include <cstring>
#include <vector>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/copy_bytes.h"
#include "device/host_memory.h"
#include "world/collectives.h"

namespace sherd::ddp {
namespace {

at::Tensor sparse_of(
    const at::Tensor& indices,
    const at::Tensor& values,
    at::IntArrayRef sizes) {
  return at::_sparse_coo_tensor_unsafe(indices, values, sizes);
}

// The gradient, coalesced, on the CPU; the host waits for a device.
at::Tensor coalesced_on_host(const at::Tensor& gradient) {
  if (gradient.is_cpu()) {
    return gradient.coalesce();
  }
  return sparse_of(
             device::on_host(gradient._indices()),
             device::on_host(gradient._values()), gradient.sizes())
      .coalesce();
}

// The number of entries, their indices, their values; empty: no gradient.
std::string packed(const at::Tensor& any) {
  if (!any.defined()) {
    return {};
  }
  const auto gradient = coalesced_on_host(any);
  const auto indices = gradient.indices().contiguous();
  const auto values = gradient.values().contiguous();
  const std::int64_t entries = indices.size(1);
  std::string text(sizeof entries + indices.nbytes() + values.nbytes(), '\0');
  std::memcpy(text.data(), &entries, sizeof entries);
  copy_bytes(
      text.data() + sizeof entries, indices.const_data_ptr(), indices.nbytes());
  copy_bytes(
      text.data() + sizeof entries + indices.nbytes(), values.const_data_ptr(),
      values.nbytes());
  return text;
}

struct Entries {
  at::Tensor indices;  // [1, entries]
  at::Tensor values;   // [entries, ...]
};

Entries unpacked(const std::string& text, const at::Tensor& like) {
  std::int64_t entries = 0;
  std::memcpy(&entries, text.data(), sizeof entries);
  auto sizes = like.sizes().vec();
  sizes[0] = entries;
  Entries found = {
      at::empty({1, entries}, at::kLong), at::empty(sizes, like.scalar_type())};
  SHERD_ASSERT(
      text.size() ==
      sizeof entries + found.indices.nbytes() + found.values.nbytes());
  const char* at = text.data() + sizeof entries;
  copy_bytes(found.indices.mutable_data_ptr(), at, found.indices.nbytes());
  copy_bytes(
      found.values.mutable_data_ptr(), at + found.indices.nbytes(),
      found.values.nbytes());
  return found;
}

}  // namespace

Result<at::Tensor> sum_sparse(
    const at::Tensor& mine,
    const at::Tensor& like,
    double scale,
    world::Transport& via,
    const std::string& name) {
  const auto all = world::Collectives(via, "the sparse gradient of " + name)
                       .all_gather_texts(packed(mine));
  SHERD_RETURN_IF_FAILED(all.status());
  std::vector<at::Tensor> indices;
  std::vector<at::Tensor> values;
  for (const auto& text : all.value()) {
    if (!text.empty()) {
      auto entries = unpacked(text, like);
      indices.push_back(std::move(entries.indices));
      values.push_back(std::move(entries.values));
    }
  }
  if (indices.empty()) {
    return at::Tensor();
  }
  const auto sum = sparse_of(at::cat(indices, 1), at::cat(values), like.sizes())
                       .coalesce()
                       .mul(scale);
  return like.is_cpu() ? sum
                       : sparse_of(
                             sum.indices().to(like.device()),
                             sum.values().to(like.device()), like.sizes())
                             ._coalesced_(true);
}

}  // namespace sherd::ddp
