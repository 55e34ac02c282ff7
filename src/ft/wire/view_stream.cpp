// SPDX-License-Identifier: Apache-2.0
//
// How views are written. view_parts.cpp reads them.
#include "ft/wire/view_stream.h"

#include <algorithm>

#include "ft/wire/member_list.h"
#include "ft/wire/parts.h"
#include "ft/wire/view_parts.h"

namespace sherd::ft {

using wire::FieldWriter;
using wire::ViewPart;

namespace {

constexpr std::size_t kGoneMax = 4096;

constexpr std::size_t index_of(ViewPart part) {
  return static_cast<std::size_t>(part);
}

bool holds_the_same(const RunView& one, const RunView& other) {
  return std::ranges::equal(
      one.peers, other.peers, [](const auto& a, const auto& b) {
        return a.replica == b.replica && a.held == b.held;
      });
}

std::string bytes_of_held(const RunView& view) {
  FieldWriter writer;
  wire::write_held(writer, view);
  return writer.out.take();
}

}  // namespace

std::string ViewWriter::bytes_for(
    ToldView& told, const std::shared_ptr<const RunView>& view) {
  if (view->fenced.empty()) {
    return news_for(told, ++told.messages_, view);
  }
  // It is the last view for this connection, and no other connection gets it.
  const auto number = ++told.messages_;
  told = {};
  told.messages_ = number;
  ToldView nothing;
  return ViewWriter().news_for(nothing, number, view);
}

std::string ViewWriter::news_for(
    ToldView& told,
    std::uint32_t number,
    const std::shared_ptr<const RunView>& view) {
  take(view);
  const bool is_first = !std::exchange(told.anything_, true);
  wire::PartMask mask = 0;
  std::vector<std::string_view> parts;
  const auto add_shared = [&](std::size_t from, std::size_t end) {
    for (auto part = from; part < end; ++part) {
      auto& version = told.versions_[part];
      if (version != parts_[part].version) {
        mask |= wire::bit(part);
        parts.push_back(part_for(part, version));
        version = parts_[part].version;
      }
    }
  };
  add_shared(0, index_of(ViewPart::kWrong));
  FieldWriter own;
  if (is_first || told.wrong_ != view->wrong) {
    mask |= wire::bit(index_of(ViewPart::kWrong));
    own.maybe("a digest", view->wrong);
    told.wrong_ = view->wrong;
  }
  if (is_first) {
    mask |= wire::bit(index_of(ViewPart::kFenced));
    own.reason("a reason", view->fenced);
    own.flag("whether the run has ended", view->ended);
  }
  parts.push_back(own.out.bytes());
  add_shared(kFirstViewParts, kViewParts);
  return wire::message_of(number, mask, parts);
}

void ViewWriter::take(const std::shared_ptr<const RunView>& view) {
  if (view == view_) {
    return;
  }
  for (const auto part :
       {ViewPart::kRun, ViewPart::kCanonical, ViewPart::kEpoch,
        ViewPart::kPlanned, ViewPart::kConsumed, ViewPart::kAsks}) {
    take_simple(index_of(part), *view);
  }
  // They are many, and rarely change.
  if (view_ == nullptr || view->starts != view_->starts ||
      view->lives != view_->lives) {
    take_simple(index_of(ViewPart::kLives), *view);
  }
  take_commits(*view);
  take_members(*view);
  const auto peers_before = parts_[index_of(ViewPart::kPeers)].version;
  take_peers(*view);
  auto& held = parts_[index_of(ViewPart::kHeld)];
  // A reader that gets all peers again forgets what they held.
  if (peers_before != parts_[index_of(ViewPart::kPeers)].version ||
      !holds_the_same(*view, *view_)) {
    ++held.version;
    held.whole = bytes_of_held(*view);
  } else if (
      view->canonical != view_->canonical || view->recent != view_->recent) {
    // The same content, encoded differently.
    held.whole = bytes_of_held(*view);
  }
  view_ = view;
}

void ViewWriter::take_simple(std::size_t at, const RunView& view) {
  FieldWriter writer;
  wire::view_part(writer, view, static_cast<ViewPart>(at));
  auto whole = writer.out.take();
  auto& part = parts_[at];
  if (part.version == 0 || part.whole != whole) {
    ++part.version;
    part.whole = std::move(whole);
  }
}

// How many of the last commits stay, and which commits follow.
void ViewWriter::take_commits(const RunView& view) {
  auto& part = parts_[index_of(ViewPart::kCommits)];
  static const std::vector<Commit> kNone;
  const auto& before = view_ == nullptr ? kNone : view_->recent;
  if (part.version > 0 && view.recent == before) {
    return;
  }
  auto stay = std::min(before.size(), view.recent.size());
  while (stay > 0 &&
         !std::equal(
             before.end() - static_cast<std::ptrdiff_t>(stay), before.end(),
             view.recent.begin())) {
    --stay;
  }
  ++part.version;
  FieldWriter whole;
  wire::write_commits(whole, 0, view.recent);
  part.whole = whole.out.take();
  FieldWriter news;
  wire::write_commits(
      news, stay,
      {view.recent.begin() + static_cast<std::ptrdiff_t>(stay),
       view.recent.end()});
  part.news = news.out.take();
}

void ViewWriter::take_members(const RunView& view) {
  auto& part = parts_[index_of(ViewPart::kMembers)];
  if (part.version > 0 && view.members == view_->members) {
    return;
  }
  const bool same_replicas =
      part.version > 0 && wire::are_same_replicas(view.members, view_->members);
  ++part.version;
  FieldWriter whole;
  whole.flag("whether they are the same replicas", false);
  wire::member_fields(whole, view.members);
  part.whole = whole.out.take();
  part.news.clear();
  if (same_replicas) {
    FieldWriter news;
    news.flag("whether they are the same replicas", true);
    wire::sample_fields(news, view.members);
    part.news = news.out.take();
  }
}

bool ViewWriter::are_peers_same(const RunView& view) const {
  return std::ranges::equal(
      view.peers, peers_, [](const LiveReplica& one, const Peer& known) {
        return one.replica == known.replica &&
            one.incarnation == known.incarnation &&
            one.addresses == known.addresses;
      });
}

void ViewWriter::take_peers(const RunView& view) {
  auto& part = parts_[index_of(ViewPart::kPeers)];
  if (part.version > 0 && are_peers_same(view)) {
    return;
  }
  const auto version = ++part.version;
  part.whole.clear();
  peer_news_.clear();
  auto before = std::exchange(peers_, {});
  if (!std::ranges::is_sorted(before, {}, &Peer::replica)) {
    std::ranges::sort(before, {}, &Peer::replica);
  }
  for (const auto& one : view.peers) {
    Peer peer{one.replica, one.incarnation, one.addresses, version};
    const auto known =
        std::ranges::lower_bound(before, peer.replica, {}, &Peer::replica);
    if (known != before.end() && known->replica == one.replica) {
      const auto since = std::exchange(known->version, 0);  // The peer stays.
      if (since > 0 && known->incarnation == one.incarnation &&
          known->addresses == one.addresses) {
        peer.version = since;
      }
    }
    peers_.push_back(std::move(peer));
  }
  for (const auto& one : before) {
    if (one.version > 0) {
      gone_.emplace_back(version, one.replica);
    }
  }
  while (gone_.size() > kGoneMax) {
    peers_since_ = gone_.front().first;
    gone_.pop_front();
  }
  if (!wire::are_ascending(view.peers)) {
    peers_since_ = version;  // Readers of changes sort them.
  }
}

const std::string& ViewWriter::part_for(std::size_t at, std::uint64_t told) {
  if (at == index_of(ViewPart::kPeers)) {
    return peers_for(told);
  }
  const auto& part = parts_[at];
  return told > 0 && told + 1 == part.version && !part.news.empty()
      ? part.news
      : part.whole;
}

const std::string& ViewWriter::peers_for(std::uint64_t told) {
  if (told < peers_since_) {
    told = 0;
  }
  const auto [found, is_new] = peer_news_.try_emplace(told);
  if (!is_new) {
    return found->second;
  }
  std::vector<ReplicaId> gone;
  std::vector<LiveReplica> news;
  for (const auto& [version, replica] : gone_) {
    if (told > 0 && version > told) {
      gone.push_back(replica);
    }
  }
  for (const auto& one : peers_) {
    if (one.version > told) {
      news.push_back({one.replica, one.incarnation, {}, one.addresses});
    }
  }
  FieldWriter writer;
  writer.flag("whether others stay", told > 0);
  if (told > 0) {
    writer.list("replicas that have gone", wire::kGoneList, gone);
  }
  writer.list("peers", wire::kPeerList, news);
  found->second = writer.out.take();
  return found->second;
}

}  // namespace sherd::ft
