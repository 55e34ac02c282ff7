// SPDX-License-Identifier: Apache-2.0
#include "net/bytes.h"

#include <limits>
#include "base/check.h"

namespace sherd::net {

void ByteWriter::count(std::size_t elements) {
  SHERD_CHECK(
      elements <= std::numeric_limits<std::uint32_t>::max(),
      "[net] expected a length that fits in 32 bits, found ", elements);
  put(static_cast<std::uint32_t>(elements));
}

void ByteWriter::text(std::string_view value) {
  count(value.size());
  raw(value);
}

void ByteReader::fail(std::string reason) {
  if (ok()) {
    SHERD_ASSERT(!reason.empty());
    failure_ = std::move(reason);
  }
}

void ByteReader::fail_short(const char* what, std::size_t count) {
  if (ok()) {
    fail(
        str("expected ", count, " bytes of ", what, " at offset ", at_,
            ", found ", left()));
  }
}

bool ByteReader::boolean(const char* what) { return choice(what, 1) == 1; }

std::uint8_t ByteReader::choice(const char* what, std::uint8_t last) {
  const std::uint8_t value = u8(what);
  if (value > last) {
    fail(str(
        "expected at most ", int{last}, " as ", what, ", found ", int{value}));
    return 0;
  }
  return value;
}

std::size_t ByteReader::count(const char* what, const Limits& limits) {
  SHERD_ASSERT(limits.element_bytes > 0);
  const std::size_t elements = u32(what);
  if (elements > limits.elements_max) {
    fail(
        str("expected at most ", limits.elements_max, " ", what, ", found ",
            elements));
    return 0;
  }
  // A division, since a product might overflow.
  if (elements > left() / limits.element_bytes) {
    fail(
        str("expected ", elements, " ", what, " of at least ",
            limits.element_bytes, " bytes each, found ", left(), " bytes"));
    return 0;
  }
  return elements;
}

std::string ByteReader::text(const char* what, std::size_t bytes_max) {
  const std::size_t length = u32(what);
  if (length > bytes_max) {
    fail(
        str("expected at most ", bytes_max, " bytes of ", what, ", found ",
            length));
    return {};
  }
  return std::string(raw(what, length));
}

Status ByteReader::finish(const std::string& message) {
  if (left() > 0) {
    fail(str(
        "expected the end at offset ", at_, ", found ", left(), " bytes more"));
  }
  if (ok()) {
    return {};
  }
  return {ErrorCode::kPeerMismatch, str("[net] ", message, ": ", failure_)};
}

}  // namespace sherd::net
