// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/member_list.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace sherd::ft::wire {
namespace {

// This many consecutive members have this many samples each.
struct PieceRun {
  std::uint32_t members = 0;
  std::int64_t samples = 0;
  bool operator==(const PieceRun&) const = default;
};

// All samples of the members, ascending, and how they are cut.
struct CutSamples {
  std::vector<SampleRange> ranges;
  std::vector<PieceRun> runs;
};

constexpr ListLimits kRunList{CodecLimits::kMembers, 12};

void fields(auto& io, Of<PieceRun> auto& run) {
  io.number("members", run.members);
  io.number("samples", run.samples);
}

void fields(auto& io, Of<CutSamples> auto& all) {
  io.list("ranges of samples", kRangeList, all.ranges);
  io.list("runs of members", kRunList, all.runs);
}

// Members, 12 bytes each.
constexpr ListLimits kNameList{CodecLimits::kMembers, 12};

std::vector<Member> names_of(const std::vector<Member>& members) {
  std::vector<Member> names;
  names.reserve(members.size());
  for (const auto& one : members) {
    names.push_back({one.replica, one.incarnation, {}});
  }
  return names;
}

// Gives each member of the runs its piece. REQUIRES: the pieces have as many samples as the ranges.
void cut(const CutSamples& all, std::vector<Member>& members) {
  auto range = all.ranges.begin();
  std::int64_t used = 0;  // Samples used of the current range.
  auto member = members.begin();
  for (const auto& run : all.runs) {
    for (std::uint32_t i = 0; i < run.members; ++i, ++member) {
      for (std::int64_t left = run.samples; left > 0;) {
        const auto taken = std::min(left, range->size() - used);
        member->samples.push_back(
            {range->begin + used, range->begin + used + taken});
        left -= taken;
        used += taken;
        if (used == range->size()) {
          ++range;
          used = 0;
        }
      }
    }
  }
}

// Nullopt if the samples are no cut of ascending ranges.
std::optional<CutSamples> cut_of(const std::vector<Member>& members) {
  CutSamples all;
  for (const auto& member : members) {
    std::int64_t samples = 0;
    for (const auto& range : member.samples) {
      if (!all.ranges.empty() && all.ranges.back().end == range.begin) {
        all.ranges.back().end = range.end;
      } else if (all.ranges.empty() || all.ranges.back().end < range.begin) {
        all.ranges.push_back(range);
      } else {
        return std::nullopt;
      }
      samples += range.size();
    }
    if (all.runs.empty() || all.runs.back().samples != samples) {
      all.runs.push_back({0, samples});
    }
    ++all.runs.back().members;
  }
  auto again = names_of(members);
  cut(all, again);
  const bool same = std::equal(
      members.begin(), members.end(), again.begin(),
      [](const Member& one, const Member& other) {
        return one.samples == other.samples;
      });
  return same ? std::optional(std::move(all)) : std::nullopt;
}

// Why the ranges cannot be cut into that many pieces without a remainder; empty if they can.
std::string fault_of(const CutSamples& all, std::size_t members) {
  // In 128 bits no sum of so few numbers can overflow.
  __extension__ using Wide = __int128;
  Wide there = 0;
  for (const auto& range : all.ranges) {
    if (range.size() == 0) {
      return "expected ranges of 1 sample or more, found an empty one";
    }
    there += range.size();
  }
  Wide wanted = 0;
  std::uint64_t pieces = 0;
  for (const auto& run : all.runs) {
    wanted += Wide{run.samples} * run.members;
    pieces += run.members;
  }
  if (pieces != members) {
    return str("expected the samples of ", members, " members, found ", pieces);
  }
  return there == wanted ? std::string()
                         : "expected as many samples as members have";
}

}  // namespace

bool are_same_replicas(
    const std::vector<Member>& one, const std::vector<Member>& other) {
  return std::ranges::equal(one, other, [](const Member& a, const Member& b) {
    return a.replica == b.replica && a.incarnation == b.incarnation;
  });
}

void member_fields(FieldWriter& io, const std::vector<Member>& members) {
  SHERD_CHECK(
      members.size() <= kNameList.elements_max, "[ft] expected at most ",
      kNameList.elements_max, " members, found ", members.size());
  io.out.count(members.size());
  for (const auto& member : members) {
    io.number("a replica", member.replica);
    io.number("an incarnation", member.incarnation);
  }
  sample_fields(io, members);
}

void member_fields(FieldReader& io, std::vector<Member>& members) {
  members.resize(io.in.count("members", kNameList));
  for (auto& member : members) {
    io.number("a replica", member.replica);
    io.number("an incarnation", member.incarnation);
  }
  sample_fields(io, members);
}

void sample_fields(FieldWriter& io, const std::vector<Member>& members) {
  const auto all = cut_of(members);
  io.flag("whether samples are cut", all.has_value());
  if (all) {
    fields(io, *all);
  } else {
    for (const auto& member : members) {
      io.list("ranges of samples", kRangeList, member.samples);
    }
  }
  const bool any_left_out = std::ranges::any_of(
      members, [](const Member& one) { return !one.left_out.empty(); });
  io.flag("whether some are left out", any_left_out);
  for (const auto& member : members) {
    if (any_left_out) {
      io.list("ranges of samples", kRangeList, member.left_out);
    }
  }
}

void sample_fields(FieldReader& io, std::vector<Member>& members) {
  bool is_cut = false;
  io.flag("whether samples are cut", is_cut);
  for (auto& member : members) {
    member.samples.clear();
    member.left_out.clear();
    if (!is_cut && io.in.ok()) {
      io.list("ranges of samples", kRangeList, member.samples);
    }
  }
  if (is_cut) {
    CutSamples all;
    fields(io, all);
    if (io.in.ok()) {
      if (const auto fault = fault_of(all, members.size()); !fault.empty()) {
        io.in.fail(fault);
      } else {
        cut(all, members);
      }
    }
  }
  bool any_left_out = false;
  io.flag("whether some are left out", any_left_out);
  for (auto& member : members) {
    if (any_left_out && io.in.ok()) {
      io.list("ranges of samples", kRangeList, member.left_out);
    }
  }
}

}  // namespace sherd::ft::wire
