// SPDX-License-Identifier: Apache-2.0
//
// Compares tensors between ranks by digests: each rank reads its tensors once, and only a few bytes
// are sent. The first difference is named. It finds mistakes, not attacks. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/world/world.h>

namespace sherd::world {

struct NamedDigest {
  std::string name;  // For example "parameter 0.weight"; no line breaks.
  std::uint64_t digest = 0;
  bool operator==(const NamedDigest&) const = default;
};

// A hash of dtype, shape and the bytes of the elements in C order: equal for equal tensors whatever
// their strides.
std::uint64_t digest_of(const at::Tensor& tensor);

// A sentence about the first name whose digests differ between ranks, or that not all ranks have in
// this place; empty if there is none. Pure.
std::string difference_of(const std::vector<std::vector<NamedDigest>>& by_rank);

// Collective: compares the ranks of `world`, and returns the same sentence on every rank.
std::string difference_between(
    const World& world, const std::vector<NamedDigest>& mine);

}  // namespace sherd::world
