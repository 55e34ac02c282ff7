// SPDX-License-Identifier: Apache-2.0
#include "exchange/make_exchange.h"

#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/cores.h"
#include "exchange/collective_exchange.h"
#include "exchange/hybrid_exchange.h"
#include "exchange/shared_memory_exchange.h"
#include "exchange/sum_thread.h"
#include "exchange/unit_transport.h"
#include "world/collectives.h"
#include "world/hosts.h"
#include "world/transport.h"

namespace sherd::exchange {
namespace {

constexpr const char* kVariable = "SHERD_EXCHANGE";

Kind kind_of(const std::string& text) {
  if (text == "auto") {
    return Kind::kAuto;
  }
  if (text == "collective") {
    return Kind::kCollective;
  }
  if (text == "hierarchical") {
    return Kind::kHierarchical;
  }
  SHERD_CHECK(
      text == "shm", "[exchange] ", kVariable, " is \"", text,
      "\"; expected auto, collective, shm or hierarchical");
  return Kind::kSharedMemory;
}

Kind asked_for(Kind wanted, const EnvironmentLookup& environment) {
  const auto variable = environment(kVariable);
  return wanted == Kind::kAuto && variable ? kind_of(*variable) : wanted;
}

void check_all_chose(
    world::Transport& transport,
    const std::vector<int>& ranks,
    const std::string& mine) {
  const auto all = world::Collectives(transport, "the kind of exchange")
                       .all_gather_texts(mine);
  all.status().throw_if_failed();
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    SHERD_CHECK_AS(
        kPeerMismatch, all.value()[i] == all.value()[0], "[exchange] rank ",
        ranks[0], " exchanges by ", all.value()[0], ", rank ", ranks[i], " by ",
        all.value()[i], "; expected one kind (FullyShardOptions::exchange, ",
        kVariable, ")");
  }
}

}  // namespace

const char* text_of(Kind kind) {
  switch (kind) {
    case Kind::kSharedMemory:
      return "shared memory";
    case Kind::kHierarchical:
      return "shared memory and messages";
    default:
      return "messages";
  }
}

Kind choose_kind(
    const World& world,
    const std::vector<int>& ranks,
    Kind wanted,
    const EnvironmentLookup& environment) {
  const auto kind = asked_for(wanted, environment);
  if (kind != Kind::kAuto || ranks.size() == 1) {
    return kind == Kind::kAuto ? Kind::kCollective : kind;
  }
  std::vector<int> counts;
  for (const auto& host : world::ranks_by_host(world, ranks)) {
    counts.push_back(static_cast<int>(host.size()));
  }
  return kind_for(counts);
}

Kind choose_kind_across(
    const World& world,
    const std::vector<int>& ranks,
    Kind wanted,
    const EnvironmentLookup& environment) {
  const bool by_messages = ranks.size() == 1 ||
      asked_for(wanted, environment) == Kind::kCollective ||
      world::ranks_by_host(world, ranks).size() > 1;
  return by_messages ? Kind::kCollective : Kind::kSharedMemory;
}

Kind kind_for(std::span<const int> ranks_by_host) {
  if (ranks_by_host.size() == 1) {
    return Kind::kSharedMemory;
  }
  const bool any_share = std::any_of(
      ranks_by_host.begin(), ranks_by_host.end(),
      [](int ranks) { return ranks > 1; });
  return any_share ? Kind::kHierarchical : Kind::kCollective;
}

std::unique_ptr<Exchange> make_exchange(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    Kind kind) {
  SHERD_ASSERT(kind != Kind::kAuto);
  auto transport = world::make_c10d_transport(world, name + "/gather", ranks);
  if (ranks.size() == 1) {
    return make_collective_exchange(transport, transport);
  }
  check_all_chose(*transport, ranks, text_of(kind));
  if (kind == Kind::kSharedMemory) {
    return make_shared_memory_exchange(
        world, name, std::move(transport),
        {.sum_thread = sums_have_a_thread(
             {.cores = static_cast<int>(allowed_cores().size()),
              .ranks = static_cast<int>(ranks.size()),
              .threads = at::get_num_threads()},
             process_environment())});
  }
  if (kind == Kind::kHierarchical) {
    return make_hierarchical_exchange(world, name, std::move(transport));
  }
  return make_collective_exchange(
      std::move(transport),
      world::make_c10d_transport(world, name + "/reduce", ranks));
}

std::unique_ptr<Exchange> make_hierarchical_exchange(
    const World& world,
    const std::string& name,
    std::shared_ptr<world::Transport> gather) {
  const auto& ranks = gather->ranks();
  auto hosts = world::ranks_by_host(world, ranks);
  for (auto& host : hosts) {
    for (auto& rank : host) {  // Their positions from here on.
      rank = static_cast<int>(
          std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    }
  }
  return make_collective_exchange_with(
      std::move(gather),
      world::make_c10d_transport(
          world, name + "/reduce", ranks, 2 * world.options().deadline),
      [=](const ModelSpec& model, const auto& gathers,
          const auto& sums) -> Result<std::unique_ptr<UnitTransport>> {
        if (model.placement == ModelPlacement::kReplicate) {
          return make_message_unit_transport(model, gathers, sums);
        }
        return make_hierarchical_unit_transport(
            world, name, hosts, model, gathers, sums);
      });
}

std::unique_ptr<Exchange> make_comm_hook_exchange(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    const std::string& hook,
    ReduceUnit reduce) {
  auto transport = world::make_c10d_transport(world, name + "/gather", ranks);
  check_all_chose(*transport, ranks, "hook " + hook);
  return make_collective_exchange_with(
      std::move(transport),
      world::make_c10d_transport(world, name + "/reduce", ranks),
      [reduce = std::move(reduce)](
          const auto& model, const auto& gathers,
          const auto& reductions) -> Result<std::unique_ptr<UnitTransport>> {
        return make_comm_hook_unit_transport(
            model, make_message_unit_transport(model, gathers, reductions),
            reductions, reduce);
      });
}

std::unique_ptr<Exchange> make_exchange(
    const Mesh& mesh,
    const std::string& name,
    const MeshExchangeOptions& options) {
  const auto& world = mesh.world();
  if (mesh.replicate_size() == 1) {
    return make_exchange(world, name, mesh.shard_ranks(), options.within);
  }
  // Groups that do not meet have names of their own all the same.
  auto within = make_exchange(
      world, str(name, "/replica", mesh.replicate_index()), mesh.shard_ranks(),
      options.within);
  auto across = make_exchange(
      world, str(name, "/shard", mesh.shard_index()), mesh.replicate_ranks(),
      options.across);
  return make_hybrid_exchange(
      std::move(within), std::move(across),
      {.shard_index = mesh.shard_index(),
       .replicas = mesh.replicate_size(),
       .both_axes = options.both_axes});
}

}  // namespace sherd::exchange
