// SPDX-License-Identifier: Apache-2.0
#include "device/last_use.h"

namespace sherd::device {
namespace {

bool contains(const Place& outer, const Place& inner) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

bool overlap(const Place& a, const Place& b) {
  return a.begin < b.end && b.begin < a.end;
}

}  // namespace

void LastUse::record(const Place& place, const Stream& stream) {
  if (stream.is_null() || place.begin == place.end) {
    return;
  }
  const std::lock_guard lock(mu_);
  // Taken under the lock: of two threads that record the same stream, the later entry then has the
  // later moment, which includes the earlier ones of the stream.
  const auto until = stream.record();
  std::erase_if(uses_, [&](const Use& use) {
    return use.stream == stream && contains(place, use.place);
  });
  uses_.push_back({place, stream, until});
}

void LastUse::wait(const Place& place, const Stream& stream) const {
  if (stream.is_null()) {
    return;
  }
  const std::lock_guard lock(mu_);
  for (const auto& use : uses_) {
    if (!(use.stream == stream) && overlap(use.place, place)) {
      stream.wait(use.until);
    }
  }
}

void LastUse::forget(const Place& place) {
  const std::lock_guard lock(mu_);
  std::erase_if(
      uses_, [&](const Use& use) { return contains(place, use.place); });
}

void LastUse::clear() {
  const std::lock_guard lock(mu_);
  uses_.clear();
}

std::size_t LastUse::size() const {
  const std::lock_guard lock(mu_);
  return uses_.size();
}

}  // namespace sherd::device
