// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sherd::ft::transfer {

// Its alignment is the type's own, which new respects.
struct RunningDigest::State {
  XXH3_state_t xxh3;
};

std::uint64_t digest_of(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

RunningDigest::RunningDigest() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->xxh3);
}

RunningDigest::~RunningDigest() = default;

void RunningDigest::add(std::string_view bytes) {
  XXH3_64bits_update(&state_->xxh3, bytes.data(), bytes.size());
  count_ += bytes.size();
}

std::uint64_t RunningDigest::value() const {
  return XXH3_64bits_digest(&state_->xxh3);
}

}  // namespace sherd::ft::transfer
