// SPDX-License-Identifier: Apache-2.0
//
// Encodes the views of one connection. The coordinator tells all replicas nearly the same, so one
// ViewWriter serves all connections: it encodes each part of a view once, and leaves out the parts
// that a connection already has. If nothing has changed, a replica gets no part, only an
// acknowledgement of a few bytes. Addresses of replicas are sent once, and again when they change.
// Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "base/status.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

// The parts for all replicas: run, canonical, commits, epoch, members, planned epoch, peers, what
// they hold. Then those for a single replica: its wrong digest, whether it is fenced. Then parts
// for all that were added later: all replicas ever in the run, which samples are taken, whether the
// log is empty.
inline constexpr std::size_t kFirstViewParts = 10;
inline constexpr std::size_t kViewParts = 13;

// What one connection has been sent; nothing for a new one.
class ToldView {
  friend class ViewWriter;
  // Those of the parts for all.
  std::array<std::uint64_t, kViewParts> versions_{};
  std::uint32_t messages_ = 0;
  bool anything_ = false;
  std::optional<StateDigest> wrong_;
};

class ViewWriter {
 public:
  // The next message of the connection, after which the connection has the view. Throws Error for a
  // list or a host name above its limit.
  std::string bytes_for(
      ToldView& told, const std::shared_ptr<const RunView>& view);

 private:
  struct Part {
    std::uint64_t version = 0;
    std::string whole;
    // The changes since the previous version; empty if there are none.
    std::string news;
  };
  // A present peer, with the version since which it has been there.
  struct Peer {
    ReplicaId replica = 0;
    Incarnation incarnation = 0;
    RankAddresses addresses;
    std::uint64_t version = 0;
  };

  std::string news_for(
      ToldView& told,
      std::uint32_t number,
      const std::shared_ptr<const RunView>& view);
  void take(const std::shared_ptr<const RunView>& view);
  void take_simple(std::size_t part, const RunView& view);
  void take_commits(const RunView& view);
  void take_members(const RunView& view);
  void take_peers(const RunView& view);
  bool are_peers_same(const RunView& view) const;
  const std::string& part_for(std::size_t part, std::uint64_t told);
  const std::string& peers_for(std::uint64_t told);

  std::shared_ptr<const RunView> view_;
  std::array<Part, kViewParts> parts_;  // The parts for all.
  std::vector<Peer> peers_;
  // The peers that have gone, with the version in which each did. Changes from versions before
  // `peers_since_` are not known.
  std::deque<std::pair<std::uint64_t, ReplicaId>> gone_;
  std::uint64_t peers_since_ = 1;
  // Keyed by the version that the reader has.
  std::map<std::uint64_t, std::string> peer_news_;
};

class ViewReader {
 public:
  // Reads the next message of the connection; one that is repeated changes nothing. After a failure
  // the connection cannot be used any more.
  Status read(std::string_view bytes);
  // The last view, including what earlier messages said.
  const RunView& view() const { return view_; }

 private:
  std::uint32_t messages_ = 0;
  RunView view_;
};

}  // namespace sherd::ft
