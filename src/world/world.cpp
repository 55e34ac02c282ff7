// SPDX-License-Identifier: Apache-2.0
#include <sherd/world/world.h>

#include <exception>
#include <utility>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "base/check.h"
#include "base/rank_environment.h"
#include "world/rendezvous.h"
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

// An agent's store outlives its ranks: when torchrun restarts them, the keys of
// the former ones are still there.
std::string store_prefix(const EnvironmentLookup& lookup) {
  return "sherd-attempt-" + lookup("TORCHELASTIC_RESTART_COUNT").value_or("0");
}

// In a launcher's store: how many worlds of the job were closed.
constexpr const char* kWorldsClosed = "sherd/worlds-closed";

// A store that outlives a world keeps its keys; the next one has others. Ranks
// read the same number: it changes before any rank returns from close().
c10::intrusive_ptr<c10d::Store> store_of_next_world(
    const c10::intrusive_ptr<c10d::Store>& job) {
  std::int64_t closed = 0;
  try {
    closed = job->add(kWorldsClosed, 0);
  } catch (const std::exception& error) {
    throw Error(
        "[world] the launcher's store was lost: " + world::first_line_of(error),
        ErrorCode::kPeerLost);
  }
  return c10::make_intrusive<c10d::PrefixStore>(str("world-", closed), job);
}

// Gives every member its peers' rows, which have their lengths already.
template <typename Row>
void exchange_all(
    world::C10dGroup& group,
    std::vector<Row>& rows,
    c10::ScalarType dtype,
    const char* what) {
  const int tag = group.next_own_tag();
  // The tensors only borrow the rows, which outlive the waits below.
  const auto borrow = [&](Row& row) {
    return at::from_blob(
        row.data(), {static_cast<std::int64_t>(row.size())},
        at::TensorOptions().dtype(dtype));
  };
  std::vector<world::Pending> pending;
  auto& ours = rows[static_cast<std::size_t>(group.index())];
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer != group.index()) {
      auto& theirs = rows[static_cast<std::size_t>(peer)];
      pending.push_back(group.receive(borrow(theirs), peer, tag));
      pending.push_back(group.send(borrow(ours), peer, tag));
    }
  }
  for (auto& one : pending) {
    group.wait(one, what).throw_if_failed();
  }
}

}  // namespace

World World::from_environment(const WorldOptions& options) {
  check_options(options);
  const EnvironmentLookup lookup = process_environment();
  const RankEnvironment env = read_rank_environment(lookup);
  if (env.world_size == 1) {
    World world = single();
    world.impl_->options = options;
    return world;
  }
  const c10::intrusive_ptr<c10d::Store> store =
      c10::make_intrusive<c10d::PrefixStore>(
          store_prefix(lookup),
          world::connect_store(env, options.rendezvous_deadline));
  auto host = world::HostIdentity::of_this_process();
  host.fake = env.fake_host ? str(*env.fake_host) : "";
  auto world = world::make_world(
      env.agent_store ? store_of_next_world(store) : store, env.rank,
      env.world_size, options, host, env.master_addr);
  if (env.agent_store) {
    world.impl_->job_store = store;
  }
  return world;
}

World World::from_store(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    const WorldOptions& options) {
  return world::make_world(
      std::move(store), rank, size, options,
      world::HostIdentity::of_this_process(), "");
}

World World::single() {
  auto impl = std::make_shared<Impl>();
  impl->records.push_back(world::RankRecord::of_this_process(
      0, 1, impl->board.fd(), world::HostIdentity::of_this_process()));
  impl->watch =
      std::make_unique<world::PeerWatch>(0, impl->records, impl->board);
  return World(std::move(impl));
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
  auto impl = std::make_shared<World::Impl>();
  impl->rank = rank;
  impl->size = size;
  impl->options = options;
  impl->master_addr = master_addr;
  impl->store = std::move(store);
  const auto mine =
      RankRecord::of_this_process(rank, size, impl->board.fd(), host);
  impl->records = rendezvous(*impl->store, mine, options.rendezvous_deadline);
  impl->local_size = 0;
  for (const RankRecord& record : impl->records) {
    if (same_host(record.host, host)) {
      impl->local_rank += record.rank < rank ? 1 : 0;
      ++impl->local_size;
    }
  }
  impl->watch = std::make_unique<PeerWatch>(rank, impl->records, impl->board);
  return World(std::move(impl));
}

