// SPDX-License-Identifier: Apache-2.0
//
// Any bytes are a report, an order and a record: each is refused with a sentence,
// or is written again as the same bytes. Nothing is thrown.
#include "ft/wire/codec.h"

#include <cstdint>
#include <string>
#include "support/round_trip.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using sherd::test::check_round_trip;
  using namespace sherd::ft;  // NOLINT(google-build-using-namespace)
  // As it is, and after the version.
  const std::string whole(data, data + size);
  for (const std::string& bytes :
       {whole, sherd::test::with_version(kCodecVersion, whole)}) {
    check_round_trip(report_of(bytes), bytes);
    check_round_trip(order_of(bytes), bytes);
    check_round_trip(record_of(bytes), bytes);
  }
  return 0;
}
