// SPDX-License-Identifier: Apache-2.0
//
// The format of a message of parts: the version, the message's number on the connection from 1 on,
// the mask, the parts in the order of their bits, and at the end what later versions may have
// added. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include "base/check.h"
#include "base/status.h"
#include "ft/wire/codec.h"
#include "ft/wire/fields.h"

namespace sherd::ft::wire {

using PartMask = std::uint32_t;

constexpr PartMask bit(std::size_t part) { return PartMask{1} << part; }
constexpr PartMask all_parts(std::size_t count) { return bit(count) - 1; }

inline void begin_message(
    FieldWriter& writer, std::uint32_t number, PartMask mask) {
  writer.out.u16(kWireVersion);
  writer.out.u32(number);
  writer.out.u32(mask);
}

// Returns the mask; nullopt if the message was received before and says nothing new. `messages` is
// the number of messages read so far. The first message must have all parts below `first`; later
// versions have added the rest.
inline std::optional<PartMask> begin_message(
    FieldReader& reader, std::size_t first, std::uint32_t& messages) {
  const std::uint16_t version = reader.in.u16("the version");
  if (version != kWireVersion) {
    reader.in.fail(
        str("expected version ", kWireVersion, ", found ", version,
            ": start all with the same version of sherd"));
  }
  const std::uint32_t number = reader.in.u32("the number of the message");
  const PartMask mask = reader.in.u32("the parts");
  if (reader.in.ok() && number <= messages) {
    return std::nullopt;
  }
  if (number != messages + 1) {
    reader.in.fail(
        str("expected message ", messages + 1, " of the connection, found ",
            number));
  }
  const auto needed = all_parts(first);
  if (messages == 0 && (mask & needed) != needed) {
    reader.in.fail(str(
        "expected all ", first, " parts in the first message, found ", mask));
  }
  ++messages;
  return reader.in.ok() ? mask : 0;
}

// Bytes may be left over only if the mask has parts that this version does not know.
inline Status end_message(
    FieldReader& reader, PartMask mask, std::size_t count, const char* what) {
  if ((mask & ~all_parts(count)) != 0) {
    (void)reader.in.raw("later parts", reader.in.left());
  }
  return reader.in.finish(what);
}

}  // namespace sherd::ft::wire
