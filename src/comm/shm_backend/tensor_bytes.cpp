// SPDX-License-Identifier: Apache-2.0
#include "comm/shm_backend/tensor_bytes.h"

#include <algorithm>
#include <utility>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include "base/check.h"

namespace sherd::comm::shm {
namespace {

void check(const at::Tensor& tensor) {
  SHERD_CHECK(
      tensor.defined() && tensor.device().is_cpu() &&
          tensor.layout() == c10::kStrided,
      "[comm] shm moves dense tensors of the CPU, found ",
      tensor.defined() ? tensor.toString() : std::string("an undefined one"));
}

}  // namespace

TensorBytes::TensorBytes(at::Tensor tensor, at::Tensor dense)
    : tensor_(std::move(tensor)), dense_(std::move(dense)) {}

TensorBytes TensorBytes::input(const at::Tensor& tensor) {
  check(tensor);
  return {tensor, tensor.contiguous()};
}

TensorBytes TensorBytes::in_place(const at::Tensor& tensor) {
  return input(tensor);
}

TensorBytes TensorBytes::output(const at::Tensor& tensor) {
  check(tensor);
  return {
      tensor,
      tensor.is_contiguous()
          ? tensor
          : at::empty_like(tensor, at::MemoryFormat::Contiguous)};
}

Bytes TensorBytes::bytes() const {
  return {
      static_cast<std::byte*>(dense_.data_ptr()),
      static_cast<std::size_t>(dense_.nbytes())};
}

void TensorBytes::give_back() const {
  if (!dense_.is_same(tensor_)) {
    const c10::NoGradGuard no_grad;
    tensor_.copy_(dense_);
  }
}

std::vector<TensorBytes> inputs_of(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorBytes> all;
  for (const auto& tensor : tensors) {
    all.push_back(TensorBytes::input(tensor));
  }
  return all;
}

std::vector<TensorBytes> outputs_of(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorBytes> all;
  for (const auto& tensor : tensors) {
    all.push_back(TensorBytes::output(tensor));
  }
  return all;
}

std::vector<Bytes> bytes_of(const std::vector<TensorBytes>& tensors) {
  std::vector<Bytes> all;
  for (const auto& tensor : tensors) {
    all.push_back(tensor.bytes());
  }
  return all;
}

std::vector<Bytes> cut(Bytes whole, int parts) {
  const std::size_t each = whole.size() / static_cast<std::size_t>(parts);
  std::vector<Bytes> all;
  for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p) {
    all.push_back(whole.subspan(p * each, each));
  }
  return all;
}

std::vector<Bytes> cut_elements(
    Bytes whole, std::size_t element_bytes, int parts) {
  const auto count = static_cast<std::size_t>(parts);
  // A part of less than a line would have ranks write to one line.
  const std::size_t unit = std::max(element_bytes, kCacheLine);
  const std::size_t units = (whole.size() + unit - 1) / unit;
  const std::size_t each = (units + count - 1) / count * unit;
  std::vector<Bytes> all;
  for (std::size_t p = 0; p < count; ++p) {
    const std::size_t begin = std::min(p * each, whole.size());
    all.push_back(whole.subspan(begin, std::min(each, whole.size() - begin)));
  }
  return all;
}

}  // namespace sherd::comm::shm