int World::rank() const { return impl_->rank; }
int World::size() const { return impl_->size; }
int World::local_rank() const { return impl_->local_rank; }
int World::local_size() const { return impl_->local_size; }
const WorldOptions& World::options() const { return impl_->options; }

int World::next_number() const { return impl_->made++; }

void World::barrier() const {
  if (size() > 1) {
    impl_->all_ranks().barrier("World::barrier").throw_if_failed();
  }
}

std::vector<std::vector<double>> World::all_gather(
    const std::vector<double>& mine) const {
  std::vector<std::vector<double>> all(
      static_cast<std::size_t>(size()), std::vector<double>(mine.size()));
  all[static_cast<std::size_t>(rank())] = mine;
  if (size() == 1) {
    return all;
  }
  exchange_all(
      impl_->all_ranks(), all, c10::ScalarType::Double, "World::all_gather");
  return all;
}

std::vector<std::string> World::all_gather_texts(
    const std::string& mine) const {
  std::vector<std::string> all;
  for (const auto& one : all_gather({static_cast<double>(mine.size())})) {
    all.emplace_back(static_cast<std::size_t>(one[0]), '\0');
  }
  all[static_cast<std::size_t>(rank())] = mine;
  if (size() > 1) {
    exchange_all(
        impl_->all_ranks(), all, c10::ScalarType::Byte,
        "World::all_gather_texts");
  }
  return all;
}

void World::broadcast(const std::vector<at::Tensor>& tensors) const {
  double bytes = 0;
  for (const auto& tensor : tensors) {
    SHERD_CHECK(
        tensor.is_contiguous() && tensor.device().is_cpu(),
        "[world] expected contiguous CPU tensors to broadcast");
    bytes += static_cast<double>(tensor.nbytes());
  }
  const auto all = all_gather({static_cast<double>(tensors.size()), bytes});
  for (std::size_t r = 0; r < all.size(); ++r) {
    SHERD_CHECK_AS(
        kPeerMismatch, all[r] == all[0], "[world] ranks disagree on what to ",
        "broadcast: rank 0 has ", all[0][0], " tensors of ", all[0][1],
        " bytes, rank ", r, " has ", all[r][0], " of ", all[r][1]);
  }
  if (size() == 1) {
    return;
  }
  auto& group = impl_->all_ranks();
  const int tag = group.next_own_tag();
  std::vector<world::Pending> pending;
  for (const auto& tensor : tensors) {
    const auto plain = tensor.detach();
    if (rank() != 0) {
      pending.push_back(group.receive(plain, 0, tag));
    }
    for (int peer = 1; rank() == 0 && peer < size(); ++peer) {
      pending.push_back(group.send(plain, peer, tag));
    }
  }
  for (auto& one : pending) {
    group.wait(one, "World::broadcast").throw_if_failed();
  }
}

void World::close() {
  if (impl_->closed) {
    return;
  }
  if (size() > 1) {
    impl_->announce_closing();
    auto& group = impl_->all_ranks();
    // The store ends when everybody has come and before anybody goes on, who
    // may make another world at once.
    const auto status =
        group.close("World::close", [this] { impl_->end_store(); });
    if (!status.ok()) {
      group.abandon(status);  // Ranks that wait in theirs hear at once.
      status.throw_if_failed();
    }
  }
  // Everybody has come: from here on a rank that ends is in order.
  impl_->closed = true;
  impl_->watch->stop();
  impl_->board.record_end(world::ExitStatus::End::kLeft);
  impl_->retired.clear();
  impl_->barrier_group.reset();
  impl_->end_store();
}

void World::Impl::end_store() {
  try {
    if (job_store != nullptr && rank == 0) {
      job_store->add(kWorldsClosed, 1);
    }
  } catch (const std::exception&) {
    // The launcher's store has ended before its ranks: there is no next world.
    job_store.reset();
  }
  job_store.reset();
  store.reset();
}

World::Impl::~Impl() {
  if (std::uncaught_exceptions() > 0) {
    board.record_failure(rank, "ended by an exception");
  }
  board.record_end(
      board.read().trouble ? world::ExitStatus::End::kGaveUp
                           : world::ExitStatus::End::kLeft);
}

}  // namespace sherd
