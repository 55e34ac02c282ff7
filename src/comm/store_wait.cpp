// SPDX-License-Identifier: Apache-2.0
#include "comm/store_wait.h"

#include <algorithm>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/exception.h>

namespace sherd::comm {

bool wait_for_key(
    c10d::Store& store,
    const std::string& key,
    std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kSlice(250);
  // Zero means "for ever" to a store.
  const auto limit =
      std::clamp(timeout, std::chrono::milliseconds(1), kSlice);
  try {
    store.wait({key}, limit);
    return true;
  } catch (const c10::DistError&) {
    // A wait that timed out and a lost store are the same type in some
    // versions; asking again tells them apart, because this throws when lost.
    return store.check({key});
  }
}

std::string first_line_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace sherd::comm
