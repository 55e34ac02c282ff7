// SPDX-License-Identifier: Apache-2.0
//
// Decodes any bytes as a task and as an event: each is either refused with a sentence or encoded
// again as the same bytes. The same holds for the bytes of real messages of which some are damaged;
// undamaged ones are always accepted. Nothing is thrown.
#include "ft/replica/rank_messages.h"

#include <cstdint>
#include <string>
#include "ft/replica/rank_messages_testing.h"
#include "support/round_trip.h"

namespace sherd::ft {
namespace {

using sherd::test::check_damaged;
using sherd::test::comes_back;

void check_bytes(const std::string& bytes) {
  (void)comes_back<rank_task_of>(bytes);
  (void)comes_back<event_of>(bytes);
}

void check_messages(sherd::test::FuzzBytes input) {
  test::RandomMessages random(input.seed());
  check_damaged(
      bytes_of(random_rank_task(random)), comes_back<rank_task_of>, input);
  check_damaged(bytes_of(random_event(random)), comes_back<event_of>, input);
}

}  // namespace
}  // namespace sherd::ft

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using namespace sherd::ft;  // NOLINT(google-build-using-namespace)
  const std::string whole(data, data + size);
  check_bytes(whole);
  // Decodes each kind, cut to a length that a message without words and lists may have.
  constexpr std::size_t kLongest = 108;  // FetchedEvent's.
  const std::size_t cut = size > 0 ? data[0] % (kLongest + 1) : 0;
  for (char kind = 0; kind < 16; ++kind) {
    check_bytes(kind + whole.substr(0, cut));
  }
  check_messages(sherd::test::FuzzBytes({data, size}));
  return 0;
}
