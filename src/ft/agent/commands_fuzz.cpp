// SPDX-License-Identifier: Apache-2.0
//
// Any bytes are a command and an event: each is refused with a sentence, or is
// written again as the same bytes. Nothing is thrown.
#include "ft/agent/commands.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include "base/check.h"

namespace sherd::ft {
namespace {

template <typename T>
void check(const Result<T>& result, const std::string& bytes) {
  if (!result.ok()) {
    SHERD_ASSERT(!result.status().message().empty(), "no reason");
    return;
  }
  SHERD_ASSERT(bytes_of(result.value()) == bytes, "not what was read");
}

}  // namespace
}  // namespace sherd::ft

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using namespace sherd::ft;  // NOLINT(google-build-using-namespace)
  const std::string whole(data, data + size);
  // As it is, and as each kind, cut to every length that one may have.
  check(command_of(whole), whole);
  check(event_of(whole), whole);
  constexpr std::size_t kLongest = 100;
  for (char kind = 0; kind < 16; ++kind) {
    for (std::size_t bytes = 0; bytes <= std::min(whole.size(), kLongest);
         ++bytes) {
      const std::string one = kind + whole.substr(0, bytes);
      check(command_of(one), one);
      check(event_of(one), one);
    }
  }
  return 0;
}
