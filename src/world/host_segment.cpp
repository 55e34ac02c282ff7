// SPDX-License-Identifier: Apache-2.0
#include "world/host_segment.h"

#include <algorithm>
#include <exception>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/check.h"
#include "base/status_from_exception.h"
#include "world/hosts.h"
#include "world/peer_watch.h"
#include "world/store_wait.h"
#include "world/world_impl.h"

namespace sherd::world {
namespace {

Status lost(const World::Impl& impl, const PeerLoss& loss) {
  return {
      ErrorCode::kPeerLost,
      str("[world] rank ", loss.rank, " was lost: it ", loss.how,
          impl.watch->place_of(loss.rank))};
}

Status lost_store(const World::Impl& impl, const std::exception& error) {
  // The store disappears with a rank, whose loss is the better reason.
  const auto loss = impl.await_loss();
  return loss ? lost(impl, *loss)
              : Status(
                    ErrorCode::kPeerLost,
                    "[world] the store is lost: " + first_line_of(error));
}

shm::StringStore strings_of(const World& world, const Clock& clock) {
  const auto impl = world.impl();
  shm::StringStore strings;
  strings.check_others = [impl] {
    const auto loss = impl->watch->first_lost();
    return loss ? lost(*impl, *loss) : Status();
  };
  strings.put = [impl](const std::string& key, const std::string& value) {
    try {
      impl->store->set(key, value);
    } catch (const std::exception& error) {
      return lost_store(*impl, error);
    }
    return Status();
  };
  strings.get = [impl, &clock](
                    const std::string& key,
                    Duration at_most) -> Result<std::string> {
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

Result<shm::HostSegment> share_memory(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    const shm::SegmentOptions& segment) {
  const auto other =
      first_elsewhere(world.impl()->records, world.rank(), ranks);
  if (other) {
    return Status(
        ErrorCode::kFailedPrecondition,
        str("[world] expected ranks of one host to share memory; rank ", *other,
            " is on another than rank ", world.rank()));
  }
  const SteadyClock clock;
  shm::SegmentJoinOptions options;
  options.rank =
      static_cast<int>(std::ranges::find(ranks, world.rank()) - ranks.begin());
  options.ranks = static_cast<int>(ranks.size());
  options.names = ranks;
  options.key = "segment/" + name;
  options.store = strings_of(world, clock);
  options.segment = segment;
  options.deadline = world.options().deadline;
  return shm::join_segment(options, clock);
}

}  // namespace sherd::world
