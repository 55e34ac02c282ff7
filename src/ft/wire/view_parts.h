// SPDX-License-Identifier: Apache-2.0
//
// The parts of a view as fields, for writing and reading them. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <vector>
#include "ft/protocol/messages.h"
#include "ft/wire/fields.h"
#include "ft/wire/member_list.h"

namespace sherd::ft::wire {

// In the order of their bits.
enum class ViewPart {
  kRun,
  kCanonical,
  kCommits,
  kEpoch,
  kMembers,
  kPlanned,
  kPeers,
  kHeld,
  kWrong,
  kFenced,
  // Version 4 began without these.
  kLives,
  kConsumed,
  kAsks,
};

void fields(auto& io, Of<EpochMembers> auto& planned) {
  fields(io, planned.epoch);
  member_fields(io, planned.members);
}

inline constexpr ListLimits kGoneList{2 * CodecLimits::kMembers, 4};

// The parts whose bytes do not depend on what was sent before.
void view_part(auto& io, Of<RunView> auto& view, ViewPart part) {
  switch (part) {
    case ViewPart::kRun:
      io.number("a run", view.run);
      return io.number("a term", view.term);
    case ViewPart::kCanonical:
      return fields(io, view.canonical);
    case ViewPart::kEpoch:
      fields(io, view.epoch);
      return io.choice("a stage", view.stage, EpochStage::kClosed);
    case ViewPart::kPlanned:
      return io.maybe("a planned epoch", view.planned);
    case ViewPart::kLives:
      io.number("starts", view.starts);
      return io.list("lives", kLifeList, view.lives);
    case ViewPart::kConsumed:
      return fields(io, view.consumed);
    case ViewPart::kAsks:
      return io.flag("whether it asks", view.asks);
    case ViewPart::kWrong:
      return io.maybe("a digest", view.wrong);
    case ViewPart::kFenced:
      io.reason("a reason", view.fenced);
      return io.flag("whether the run has ended", view.ended);
    default:
      SHERD_ASSERT(false, "a part that is written in its own way");
  }
}

// The last `stay` commits that were sent remain, and these follow.
void write_commits(
    FieldWriter& writer, std::size_t stay, const std::vector<Commit>& news);

// What each of the peers holds: most hold the canonical state or the one before it.
void write_held(FieldWriter& writer, const RunView& view);

// The peers, either all of them or changes.
void read_peers(FieldReader& reader, std::vector<LiveReplica>& peers);

// Whether they are sorted by number, each once.
bool are_ascending(const std::vector<LiveReplica>& peers);

}  // namespace sherd::ft::wire
