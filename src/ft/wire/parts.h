// SPDX-License-Identifier: Apache-2.0
//
// The format of a message of parts: the version, the message's number on the connection from 1 on,
// the mask, the parts in the order of their bits, and at the end what later versions may have
// added. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "base/check.h"
#include "base/status.h"
#include "ft/wire/codec.h"
#include "ft/wire/fields.h"
#include "net/bytes.h"

namespace sherd::ft::wire {

using PartMask = std::uint32_t;

constexpr PartMask bit(std::size_t part) { return PartMask{1} << part; }
constexpr PartMask all_parts(std::size_t count) { return bit(count) - 1; }

// Copies the parts only once: after a restart of the coordinator, the addresses of a thousand
// replicas go to each of them.
inline std::string message_of(
    std::uint32_t number,
    PartMask mask,
    const std::vector<std::string_view>& parts) {
  net::ByteWriter message;
  message.u16(kWireVersion);
  message.u32(number);
  message.u32(mask);
  std::size_t bytes = message.bytes().size();
  for (const auto part : parts) {
    bytes += part.size();
  }
  message.reserve(bytes);
  for (const auto part : parts) {
    message.raw(part);
  }
  return message.take();
}

// Calls `read` with each part of a message that this version knows, which are `count`; with none if
// the message was received before. `messages` is the number of messages read so far. The first
// message must have all parts below `first`; later versions have added the rest.
template <typename ReadPart>
Status read_message(
    std::string_view bytes,
    std::size_t first,
    std::size_t count,
    const char* what,
    std::uint32_t& messages,
    const ReadPart& read) {
  FieldReader reader{net::ByteReader(bytes)};
  reader.makes_printable = true;
  const std::uint16_t version = reader.in.u16("the version");
  if (version != kWireVersion) {
    reader.in.fail(
        str("expected version ", kWireVersion, ", found ", version,
            ": start all with the same version of sherd"));
  }
  const std::uint32_t number = reader.in.u32("the number of the message");
  const PartMask mask = reader.in.u32("the parts");
  if (reader.in.ok() && number <= messages) {
    return Status();
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
  for (std::size_t part = 0; part < count && reader.in.ok(); ++part) {
    if ((mask & bit(part)) != 0) {
      read(reader, part);
    }
  }
  // Bytes may be left over only if there are parts that this version does not know.
  if (reader.in.ok() && (mask & ~all_parts(count)) != 0) {
    (void)reader.in.raw("later parts", reader.in.left());
  }
  return reader.in.finish(what);
}

}  // namespace sherd::ft::wire
