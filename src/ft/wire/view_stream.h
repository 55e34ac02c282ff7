// SPDX-License-Identifier: Apache-2.0
//
// The views of one connection as bytes. The coordinator tells all replicas nearly the same, so that
// one ViewWriter serves all connections: it encodes each part of a view once, and leaves out the
// parts that a connection has been told. Who asks again when nothing has changed is told no part: an
// acknowledgement of a few bytes. Addresses of replicas go once, and again when they change.
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

// What all are told: run, canonical, commits, epoch, members, planned epoch, who is there, what they
// hold. Then what only one is told: its wrong digest, whether it is fenced. Then what all are told
// and came later: who was ever there, which samples are taken, whether the log is empty.
inline constexpr std::size_t kFirstViewParts = 10;
inline constexpr std::size_t kViewParts = 13;

// What one connection has been told; a new one: nothing.
class ToldView {
  friend class ViewWriter;
  std::array<std::uint64_t, kViewParts> versions_{};  // Of those for all.
  std::uint32_t messages_ = 0;
  bool anything_ = false;
  std::optional<StateDigest> wrong_;
};

class ViewWriter {
 public:
  // The next message of the connection, with which it has been told the view. Throws Error for a
  // list or a host name above its limit.
  std::string bytes_for(
      ToldView& told, const std::shared_ptr<const RunView>& view);

 private:
  struct Part {
    std::uint64_t version = 0;
    std::string whole;
    // From the version before; empty: none.
    std::string news;
  };
  // One of those who are there, since which version.
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
  std::array<Part, kViewParts> parts_;  // Those for all.
  std::vector<Peer> peers_;
  // Who has gone, by the version in which it has. News from versions before `peers_since_` are not
  // known.
  std::deque<std::pair<std::uint64_t, ReplicaId>> gone_;
  std::uint64_t peers_since_ = 1;
  std::map<std::uint64_t, std::string> peer_news_;  // By the version told.
};

class ViewReader {
 public:
  // The next message of the connection; one that comes again changes nothing. After a failure the
  // connection is of no use any more.
  Status read(std::string_view bytes);
  // The last one, with what was told before.
  const RunView& view() const { return view_; }
  // Whether the last message said anything: else it was an acknowledgement.
  bool has_news() const { return has_news_; }

 private:
  std::uint32_t messages_ = 0;
  bool has_news_ = false;
  RunView view_;
};

}  // namespace sherd::ft
