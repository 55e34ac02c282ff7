// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/view_parts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <ranges>
#include <utility>

namespace sherd::ft::wire {
namespace {

// What a peer holds. Two bits.
enum class HeldKind : std::uint8_t {
  kCanonical,
  kBase,  // Of the last commit.
  kNothing,
  kOther,
};
// So many peers, one after another, hold the same.
struct HeldRun {
  std::uint32_t peers = 0;
  HeldKind kind = HeldKind::kCanonical;
};
constexpr std::size_t kRunBytes = 5;
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
  const bool packs = packed_bytes < kRunBytes * runs.size();
  writer.flag("whether they are packed", packs);
  if (!packs) {
    writer.out.count(runs.size());
    for (const auto& run : runs) {
      writer.out.u32(run.peers);
      writer.choice("what is held", run.kind, HeldKind::kOther);
    }
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
  const auto runs = reader.in.count(
      "runs of peers",
      {.elements_max = CodecLimits::kMembers, .element_bytes = kRunBytes});
  std::size_t at = 0;
  for (std::size_t i = 0; i < runs && reader.in.ok(); ++i) {
    const std::size_t peers = reader.in.u32("peers");
    auto kind = HeldKind::kCanonical;
    reader.choice("what is held", kind, HeldKind::kOther);
    if (peers > kinds.size() - at) {
      reader.in.fail(str(
          "expected what ", kinds.size(), " peers hold, found ", at + peers));
      return;
    }
    std::fill_n(kinds.begin() + static_cast<std::ptrdiff_t>(at), peers, kind);
    at += peers;
  }
  if (at != kinds.size()) {
    reader.in.fail(
        str("expected what ", kinds.size(), " peers hold, found ", at));
  }
}

// By number; of one that is named twice the last counts.
void put_in_order(std::vector<LiveReplica>& peers) {
  if (are_ascending(peers)) {
    return;  // As nearly always.
  }
  std::ranges::stable_sort(peers, {}, &LiveReplica::replica);
  const auto rest = std::ranges::unique(
      std::views::reverse(peers), {}, &LiveReplica::replica);
  peers.erase(peers.begin(), rest.begin().base());
}

// REQUIRES: `news` is in order.
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

void write_held(FieldWriter& writer, const RunView& view) {
  std::vector<HeldKind> kinds;
  for (const auto& peer : view.peers) {
    kinds.push_back(kind_of(peer.held, view));
  }
  write_kinds(writer, kinds);
  for (const auto& peer : view.peers) {
    if (kind_of(peer.held, view) == HeldKind::kOther) {
      fields<FieldWriter>(writer, *peer.held);
    }
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
        fields<FieldReader>(reader, held.emplace());
        break;
    }
  }
}

void read_members_part(FieldReader& reader, std::vector<Member>& members) {
  bool same_replicas = false;
  reader.flag("whether they are the same replicas", same_replicas);
  if (same_replicas) {
    read_samples(reader, members);
  } else {
    members = read_members(reader);
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
