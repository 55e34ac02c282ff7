// SPDX-License-Identifier: Apache-2.0
//
// Any bytes are a command and an event: each is refused with a sentence, or is
// written again as the same bytes. Nothing is thrown.
#include "ft/agent/commands.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include "support/round_trip.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using sherd::test::check_round_trip;
  using namespace sherd::ft;  // NOLINT(google-build-using-namespace)
  const std::string whole(data, data + size);
  // As it is, and as each kind, cut to every length that one may have.
  check_round_trip(command_of(whole), whole);
  check_round_trip(event_of(whole), whole);
  constexpr std::size_t kLongest = 100;
  for (char kind = 0; kind < 16; ++kind) {
    for (std::size_t bytes = 0; bytes <= std::min(whole.size(), kLongest);
         ++bytes) {
      const std::string one = kind + whole.substr(0, bytes);
      check_round_trip(command_of(one), one);
      check_round_trip(event_of(one), one);
    }
  }
  return 0;
}
