// SPDX-License-Identifier: Apache-2.0
// The comparison of two checkpoints.
#include <algorithm>
#include <cstring>
#include <limits>

#include <sherd/ckpt/checkpoint.h>

#include <ATen/TensorOperators.h>

#include "ckpt/dtypes.h"
#include "ckpt/progress.h"
#include "ckpt/reader.h"

namespace sherd {
namespace {

using Changed = CheckpointDifference::Tensor;

constexpr double kFar = std::numeric_limits<double>::infinity();
constexpr std::int64_t kChunk = std::int64_t{1} << 20;  // Elements.

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() &&
      (a.nbytes() == 0 ||  // There may be no memory then.
       std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

// NaNs count as equal to each other, and as infinitely far from numbers.
void add_differences(
    const at::Tensor& first, const at::Tensor& second, Changed& changed) {
  const bool complex = first.is_complex() || second.is_complex();
  const auto wide = complex ? c10::kComplexDouble : c10::kDouble;
  for (std::int64_t at = 0; at < first.numel(); at += kChunk) {
    const auto count = std::min(kChunk, first.numel() - at);
    const auto a = first.narrow(0, at, count).to(wide);
    const auto b = second.narrow(0, at, count).to(wide);
    const auto differ = a.ne(b).logical_and(a.eq(a).logical_or(b.eq(b)));
    changed.elements += differ.sum().item<std::int64_t>();
    const auto distance = (a - b)
                              .abs()
                              .nan_to_num(kFar, kFar)
                              .masked_fill(differ.logical_not(), 0.0);
    changed.largest_difference =
        std::max(changed.largest_difference, distance.max().item<double>());
  }
}

}  // namespace

bool CheckpointDifference::none() const {
  return only_in_first.empty() && only_in_second.empty() && changed.empty() &&
      values.empty();
}

CheckpointDifference compare_checkpoints(
    const std::string& first,
    const std::string& second,
    const CheckpointProgress& progress) {
  const ckpt::CheckpointReader a(first);
  const ckpt::CheckpointReader b(second);
  CheckpointDifference difference;
  ckpt::ProgressMeter meter(progress, a.tensor_bytes());
  for (const auto& [key, tensor] : a.tensors()) {
    const auto bytes =
        ckpt::numel_of(tensor.shape) * ckpt::element_bytes(tensor.dtype);
    const auto other = b.tensors().find(key);
    if (other == b.tensors().end()) {
      difference.only_in_first.push_back(key.text());
      meter.add(bytes);
      continue;
    }
    Changed changed{
        .section = key.section,
        .name = key.name,
        .dtypes = {tensor.dtype, other->second.dtype},
        .shapes = {tensor.shape, other->second.shape}};
    if (tensor.shape == other->second.shape) {
      const auto left = a.read_whole(key).view({-1});
      const auto right = b.read_whole(key).view({-1});
      if (same_bits(left, right)) {
        ++difference.equal;
        meter.add(bytes);
        continue;
      }
      add_differences(left, right, changed);
    }
    difference.changed.push_back(std::move(changed));
    meter.add(bytes);
  }
  for (const auto& [key, tensor] : b.tensors()) {
    if (!a.tensors().contains(key)) {
      difference.only_in_second.push_back(key.text());
    }
  }
  auto values = b.manifest().values;
  for (const auto& [name, value] : a.manifest().values) {
    const auto other = values.find(name);
    if (other == values.end() || other->second != value) {
      difference.values.push_back(name);
    }
    values.erase(name);
  }
  for (const auto& [name, value] : values) {
    difference.values.push_back(name);
  }
  return difference;
}

}  // namespace sherd
