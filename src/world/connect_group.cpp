// SPDX-License-Identifier: Apache-2.0
//
// How a world connects some of its ranks into a group.
#include "world/world_impl.h"

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include "base/check.h"
#include "base/interrupt.h"
#include "base/status.h"
#include "net/host_address.h"
#include "world/detached_call.h"
#include "world/local_addresses.h"
#include "world/sigpipe_guard.h"
#include "world/store_wait.h"

namespace sherd {
namespace {

using std::chrono::milliseconds;

constexpr const char* kWorldGroup = "world";

// Set by a rank that closes its world and therefore joins no other group.
std::string closing_key(int rank) { return str("closing/", rank); }

// Set by a rank whose world ended without being closed.
std::string left_key(int rank) { return str("left/", rank); }

// Set by a rank that could not join the group; its value says why.
std::string failed_key(const std::string& group, int rank) {
  return str("failed/", group, "/", rank);
}

// A store to connect through, for as long as that takes. The backend keeps this object for life,
// but the store behind it must not live that long: with it is released the port that the next world
// of this process needs.
class BorrowedStore final : public world::PollingStore {
 public:
  using PollingStore::PollingStore;

  // REQUIRES: nobody is using it. Afterwards it is an empty store of its own.
  void give_back() { store_ = c10::make_intrusive<c10d::HashStore>(); }
};

// Gloo's own errors name neither the option nor what there is to choose from. `one_network` says
// whether all ranks have the same loopback address.
void check_interface(const std::string& name, bool one_network) {
  const auto all = world::interface_addresses();
  const bool usable = std::ranges::any_of(all, [&](const auto& one) {
    return one.interface == name && (one_network || !one.loopback);
  });
  SHERD_CHECK(
      usable, "[world] network_interface: expected an interface of this host ",
      one_network ? "with an address" : "that leads to the other hosts",
      ", found '", name, "'; it has ", world::describe(all));
}

// What connects these ranks. Throws Error if network_interface is of no use for that.
std::shared_ptr<compat::GlooDevice> device_for(
    World::Impl& impl, const std::vector<int>& ranks) {
  const auto& records = impl.records;
  const auto& own = records[static_cast<std::size_t>(impl.rank)].host;
  const auto all_share = [&](const auto& same) {
    return std::ranges::all_of(ranks, [&](int r) {
      return same(records[static_cast<std::size_t>(r)].host, own);
    });
  };
  const bool one_network = all_share(world::same_network);
  const bool one_host = one_network && all_share(world::same_host);
  auto& device = one_host ? impl.device_of_host : impl.device_between_hosts;
  if (device != nullptr) {
    return device;
  }
  const auto& interface = impl.options.network_interface;
  compat::GlooAddress listen;
  if (one_host) {
    listen.address = "127.0.0.1";
  } else if (interface.empty()) {
    const auto there =
        world::host_that_reaches(records, impl.rank, impl.master_addr);
    listen.address = net::route_to(there).from;
  } else {
    check_interface(interface, one_network);
    listen.network_interface = interface;
  }
  const world::SigpipeGuard inherited_by_its_thread;
  device = compat::make_gloo_device(listen);
  return device;
}

}  // namespace

void check_group_ranks(const std::vector<int>& ranks, int own, int size) {
  const bool ascending = std::ranges::is_sorted(ranks, std::less_equal<>());
  const bool in_range =
      !ranks.empty() && ranks.front() >= 0 && ranks.back() < size;
  SHERD_CHECK(
      ascending && in_range, "[world] expected ascending ranks from 0 to ",
      size - 1, " in a group");
  SHERD_CHECK(
      std::ranges::find(ranks, own) != ranks.end(), "[world] expected rank ",
      own, " to be one of the ranks that it connects");
}

// Throws if a member of a group that is being connected was lost, or if the time is up; `missing`
// is the rank to name then.
void World::Impl::check_none_lost(
    const std::string& name,
    const std::vector<int>& ranks,
    int missing,
    Instant end) const {
  const auto loss = watch->first_lost(ranks);
  SHERD_CHECK_AS(
      kPeerLost, !loss,
      watch->text_of(
          *loss,
          str("; rank ", rank, " waited for group '", name, "' with rank ",
              missing)));
  SHERD_CHECK_AS(
      kDeadlineExceeded, SteadyClock().now() < end, "[world] rank ", missing,
      " did not join group '", name, "' within ", seconds(options.deadline),
      " s of rank ", rank, watch->place_of(missing));
}

// Why rank `missing` will never join group `name`, if it will not.
std::optional<world::PeerLoss> World::Impl::why_it_stays_away(
    const std::string& name, int missing) const {
  const auto failed = failed_key(name, missing);
  if (store->check({failed})) {
    const auto cause = watch->explanation(missing);
    return cause && cause->rank != missing
        ? cause
        : world::PeerLoss{
              missing, "gave up: " + store->get_to_str(failed), true};
  }
  if (name != kWorldGroup && store->check({closing_key(missing)})) {
    // It may have found the others gone since, which left because it does.
    return world::PeerLoss{missing, "closed its World and takes part no more"};
  }
  if (watch->has_ended(missing) || store->check({left_key(missing)})) {
    return watch->explanation(missing).value_or(
        world::PeerLoss{missing, "left the job"});
  }
  return std::nullopt;
}

// Throws if rank `missing` has left the world or given up, or is about to, without having set its
// key of group `name`. The others are told, since this rank may leave before they look.
void World::Impl::check_will_join(
    const std::string& name, int missing, const std::string& key) const {
  const auto loss = why_it_stays_away(name, missing);
  if (!loss || store->check({key})) {
    return;
  }
  watch->report(*loss);
  const bool own_fault = loss->rank == missing;
  throw Error(
      watch->text_of(
          *loss,
          str("; rank ", rank, " waited for group '", name, "' with ",
              own_fault ? "it" : str("rank ", missing))),
      ErrorCode::kPeerLost);
}

// Every member announces that it has reached `stage` ("connects", "connected") and waits for the
// others. Before connecting, this is needed because Gloo looks at nothing else while it waits for a
// missing member; afterwards, because a rank that has all its own connections and closes them again
// would make those still connecting fail. Returns the members' notes.
std::vector<std::string> World::Impl::await_members(
    const std::string& stage,
    const std::string& name,
    const std::vector<int>& ranks,
    const std::string& note) {
  const auto key = [&](int r) { return str(stage, "/", name, "/", r); };
  const Instant end = SteadyClock().now() + options.deadline;
  store->set(key(rank), note);
  std::vector<std::string> notes;
  for (const int r : ranks) {
    while (!world::wait_for_key(*store, key(r), options.deadline)) {
      check_none_lost(name, ranks, r, end);
      check_will_join(name, r, key(r));
    }
    notes.push_back(store->get_to_str(key(r)));
  }
  return notes;
}

std::string World::Impl::retired_names() const {
  std::string names = "\n";
  for (const auto& [name, group] : retired) {
    names += name + "\n";
  }
  return names;
}

// When all members have retired a group, none of them receives from it any more.
void World::Impl::free_retired_groups(
    const std::vector<int>& ranks, const std::vector<std::string>& notes) {
  std::erase_if(retired, [&](const Retired& candidate) {
    return std::ranges::all_of(
               notes,
               [&](const auto& note) {
                 return note.find("\n" + candidate.name + "\n") !=
                     std::string::npos;
               }) &&
        candidate.group->has_only(ranks);
  });
}

c10::intrusive_ptr<c10d::Backend> World::Impl::connect(
    const std::string& name, const std::vector<int>& ranks) {
  const compat::GlooOptions gloo{
      .connect_deadline = std::min<milliseconds>(
          options.deadline, compat::GlooOptions().connect_deadline),
      .wait_deadline = options.deadline,
      .device = device_for(*this, ranks)};
  const auto index = std::ranges::find(ranks, rank);
  const auto borrowed =
      c10::make_intrusive<BorrowedStore>("group/" + name, store);
  // Gloo keeps trying to connect to a rank that has died meanwhile.
  auto backend = world::start_detached(
      [borrowed, own = static_cast<int>(index - ranks.begin()),
       count = static_cast<int>(ranks.size()), gloo] {
        const world::SigpipeGuard inherited_by_its_threads;
        return compat::make_gloo_backend(borrowed, own, count, gloo);
      });
  const Instant end = SteadyClock().now() + options.deadline;
  constexpr milliseconds kSlice(20);
  InterruptibleWait interrupts;
  while (backend.wait_for(kSlice) != std::future_status::ready) {
    interrupts.poll().throw_if_failed();
    check_none_lost(name, ranks, ranks.at(ranks.front() == rank ? 1 : 0), end);
  }
  auto connected = backend.get();
  borrowed->give_back();
  return connected;
}

std::unique_ptr<world::C10dTransport> World::Impl::make_group(
    const std::string& name,
    const std::vector<int>& ranks,
    milliseconds deadline) {
  SHERD_CHECK(!closed, "[world] expected an open world, found it closed");
  check_group_ranks(ranks, rank, size);
  SHERD_CHECK(
      group_names.insert(name).second, "[world] expected a new group name, ",
      "found '", name, "' a second time");
  const world::C10dTransport::Options group{
      .ranks = ranks,
      .own_rank = rank,
      .deadline = deadline,
      .name = name == kWorldGroup ? "its World" : "its end of " + name};
  if (ranks.size() == 1) {
    return std::make_unique<world::C10dTransport>(group, nullptr, *watch);
  }
  try {
    device_for(
        *this, ranks);  // Before any rank can fail because another one does.
    free_retired_groups(
        ranks, await_members("connects", name, ranks, retired_names()));
    auto backend = connect(name, ranks);
    await_members("connected", name, ranks, "1");
    return std::make_unique<world::C10dTransport>(
        group, std::move(backend), *watch);
  } catch (const Error& error) {
    tell_other_hosts(failed_key(name, rank), first_line_of(error));
    throw;
  } catch (const std::exception& error) {
    const auto loss = await_loss();
    tell_other_hosts(failed_key(name, rank), first_line_of(error));
    throw Error(
        loss ? watch->text_of(
                   *loss,
                   str("; rank ", rank, " was connecting group '", name, "'"))
             : str("[world] rank ", rank, " could not connect group '", name,
                   "': ", first_line_of(error)),
        loss ? ErrorCode::kPeerLost : ErrorCode::kUnavailable);
  }
}

bool World::Impl::all_on_this_host() const {
  return std::ranges::all_of(records, [&](const auto& record) {
    return record.rank == rank || watch->watches(record.rank);
  });
}

// Ranks of this host see how this one ends. A store that does not answer must not keep it.
void World::Impl::tell_other_hosts(
    const std::string& key, const std::string& text) noexcept {
  constexpr milliseconds kPatience(1000);
  try {
    const auto loss = watch->first_lost();
    const bool store_ended =
        !agent_store && (watch->has_ended(0) || (loss && loss->rank == 0));
    if (all_on_this_host() || store_ended) {
      return;
    }
    world::start_detached([kept = store, key, text]() mutable {
      const auto last_use = std::move(kept);
      last_use->set(key, text);
    }).wait_for(kPatience);
  } catch (const std::exception&) {
    return;  // The others wait until their deadline.
  }
}

void World::Impl::tell_end_without_close() noexcept {
  if (!closed && store != nullptr && watch != nullptr) {
    tell_other_hosts(left_key(rank), "1");
  }
}

// A death becomes visible at once, but not where others have all the cores. Waits longer if it would
// be visible: no rank is on another host, the launcher does not keep the store, and the rank that
// keeps it has not left, which would be the reason.
std::optional<world::PeerLoss> World::Impl::await_loss() const {
  constexpr milliseconds kUsual(300);
  constexpr milliseconds kBusy(5000);
  constexpr milliseconds kSlice(10);
  const bool watches_all = all_on_this_host();
  const SteadyClock clock;
  const Instant began = clock.now();
  for (;;) {
    const Instant now = clock.now();
    if (auto loss = watch->wait_lost(kSlice)) {
      return loss;
    }
    const bool patient = watches_all && !agent_store && !watch->has_ended(0);
    if (now - began >= (patient ? kBusy : kUsual)) {
      return watch->explanation(0);
    }
  }
}

void World::Impl::announce_closing() {
  try {
    store->set(closing_key(rank), "1");
  } catch (const std::exception&) {
    // The store is lost, and with it the rank that keeps it; closing will find out.
    return;
  }
}

world::C10dTransport& World::Impl::all_ranks() {
  SHERD_CHECK(!closed, "[world] expected an open world, found it closed");
  if (barrier_failure != nullptr) {
    std::rethrow_exception(barrier_failure);
  }
  if (barrier_group == nullptr) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    try {
      barrier_group = make_group(kWorldGroup, ranks, options.deadline);
    } catch (const Error&) {
      barrier_failure = std::current_exception();
      throw;
    }
  }
  return *barrier_group;
}

std::shared_ptr<world::Transport> world::make_c10d_transport(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    std::optional<milliseconds> deadline) {
  auto made = world.impl()->make_group(
      name, ranks, deadline.value_or(world.options().deadline));
  // It keeps the world, whose watch outlives the group.
  const auto retire = [world, name](C10dTransport* last) {
    std::unique_ptr<C10dTransport> group(last);
    auto& impl = *world.impl();
    if (!impl.closed && group->size() > 1 && group->failure().ok()) {
      group->leave();
      impl.retired.push_back({name, std::move(group)});
    }
  };
  return {made.release(), retire};
}

}  // namespace sherd
