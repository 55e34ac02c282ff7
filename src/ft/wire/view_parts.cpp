// SPDX-License-Identifier: Apache-2.0
//
// Parts of a view that have an encoding of their own, and how views are read. view_stream.cpp
// writes them.
#include "ft/wire/view_parts.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <ranges>
#include <utility>

#include "ft/wire/parts.h"
#include "ft/wire/view_stream.h"

namespace sherd::ft::wire {
namespace {

// What a peer holds, in two bits.
enum class HeldKind : std::uint8_t {
  kCanonical,
  kBase,  // The base of the last commit.
  kNothing,
  kOther,
};
// This many consecutive peers hold the same.
struct HeldRun {
  std::uint32_t peers = 0;
  HeldKind kind = HeldKind::kCanonical;
};
constexpr ListLimits kHeldRunList{CodecLimits::kMembers, 5};

void fields(auto& io, Of<HeldRun> auto& run) {
  io.number("peers", run.peers);
  io.choice("what is held", run.kind, HeldKind::kOther);
}

constexpr std::size_t kPeersInByte = 4;

HeldKind kind_of(const std::optional<StateId>& held, const RunView& view) {
  if (!held) {
    return HeldKind::kNothing;
  }
  if (*held == view.canonical) {
    return HeldKind::kCanonical;
  }
  return !view.recent.empty() && *held == view.recent.back().base
      ? HeldKind::kBase
      : HeldKind::kOther;
}

void write_kinds(FieldWriter& writer, const std::vector<HeldKind>& kinds) {
  std::vector<HeldRun> runs;
  for (const auto kind : kinds) {
    if (runs.empty() || runs.back().kind != kind) {
      runs.push_back({0, kind});
    }
    ++runs.back().peers;
  }
  const auto packed_bytes = (kinds.size() + kPeersInByte - 1) / kPeersInByte;
  const bool packs = packed_bytes < kHeldRunList.element_bytes * runs.size();
  writer.flag("whether they are packed", packs);
  if (!packs) {
    writer.list("runs of peers", kHeldRunList, runs);
    return;
  }
  for (std::size_t i = 0; i < packed_bytes; ++i) {
    std::uint8_t byte = 0;
    for (std::size_t j = 0; j < kPeersInByte; ++j) {
      const auto at = kPeersInByte * i + j;
      const auto kind =
          at < kinds.size() ? static_cast<unsigned>(kinds[at]) : 0U;
      byte = static_cast<std::uint8_t>(byte | (kind << (2 * j)));
    }
    writer.out.u8(byte);
  }
}

void unpack_kinds(FieldReader& reader, std::vector<HeldKind>& kinds) {
  std::uint8_t byte = 0;
  for (std::size_t at = 0; at < kinds.size(); ++at) {
    if (at % kPeersInByte == 0) {
      byte = reader.in.u8("what peers hold");
    }
    kinds[at] = static_cast<HeldKind>(byte >> (2 * (at % kPeersInByte)) & 3U);
  }
}

void read_kind_runs(FieldReader& reader, std::vector<HeldKind>& kinds) {
  std::vector<HeldRun> runs;
  reader.list("runs of peers", kHeldRunList, runs);
  std::size_t peers = 0;
  for (const auto& run : runs) {
    peers += run.peers;
  }
  if (peers != kinds.size()) {
    reader.in.fail(
        str("expected what ", kinds.size(), " peers hold, found ", peers));
    return;
  }
  auto at = kinds.begin();
  for (const auto& run : runs) {
    at = std::fill_n(at, run.peers, run.kind);
  }
}

// Sorts the peers by number. If one is named twice, the last entry counts.
void put_in_order(std::vector<LiveReplica>& peers) {
  if (are_ascending(peers)) {
    return;  // This is the usual case.
  }
  std::ranges::stable_sort(peers, {}, &LiveReplica::replica);
  const auto rest = std::ranges::unique(
      std::views::reverse(peers), {}, &LiveReplica::replica);
  peers.erase(peers.begin(), rest.begin().base());
}

// REQUIRES: `news` is sorted.
void merge_news(
    std::vector<LiveReplica>& peers,
    std::vector<ReplicaId> gone,
    std::vector<LiveReplica> news) {
  put_in_order(peers);
  std::ranges::sort(gone);
  std::erase_if(peers, [&](const LiveReplica& one) {
    return std::ranges::binary_search(gone, one.replica) ||
        std::ranges::binary_search(
               news, one.replica, {}, &LiveReplica::replica);
  });
  const auto others = std::ssize(peers);
  peers.insert(
      peers.end(), std::make_move_iterator(news.begin()),
      std::make_move_iterator(news.end()));
  std::ranges::inplace_merge(
      peers, peers.begin() + others, {}, &LiveReplica::replica);
}

void read_commits(FieldReader& reader, std::vector<Commit>& commits) {
  const std::size_t stay = reader.in.u32("commits that stay");
  if (stay > commits.size()) {
    reader.in.fail(
        str("expected ", commits.size(), " commits or fewer to stay, found ",
            stay));
    return;
  }
  std::vector<Commit> news;
  reader.list("commits", kCommitList, news);
  commits.erase(
      commits.begin(), commits.end() - static_cast<std::ptrdiff_t>(stay));
  commits.insert(
      commits.end(), std::make_move_iterator(news.begin()),
      std::make_move_iterator(news.end()));
  if (commits.size() > CodecLimits::kCommits) {
    reader.in.fail(
        str("expected at most ", CodecLimits::kCommits, " commits, found ",
            commits.size()));
  }
}

void read_held(FieldReader& reader, RunView& view) {
  std::vector<HeldKind> kinds(view.peers.size());
  bool packed = false;
  reader.flag("whether they are packed", packed);
  packed ? unpack_kinds(reader, kinds) : read_kind_runs(reader, kinds);
  for (std::size_t at = 0; at < kinds.size() && reader.in.ok(); ++at) {
    auto& held = view.peers[at].held;
    switch (kinds[at]) {
      case HeldKind::kCanonical:
        held = view.canonical;
        break;
      case HeldKind::kBase:
        if (view.recent.empty()) {
          reader.in.fail("expected a commit whose base is held, found none");
          return;
        }
        held = view.recent.back().base;
        break;
      case HeldKind::kNothing:
        held.reset();
        break;
      case HeldKind::kOther:
        fields(reader, held.emplace());
        break;
    }
  }
}

void read_members_part(FieldReader& reader, std::vector<Member>& members) {
  bool same_replicas = false;
  reader.flag("whether they are the same replicas", same_replicas);
  if (same_replicas) {
    sample_fields(reader, members);
  } else {
    member_fields(reader, members);
  }
}

void read_part(FieldReader& reader, RunView& view, ViewPart part) {
  switch (part) {
    case ViewPart::kCommits:
      return read_commits(reader, view.recent);
    case ViewPart::kMembers:
      return read_members_part(reader, view.members);
    case ViewPart::kPeers:
      return read_peers(reader, view.peers);
    case ViewPart::kHeld:
      return read_held(reader, view);
    default:
      return view_part(reader, view, part);
  }
}

}  // namespace

bool are_ascending(const std::vector<LiveReplica>& peers) {
  return std::ranges::adjacent_find(
             peers, std::ranges::greater_equal(), &LiveReplica::replica) ==
      peers.end();
}

void write_commits(
    FieldWriter& writer, std::size_t stay, const std::vector<Commit>& news) {
  writer.out.count(stay);
  writer.list("commits", kCommitList, news);
}

void write_held(FieldWriter& writer, const RunView& view) {
  std::vector<HeldKind> kinds;
  for (const auto& peer : view.peers) {
    kinds.push_back(kind_of(peer.held, view));
  }
  write_kinds(writer, kinds);
  for (const auto& peer : view.peers) {
    if (kind_of(peer.held, view) == HeldKind::kOther) {
      fields(writer, *peer.held);
    }
  }
}

void read_peers(FieldReader& reader, std::vector<LiveReplica>& peers) {
  bool others_stay = false;
  reader.flag("whether others stay", others_stay);
  std::vector<ReplicaId> gone;
  if (others_stay) {
    reader.list("replicas that have gone", kGoneList, gone);
  }
  std::vector<LiveReplica> news;
  reader.list("peers", kPeerList, news);
  if (!others_stay) {
    peers = std::move(news);
    return;
  }
  put_in_order(news);
  merge_news(peers, gone, std::move(news));
  if (peers.size() > kPeerList.elements_max) {
    reader.in.fail(
        str("expected at most ", kPeerList.elements_max, " peers, found ",
            peers.size()));
  }
}

}  // namespace sherd::ft::wire

namespace sherd::ft {

Status ViewReader::read(std::string_view bytes) {
  const auto read_part = [&](wire::FieldReader& reader, std::size_t part) {
    wire::read_part(reader, view_, static_cast<wire::ViewPart>(part));
  };
  return wire::read_message(
      bytes, kFirstViewParts, kViewParts, "an order", messages_, read_part);
}

}  // namespace sherd::ft
