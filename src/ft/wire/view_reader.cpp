// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/parts.h"
#include "ft/wire/view_parts.h"
#include "ft/wire/view_stream.h"

namespace sherd::ft {
namespace {

void read_part(wire::FieldReader& reader, RunView& view, wire::ViewPart part) {
  switch (part) {
    case wire::ViewPart::kCommits:
      return wire::read_commits(reader, view.recent);
    case wire::ViewPart::kMembers:
      return wire::read_members_part(reader, view.members);
    case wire::ViewPart::kPeers:
      return wire::read_peers(reader, view.peers);
    case wire::ViewPart::kHeld:
      return wire::read_held(reader, view);
    default:
      return wire::view_part(reader, view, part);
  }
}

}  // namespace

Status ViewReader::read(std::string_view bytes) {
  wire::FieldReader reader{net::ByteReader(bytes)};
  reader.makes_printable = true;
  const auto news = wire::begin_message(reader, kFirstViewParts, messages_);
  has_news_ = news.value_or(0) != 0;
  if (!news) {
    return Status();
  }
  const auto mask = *news;
  for (std::size_t part = 0; part < kViewParts && reader.in.ok(); ++part) {
    if ((mask & wire::bit(part)) != 0) {
      read_part(reader, view_, static_cast<wire::ViewPart>(part));
    }
  }
  return wire::end_message(reader, mask, kViewParts, "an order");
}

}  // namespace sherd::ft
