// SPDX-License-Identifier: Apache-2.0
//
// Any bytes are each message of a transfer: they are refused with a sentence, or
// written again as the same bytes. Nothing is thrown.
#include <cstdint>
#include <string>
#include "ft/transfer/transfer_messages.h"
#include "support/round_trip.h"

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using sherd::test::check_round_trip;
  using namespace sherd::ft::transfer;  // NOLINT(google-build-using-namespace)
  // As it is, and after the version, which few inputs would begin with.
  const std::string whole(data, data + size);
  for (const std::string& bytes :
       {whole, sherd::test::with_version(kTransferVersion, whole)}) {
    check_round_trip(request_of(bytes), bytes);
    check_round_trip(refusal_of(bytes), bytes);
    check_round_trip(answer_of(bytes), bytes);
    check_round_trip(want_chunk_of(bytes), bytes);
    check_round_trip(chunk_of(bytes), bytes);
  }
  return 0;
}
