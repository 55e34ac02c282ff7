// SPDX-License-Identifier: Apache-2.0
//
// Parses any bytes as each message of a transfer: they are either refused with a sentence or
// written again as the same bytes. The same holds for the bytes of real messages of which some are
// damaged; undamaged ones are always accepted. Nothing is thrown.
#include <cstdint>
#include <string>
#include "ft/transfer/transfer_messages.h"
#include "ft/transfer/transfer_messages_testing.h"
#include "support/round_trip.h"

namespace sherd::ft::transfer {
namespace {

using sherd::test::check_damaged;
using sherd::test::comes_back;

// It is a number, which has no bytes_of().
bool request_comes_back(const std::string& bytes) {
  const auto place = chunk_request_of(bytes);
  SHERD_ASSERT(place.ok() || !place.status().message().empty(), "no reason");
  SHERD_ASSERT(
      !place.ok() || chunk_request(place.value()) == bytes,
      "not what was read");
  return place.ok();
}

void check_bytes(const std::string& bytes) {
  (void)comes_back<request_of>(bytes);
  (void)comes_back<refusal_of>(bytes);
  (void)comes_back<answer_of>(bytes);
  (void)request_comes_back(bytes);
  (void)comes_back<chunk_of>(bytes);
}

void check_messages(sherd::test::FuzzBytes input) {
  test::RandomMessages random(input.seed());
  check_damaged(
      bytes_of(random_request(random)), comes_back<request_of>, input);
  check_damaged(
      bytes_of(random_refusal(random)), comes_back<refusal_of>, input);
  check_damaged(bytes_of(random_answer(random)), comes_back<answer_of>, input);
  check_damaged(chunk_request(random.word()), request_comes_back, input);
  const std::string text = random.text();
  check_damaged(
      bytes_of(Chunk{random.word(), random.word(), text}), comes_back<chunk_of>,
      input);
}

}  // namespace
}  // namespace sherd::ft::transfer

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using namespace sherd::ft::transfer;  // NOLINT(google-build-using-namespace)
  // Parsed unchanged, and with a version in front, which few inputs would begin with.
  const std::string whole(data, data + size);
  check_bytes(whole);
  check_bytes(sherd::test::with_version(kTransferVersion, whole));
  check_messages(sherd::test::FuzzBytes({data, size}));
  return 0;
}
