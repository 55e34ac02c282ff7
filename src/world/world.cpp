// SPDX-License-Identifier: Apache-2.0
#include <sherd/world/world.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>
#include <sherd/world/flight_recorder.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "base/check.h"
#include "base/rank_environment.h"
#include "net/host_address.h"
#include "world/flight.h"
#include "world/rendezvous.h"
#include "world/rounds.h"
#include "world/store_connect.h"
#include "world/store_wait.h"
#include "world/world_impl.h"

namespace sherd {
namespace {

using std::chrono::milliseconds;

void check_options(const WorldOptions& options) {
  SHERD_CHECK(
      options.deadline > milliseconds(0) &&
          options.rendezvous_deadline > milliseconds(0),
      "[world] expected deadlines above 0 ms, found ", options.deadline.count(),
      " and ", options.rendezvous_deadline.count());
}

// Other programs may have keys in the store as well.
constexpr const char* kStorePrefix = "sherd-world";

void write_flight_records(const World& world, const std::string& folder) {
  if (!folder.empty()) {
    set_flight_folder(world, folder);
  }
}

using Meet = std::function<world::Meeting(const world::RankRecord& mine)>;

// REQUIRES: checked options, and a rank of the size.
World make_world_that_meets(
    int rank,
    int size,
    const WorldOptions& options,
    const world::HostIdentity& host,
    const std::string& master_addr,
    const Meet& meet) {
  auto impl = std::make_shared<World::Impl>();
  impl->rank = rank;
  impl->size = size;
  impl->options = options;
  impl->master_addr = master_addr;
  const auto mine =
      world::RankRecord::of_this_process(rank, size, impl->board.fd(), host);
  world::Meeting meeting = meet(mine);
  impl->store = std::move(meeting.store);
  impl->records = std::move(meeting.records);
  impl->flight = world::make_flight_recorder(rank, impl->records);
  impl->local_size = 0;
  for (const world::RankRecord& record : impl->records) {
    if (world::same_host(record.host, host)) {
      impl->local_rank += record.rank < rank ? 1 : 0;
      ++impl->local_size;
    }
  }
  impl->watch =
      std::make_unique<world::PeerWatch>(rank, impl->records, impl->board);
  return World(std::move(impl));
}

}  // namespace

World World::from_environment(const WorldOptions& options) {
  check_options(options);
  const EnvironmentLookup lookup = process_environment();
  RankEnvironment env = read_rank_environment(lookup);
  if (env.world_size == 1) {
    World world = single();
    world.impl_->options = options;
    write_flight_records(world, env.flight_folder);
    return world;
  }
  // The brackets of "[fd00::1]" belong to an address with a port.
  if (env.master_addr.starts_with('[') && env.master_addr.ends_with(']')) {
    env.master_addr = env.master_addr.substr(1, env.master_addr.size() - 2);
  }
  const milliseconds deadline = options.rendezvous_deadline;
  const auto connection = world::connect_store(env, deadline);
  const auto store = c10::make_intrusive<world::StoreOfAnother>(
      kStorePrefix, connection.store,
      world::StoreOfAnother::Names{
          .keeper = env.agent_store ? "the launcher's agent" : "rank 0",
          .place =
              str(env.master_addr, ":", env.master_port, " (", env.source, ")"),
          .rank = env.rank},
      deadline);
  auto host = world::HostIdentity::of_this_process();
  host.fake = env.fake_host ? str(*env.fake_host) : "";
  host.address = net::route_to(env.master_addr).from;
  auto world = make_world_that_meets(
      env.rank, env.world_size, options, host, env.master_addr,
      [&](const world::RankRecord& mine) -> world::Meeting {
        if (env.agent_store) {
          return world::meet_in_new_round(store, mine, deadline);
        }
        return {
            .store = store,
            .records =
                world::rendezvous(*store, mine, deadline, connection.doubt)};
      });
  store->set_patience(options.deadline);
  world.impl_->agent_store = env.agent_store;
  write_flight_records(world, env.flight_folder);
  return world;
}

World World::from_store(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    const WorldOptions& options) {
  auto world = world::make_world(
      std::move(store), rank, size, options,
      world::HostIdentity::of_this_process(), "");
  write_flight_records(world, read_flight_folder(process_environment()));
  return world;
}

World World::single() {
  return make_world_that_meets(
      0, 1, {}, world::HostIdentity::of_this_process(), "",
      [](const world::RankRecord& mine) -> world::Meeting {
        return {.store = nullptr, .records = {mine}};
      });
}

World world::make_world(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    const WorldOptions& options,
    const HostIdentity& host,
    const std::string& master_addr) {
  check_options(options);
  SHERD_CHECK(
      rank >= 0 && rank < size, "[world] expected a rank from 0 to ", size - 1,
      ", found ", rank);
  SHERD_CHECK(store != nullptr, "[world] expected a store, found null");
  return make_world_that_meets(
      rank, size, options, host, master_addr,
      [&](const RankRecord& mine) -> Meeting {
        return {
            .store = store,
            .records = rendezvous(*store, mine, options.rendezvous_deadline)};
      });
}

int World::rank() const { return impl_->rank; }
int World::size() const { return impl_->size; }
int World::local_rank() const { return impl_->local_rank; }
int World::local_size() const { return impl_->local_size; }
const WorldOptions& World::options() const { return impl_->options; }

World World::subset(const std::vector<int>& ranks) const {
  SHERD_CHECK_AS(
      kFailedPrecondition, !impl_->closed,
      "[world] expected an open world, found it closed");
  check_group_ranks(ranks, rank(), size());
  std::string members;
  for (const int member : ranks) {
    members += str(members.empty() ? "" : ",", member);
  }
  const auto name = str("subset/", members, "/", impl_->subsets[members]++);
  const auto folder = impl_->flight->folder();
  const auto flight_folder = folder.empty() ? "" : str(folder, "/", name);
  if (ranks.size() == 1) {
    World alone = single();
    alone.impl_->options = options();
    write_flight_records(alone, flight_folder);
    return alone;
  }
  const auto index = std::ranges::find(ranks, rank());
  auto some = world::make_world(
      c10::make_intrusive<c10d::PrefixStore>(name, impl_->store),
      static_cast<int>(index - ranks.begin()), static_cast<int>(ranks.size()),
      options(), impl_->records.at(static_cast<std::size_t>(rank())).host,
      impl_->master_addr);
  write_flight_records(some, flight_folder);
  return some;
}

int World::next_number() const { return impl_->made++; }

void World::close() {
  if (impl_->closed) {
    return;
  }
  if (size() > 1) {
    impl_->announce_closing();
    auto& group = impl_->all_ranks();
    // The store ends after all ranks have arrived and before any rank goes on, since that one may
    // create another world at once.
    const auto status =
        group.close("World::close", [this] { impl_->end_store(); });
    if (!status.ok()) {
      group.abandon(status);  // Ranks that wait in theirs learn it at once.
      status.throw_if_failed();
    }
  }
  // All ranks have arrived: from here on a rank may end in order.
  impl_->closed = true;
  impl_->watch->stop();
  impl_->board.record_end(world::ExitStatus::End::kLeft);
  impl_->retired.clear();
  impl_->shared.clear();
  impl_->barrier_group.reset();
  impl_->end_store();
}

void World::Impl::end_store() {
  try {
    if (agent_store && store != nullptr && rank == 0) {
      world::end_round(*store);
    }
  } catch (const std::exception&) {
    // The launcher's store has ended before its ranks: there is no next world.
    store.reset();
  }
  store.reset();
}

World::Impl::~Impl() {
  tell_end_without_close();
  if (std::uncaught_exceptions() > 0) {
    board.record_failure(rank, "ended by an exception");
  }
  board.record_end(
      board.read().trouble ? world::ExitStatus::End::kGaveUp
                           : world::ExitStatus::End::kLeft);
}

}  // namespace sherd
