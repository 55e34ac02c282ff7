// SPDX-License-Identifier: Apache-2.0
//
// Hash64 is a fingerprint of fields: it folds integers and short texts into 64 bits, the same on
// every machine (FNV-1a with a final mix). Fingerprints are stored on disk and decide the order of
// data, so the function never changes. For digests of large memory use base/digest.h. It does not
// detect deliberate changes. Thread rule: a value.
#pragma once

#include <cstdint>
#include <string_view>

namespace sherd {

// A bijection that spreads every input bit over the word (the finaliser of SplitMix64, Steele, Lea,
// Flood 2014).
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31U);
}

class Hash64 {
 public:
  Hash64& add(std::string_view bytes) {
    add(static_cast<std::uint64_t>(bytes.size()));
    for (const char c : bytes) {
      state_ = (state_ ^ static_cast<unsigned char>(c)) * kPrime;
    }
    return *this;
  }
  Hash64& add(std::uint64_t word) {
    state_ = (state_ ^ mix64(word)) * kPrime;
    return *this;
  }
  std::uint64_t value() const { return mix64(state_); }

 private:
  static constexpr std::uint64_t kPrime = 0x100000001b3ULL;
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

// The fingerprint of the fields of a list, in order.
template <typename List>
std::uint64_t hash_of(const List& fields) {
  Hash64 hash;
  for (const auto& field : fields) {
    hash.add(field);
  }
  return hash.value();
}

}  // namespace sherd
