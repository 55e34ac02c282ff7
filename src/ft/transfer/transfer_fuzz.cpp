// SPDX-License-Identifier: Apache-2.0
//
// Any bytes are each message of a transfer: they are refused with a sentence, or
// written again as the same bytes. Nothing is thrown.
#include <cstdint>
#include <string>
#include "base/check.h"
#include "ft/transfer/transfer_messages.h"

namespace sherd::ft::transfer {
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
}  // namespace sherd::ft::transfer

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using namespace sherd::ft::transfer;  // NOLINT(google-build-using-namespace)
  // As it is, and after the version, which few inputs would begin with.
  const std::string whole(data, data + size);
  for (const std::string& bytes : {whole, std::string("\x02\0", 2) + whole}) {
    check(request_of(bytes), bytes);
    check(refusal_of(bytes), bytes);
    check(answer_of(bytes), bytes);
    check(want_chunk_of(bytes), bytes);
    check(chunk_of(bytes), bytes);
  }
  return 0;
}
