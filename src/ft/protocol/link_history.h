// SPDX-License-Identifier: Apache-2.0
//
// Remembers which links between replicas are bad or slow, for as long as both ends live; when one
// restarts, its links are good again. member_order.h orders members so that they avoid such links.
//
// A link is bad once it could not be connected or was suspected in two epochs. Each replica also
// reports how fast data arrive from its neighbours, and the coordinator compares the speeds once a
// step. A link is slow once it was at most half as fast as the median for many steps, and stays
// slow: it is no longer used or measured, so forgetting it would make orders alternate. A replica
// whose links are all slow is slow itself, and no order avoids it. Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include "ft/protocol/member_order.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

// The lower and the higher number of a link's ends. A link has no direction.
using LinkEnds = std::pair<ReplicaId, ReplicaId>;
// In bytes per second.
using SpeedOfLink = std::map<LinkEnds, std::uint64_t>;

// In how many epochs something was suspected. Several suspicions in one epoch count once.
struct SuspicionCount {
  int epochs = 0;
  Epoch last;
  bool operator==(const SuspicionCount&) const = default;
};

class LinkHistory {
 public:
  // A link is slow after this many judgements in a row.
  static constexpr int kStepsUntilSlow = 8;

  struct Link {
    SuspicionCount suspected;
    int slow_steps = 0;  // How many judgements in a row found it slow.
    bool operator==(const Link&) const = default;
  };

  // Records a suspicion, which counts once per epoch no matter who has it. Returns true if the link
  // has just become bad.
  bool suspect(ReplicaId one, ReplicaId other, const Epoch& epoch);
  // Records that the link could not be connected, which makes it bad at once. Returns true if it
  // was not bad before.
  bool fail(ReplicaId one, ReplicaId other, const Epoch& epoch);
  // Takes the speeds of the links in use. Returns those of the links that have just become slow.
  SpeedOfLink judge(const SpeedOfLink& speeds);
  // Forgets the links of a replica that has restarted.
  void forget(ReplicaId replica);

  LinkQuality quality(ReplicaId one, ReplicaId other) const;
  bool any_slow() const;

  using All = std::map<LinkEnds, Link>;
  const All& all() const { return all_; }

  bool operator==(const LinkHistory&) const = default;

 private:
  bool has_room(const LinkEnds& ends) const;

  All all_;  // Links that were suspected or found slow.
};

}  // namespace sherd::ft
