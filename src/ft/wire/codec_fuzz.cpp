// SPDX-License-Identifier: Apache-2.0
//
// Any bytes are a report, an order and a record: each is refused with a sentence,
// or is written again as the same bytes. So are the bytes of real ones of which
// some are damaged; if none is, they are read. Nothing is thrown.
#include "ft/wire/codec.h"

#include <cstdint>
#include <string>
#include "ft/wire/messages_testing.h"
#include "support/round_trip.h"

namespace sherd::ft {
namespace {

using sherd::test::check_damaged;
using sherd::test::comes_back;

void check_bytes(const std::string& bytes) {
  (void)comes_back<report_of>(bytes);
  (void)comes_back<run_view_of>(bytes);
  (void)comes_back<record_of>(bytes);
}

void check_messages(sherd::test::FuzzBytes input) {
  test::RandomMessages random(input.seed());
  check_damaged(bytes_of(random.report()), comes_back<report_of>, input);
  check_damaged(bytes_of(random.view()), comes_back<run_view_of>, input);
  check_damaged(bytes_of(random.record()), comes_back<record_of>, input);
}

}  // namespace
}  // namespace sherd::ft

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using namespace sherd::ft;  // NOLINT(google-build-using-namespace)
  // As it is, and after the version.
  const std::string whole(data, data + size);
  check_bytes(whole);
  check_bytes(sherd::test::with_version(kCodecVersion, whole));
  check_messages(sherd::test::FuzzBytes({data, size}));
  return 0;
}
