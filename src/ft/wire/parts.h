// SPDX-License-Identifier: Apache-2.0
//
// The frame of a message of parts: version, mask, parts in the order of their bits, and at its end
// what later versions may have added. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include "base/check.h"
#include "base/status.h"
#include "ft/wire/codec.h"
#include "ft/wire/fields.h"

namespace sherd::ft::wire {

using PartMask = std::uint32_t;

constexpr PartMask bit(std::size_t part) { return PartMask{1} << part; }
constexpr PartMask all_parts(std::size_t count) { return bit(count) - 1; }

inline void begin_message(FieldWriter& writer, PartMask mask) {
  writer.out.u16(kWireVersion);
  writer.out.u32(mask);
}

// The mask; a first message must have all `count` parts.
inline PartMask begin_message(
    FieldReader& reader, std::size_t count, bool is_first) {
  const std::uint16_t version = reader.in.u16("the version");
  if (version != kWireVersion) {
    reader.in.fail(
        str("expected version ", kWireVersion, ", found ", version,
            ": start all with the same version of sherd"));
  }
  const PartMask mask = reader.in.u32("the parts");
  const auto known = all_parts(count);
  if (is_first && (mask & known) != known) {
    reader.in.fail(str(
        "expected all ", count, " parts in the first message, found ", mask));
  }
  return reader.in.ok() ? mask : 0;
}

// Bytes are left over only where the mask has parts that this version does not know.
inline Status end_message(
    FieldReader& reader, PartMask mask, std::size_t count, const char* what) {
  if ((mask & ~all_parts(count)) != 0) {
    (void)reader.in.raw("later parts", reader.in.left());
  }
  return reader.in.finish(what);
}

}  // namespace sherd::ft::wire
