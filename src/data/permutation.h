// SPDX-License-Identifier: Apache-2.0
//
// Permutation shuffles [0, size) without a table: any element of any shuffle is computed by itself,
// in constant memory, so a run can start at any step. Thread rule: a value, any thread.
#pragma once

#include <array>
#include <cstdint>

namespace sherd::data {

class Permutation {
 public:
  // REQUIRES: size >= 1. The same key gives the same order on every machine.
  Permutation(std::int64_t size, std::uint64_t key);

  // REQUIRES: 0 <= index < size. Distinct indices give distinct results in [0, size).
  std::int64_t at(std::int64_t index) const;

 private:
  std::uint64_t encrypt(std::uint64_t x) const;

  std::uint64_t size_;
  unsigned half_bits_;
  std::array<std::uint64_t, 6> round_keys_;
};

}  // namespace sherd::data
