// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/tensor_bytes.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>
#include "base/check.h"

namespace sherd::c10d_shm {
namespace {

void check(const at::Tensor& tensor) {
  SHERD_CHECK(
      tensor.defined() && tensor.device().is_cpu() &&
          tensor.layout() == c10::kStrided,
      "[c10d_shm] shm moves dense tensors of the CPU, found ",
      tensor.defined() ? tensor.toString() : std::string("an undefined one"));
}

void check_written(const at::Tensor& tensor) {
  check(tensor);
  SHERD_CHECK(
      tensor.numel() == 0 ||
          at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
      "[c10d_shm] expected an output with a place for each element, found ",
      tensor.toString(), " of sizes ", tensor.sizes(), " and strides ",
      tensor.strides(), ", as of expand(); clone() it before");
}

// Whether the bytes at its address are its elements in order: not if it has gaps, or is the
// conjugate or the negative of what lies there.
bool is_dense_in_memory(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor copy_of(const at::Tensor& tensor, bool with_content) {
  auto copy = at::empty_like(
      tensor, tensor.options().requires_grad(false),
      at::MemoryFormat::Contiguous);
  if (with_content) {
    copy.copy_(tensor);
  }
  return copy;
}

// Where results for `tensor` are written.
at::Tensor written_for(
    const at::Tensor& tensor, WriteTiming writes, bool with_content) {
  check_written(tensor);
  const c10::InferenceMode any_thread;
  return writes == WriteTiming::kDirectly && is_dense_in_memory(tensor)
      ? tensor
      : copy_of(tensor, with_content);
}

}  // namespace

TensorBytes::TensorBytes(at::Tensor tensor, at::Tensor dense)
    : tensor_(std::move(tensor)), dense_(std::move(dense)) {}

// Copies are made in inference mode, which may write to all tensors: otherwise inference tensors
// refuse a thread outside inference mode, and leaves refuse one that records gradients. Versions of
// other tensors are counted up as usual.
TensorBytes TensorBytes::input(const at::Tensor& tensor) {
  check(tensor);
  const c10::InferenceMode any_thread;
  return {tensor, is_dense_in_memory(tensor) ? tensor : copy_of(tensor, true)};
}

TensorBytes TensorBytes::in_place(
    const at::Tensor& tensor, WriteTiming writes) {
  return {tensor, written_for(tensor, writes, /*with_content=*/true)};
}

TensorBytes TensorBytes::output(const at::Tensor& tensor, WriteTiming writes) {
  return {tensor, written_for(tensor, writes, /*with_content=*/false)};
}

Bytes TensorBytes::bytes() const {
  return {
      static_cast<std::byte*>(dense_.data_ptr()),
      static_cast<std::size_t>(dense_.nbytes())};
}

void TensorBytes::copy_back() const {
  if (!dense_.is_same(tensor_)) {
    const c10::InferenceMode any_thread;
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

std::vector<TensorBytes> outputs_of(
    const std::vector<at::Tensor>& tensors, WriteTiming writes) {
  std::vector<TensorBytes> all;
  for (const auto& tensor : tensors) {
    all.push_back(TensorBytes::output(tensor, writes));
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

std::vector<Bytes> pieces_of(
    const std::vector<TensorBytes>& tensors, int ranks) {
  return tensors.size() == 1 ? cut(tensors[0].bytes(), ranks)
                             : bytes_of(tensors);
}

Bytes extent_of(const at::Tensor& tensor) {
  check(tensor);
  if (tensor.numel() == 0) {
    return {};
  }
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
  }
  return {
      static_cast<std::byte*>(tensor.data_ptr()),
      (static_cast<std::size_t>(last) + 1) * tensor.element_size()};
}

Bytes extent_of_piece(
    const std::vector<at::Tensor>& tensors, int rank, int ranks) {
  const auto own = static_cast<std::size_t>(rank);
  return tensors.size() == 1 ? cut(extent_of(tensors[0]), ranks)[own]
                             : extent_of(tensors[own]);
}

void CallMemory::add(Bytes bytes, bool written) {
  if (!bytes.empty()) {
    ranges_.push_back({bytes.data(), bytes.data() + bytes.size(), written});
  }
}

void CallMemory::reads(const at::Tensor& tensor) {
  const Bytes bytes = extent_of(tensor);
  if (is_dense_in_memory(tensor)) {
    add(bytes, false);
  }
}

void CallMemory::reads_unless_at(const at::Tensor& tensor, Bytes own) {
  if (!same_place(extent_of(tensor), own)) {
    reads(tensor);
  }
}

void CallMemory::reads_pieces(
    const std::vector<at::Tensor>& tensors, int rank, Bytes own) {
  for (std::size_t r = 0; r < tensors.size(); ++r) {
    if (r == static_cast<std::size_t>(rank)) {
      reads_unless_at(tensors[r], own);
    } else {
      reads(tensors[r]);
    }
  }
}

void CallMemory::writes(const at::Tensor& tensor) {
  add(extent_of(tensor), true);
}

void CallMemory::writes(const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    writes(tensor);
  }
}

WriteTiming CallMemory::write_timing() const {
  auto ranges = ranges_;
  std::ranges::sort(ranges, [](const Range& a, const Range& b) {
    return std::less<>()(a.begin, b.begin);
  });
  // How far the ranges reach that begin earlier: all of them, and those that are written.
  const std::byte* any = nullptr;
  const std::byte* written = nullptr;
  for (const Range& range : ranges) {
    if (std::less<>()(range.begin, range.written ? any : written)) {
      return WriteTiming::kAtTheEnd;
    }
    any = std::max(any, range.end, std::less<>());
    if (range.written) {
      written = std::max(written, range.end, std::less<>());
    }
  }
  return WriteTiming::kDirectly;
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
  // With parts of less than a cache line, ranks would write to the same line.
  const std::size_t unit = std::max(element_bytes, shm::kCacheLine);
  const std::size_t units = (whole.size() + unit - 1) / unit;
  const std::size_t each = (units + count - 1) / count * unit;
  std::vector<Bytes> all;
  for (std::size_t p = 0; p < count; ++p) {
    const std::size_t begin = std::min(p * each, whole.size());
    all.push_back(whole.subspan(begin, std::min(each, whole.size() - begin)));
  }
  return all;
}

}  // namespace sherd::c10d_shm
