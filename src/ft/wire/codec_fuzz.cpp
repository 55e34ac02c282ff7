// SPDX-License-Identifier: Apache-2.0
//
// Any bytes are a report, an order and a record: each is refused with a sentence,
// or is written again as the same bytes. Nothing is thrown.
#include "ft/wire/codec.h"

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
  // As it is, and after the version, which few inputs would begin with.
  const std::string whole(data, data + size);
  for (const std::string& bytes : {whole, std::string("\x01\0", 2) + whole}) {
    check(report_of(bytes), bytes);
    check(order_of(bytes), bytes);
    check(record_of(bytes), bytes);
  }
  return 0;
}
