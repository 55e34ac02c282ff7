// SPDX-License-Identifier: Apache-2.0
//
// Parts of a model checker state that many states have in common, and the fingerprints that tell
// states apart. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include "base/hash.h"
#include "ft/protocol/model_words_testing.h"

namespace sherd::ft {

using StateWords = ModelAccess::StateWords;

struct Fingerprint {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  bool operator==(const Fingerprint&) const = default;
};
struct FingerprintHash {
  std::size_t operator()(const Fingerprint& one) const { return one.low; }
};

inline Fingerprint fingerprint_of(const StateWords& words) {
  std::uint64_t high = 0x9e3779b97f4a7c15ULL;
  std::uint64_t low = 0xcbf29ce484222325ULL;
  for (const auto word : words) {
    high = mix64(high ^ word);
    low = mix64(low + word * 0x9e3779b97f4a7c15ULL);
  }
  return {high, low};
}

// A part of a state, or none. Copies share it and its fingerprint until one of them is changed,
// since most events change one part out of many.
template <typename T>
class Shared {
 public:
  Shared() = default;
  Shared(T value) : part_(std::make_shared<Part>(Part{std::move(value), {}})) {}

  explicit operator bool() const { return part_ != nullptr; }
  const T& operator*() const { return part_->value; }
  const T* operator->() const { return &part_->value; }
  T& operator*() { return *own(); }
  T* operator->() { return own(); }
  void reset() { part_.reset(); }

  // `add` adds the words of the part. REQUIRES: there is a part.
  template <typename Add>
  const Fingerprint& fingerprint(Add add) const {
    if (!part_->fingerprint) {
      StateWords words;
      words.reserve(256);
      add(words, part_->value);
      part_->fingerprint = fingerprint_of(words);
    }
    return *part_->fingerprint;
  }

 private:
  struct Part {
    T value;
    std::optional<Fingerprint> fingerprint;
  };

  T* own() {
    if (part_.use_count() > 1) {
      part_ = std::make_shared<Part>(Part{part_->value, {}});
    }
    part_->fingerprint.reset();
    return &part_->value;
  }

  std::shared_ptr<Part> part_;
};

}  // namespace sherd::ft
