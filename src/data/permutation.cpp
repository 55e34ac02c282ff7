// SPDX-License-Identifier: Apache-2.0
#include "data/permutation.h"

#include <bit>
#include "base/check.h"
#include "base/hash.h"

namespace sherd::data {

Permutation::Permutation(std::int64_t size, std::uint64_t key)
    : size_(static_cast<std::uint64_t>(size)), half_bits_(1), round_keys_{} {
  SHERD_ASSERT(size >= 1, "a permutation of nothing");
  const auto bits = static_cast<unsigned>(std::bit_width(size_ - 1));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
  for (auto& round_key : round_keys_) {
    key = mix64(key);
    round_key = key;
  }
}

// A Feistel network: each round can be undone whatever mix64 returns, so the whole is a bijection
// of [0, 4^half_bits).
std::uint64_t Permutation::encrypt(std::uint64_t x) const {
  const std::uint64_t mask = (1ULL << half_bits_) - 1;
  std::uint64_t left = x >> half_bits_;
  std::uint64_t right = x & mask;
  for (const auto round_key : round_keys_) {
    const std::uint64_t mixed = left ^ (mix64(right ^ round_key) & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

// Walks the cycle until it is back inside [0, size). It must come back, because it started there,
// and two starts never meet. The range of the network is less than 4 sizes (8 for the smallest), so
// at most that many steps are expected.
std::int64_t Permutation::at(std::int64_t index) const {
  auto x = static_cast<std::uint64_t>(index);
  SHERD_ASSERT(x < size_, "index outside the permutation");
  do {
    x = encrypt(x);
  } while (x >= size_);
  return static_cast<std::int64_t>(x);
}

}  // namespace sherd::data
