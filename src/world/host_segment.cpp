// SPDX-License-Identifier: Apache-2.0
#include "world/host_segment.h"

#include <algorithm>
#include <exception>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/check.h"
#include "world/peer_watch.h"
#include "world/store_wait.h"
#include "world/world_impl.h"

namespace sherd::world {
namespace {

Status lost(const World::Impl& impl, const PeerLoss& loss) {
  return {ErrorCode::kPeerLost, impl.watch->text_of(loss)};
}

Status lost_store(const World::Impl& impl, const std::exception& error) {
  // The store disappears with a rank, whose loss is the better reason.
  const auto loss = impl.await_loss();
  return loss ? lost(impl, *loss)
              : Status(
                    ErrorCode::kPeerLost,
                    "[world] the store is lost: " + first_line_of(error));
}

shm::StringStore store_at(
    const World& world, const std::string& key, const Clock& clock) {
  const auto impl = world.impl();
  shm::StringStore strings;
  strings.check_others = [impl] {
    const auto loss = impl->watch->first_lost();
    return loss ? lost(*impl, *loss) : Status();
  };
  strings.put = [impl, key](const std::string& text) {
    try {
      impl->store->set(key, text);
    } catch (const std::exception& error) {
      return lost_store(*impl, error);
    }
    return Status();
  };
  strings.get = [impl, key, &clock](Duration at_most) -> Result<std::string> {
    const auto until = clock.now() + at_most;
    try {
      while (!wait_for_key(
          *impl->store, key,
          std::chrono::duration_cast<std::chrono::milliseconds>(
              until - clock.now()))) {
        if (const auto loss = impl->watch->first_lost()) {
          return lost(*impl, *loss);
        }
        if (clock.now() >= until) {
          return Status(
              ErrorCode::kDeadlineExceeded, "[world] nobody put " + key);
        }
      }
      return impl->store->get_to_str(key);
    } catch (const Error& error) {
      return Status(error.code(), error.what());  // The wait was interrupted.
    } catch (const std::exception& error) {
      return lost_store(*impl, error);
    }
  };
  return strings;
}

}  // namespace

std::vector<std::vector<int>> ranks_by_host(
    const World& world, const std::vector<int>& ranks) {
  const auto& records = world.impl()->records;
  const auto host = [&](int rank) -> const HostIdentity& {
    return records.at(static_cast<std::size_t>(rank)).host;
  };
  std::vector<std::vector<int>> hosts;
  for (const int rank : ranks) {
    const auto known = std::ranges::find_if(hosts, [&](const auto& members) {
      const auto& other = host(members.front());
      return same_host(other, host(rank)) && same_pids(other, host(rank)) &&
          same_network(other, host(rank));
    });
    if (known == hosts.end()) {
      hosts.push_back({rank});
    } else {
      known->push_back(rank);
    }
  }
  return hosts;
}

Result<shm::HostSegment> share_memory(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    const shm::SegmentOptions& segment) {
  const auto host = [&](int rank) -> const HostIdentity& {
    return world.impl()->records[static_cast<std::size_t>(rank)].host;
  };
  const auto other = std::ranges::find_if(ranks, [&](int rank) {
    return !same_host(host(rank), host(world.rank()));
  });
  if (other != ranks.end()) {
    return Status(
        ErrorCode::kFailedPrecondition,
        str("[world] expected ranks of one host to share memory; rank ", *other,
            " is on another than rank ", world.rank()));
  }
  const SteadyClock clock;
  const auto own = std::ranges::find(ranks, world.rank());
  return shm::join_segment(
      {.peers =
           {.rank = static_cast<int>(own - ranks.begin()),
            .ranks = static_cast<int>(ranks.size()),
            .names = ranks},
       .store = store_at(world, "segment/" + name, clock),
       .segment = segment,
       .deadline = world.options().deadline},
      clock);
}

}  // namespace sherd::world
