// SPDX-License-Identifier: Apache-2.0
#include "exchange/make_exchange.h"

#include <algorithm>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/check.h"
#include "base/host.h"
#include "exchange/collective_exchange.h"
#include "exchange/hybrid_exchange.h"
#include "exchange/recorded_exchange.h"
#include "exchange/shared_memory_exchange.h"
#include "exchange/stream_unit_transport.h"
#include "exchange/unit_transport.h"
#include "world/collectives.h"
#include "world/device_backend.h"
#include "world/flight.h"
#include "world/host_segment.h"
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
    const EnvironmentLookup& environment,
    c10::Device device) {
  const auto kind = asked_for(wanted, environment);
  if (!device.is_cpu()) {
    SHERD_CHECK(
        kind == Kind::kAuto || kind == Kind::kCollective,
        "[exchange] parameters are on ", device.str(),
        ", and ranks are to exchange by ", text_of(kind),
        ", which is memory of the host; expected ExchangeKind::kAuto or "
        "kCollective (options.exchange, ",
        kVariable, ")");
    return Kind::kCollective;
  }
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
  const bool any_share =
      std::ranges::any_of(ranks_by_host, [](int ranks) { return ranks > 1; });
  return any_share ? Kind::kHierarchical : Kind::kCollective;
}

bool sums_have_a_thread(
    int cores, int ranks, int threads, const EnvironmentLookup& environment) {
  const auto text = environment("SHERD_SUM_THREAD").value_or("auto");
  SHERD_CHECK(
      text == "auto" || text == "on" || text == "off",
      "[exchange] SHERD_SUM_THREAD is \"", text,
      "\"; expected auto, on or off");
  return text == "auto" ? cores >= ranks * (threads + 1) : text == "on";
}

namespace {

FlightLog log_of(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks) {
  const auto recorder = world::flight_recorder_of(world);
  return recorder ? FlightLog(recorder, name, ranks) : FlightLog();
}

// Records what happens inside it alone.
std::unique_ptr<Exchange> connect_exchange(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    Kind kind,
    const FlightLog& log) {
  SHERD_ASSERT(kind != Kind::kAuto);
  auto transport = world::make_model_transport(world, name + "/gather", ranks);
  if (ranks.size() == 1) {
    return make_collective_exchange(transport, transport, nullptr, log);
  }
  check_all_chose(*transport, ranks, text_of(kind));
  if (kind == Kind::kSharedMemory) {
    return make_shared_memory_exchange(
        world, name, std::move(transport),
        sums_have_a_thread(
            static_cast<int>(allowed_cores().size()),
            static_cast<int>(ranks.size()), at::get_num_threads(),
            process_environment()),
        log);
  }
  if (kind == Kind::kHierarchical) {
    return make_hierarchical_exchange(world, name, std::move(transport), log);
  }
  return make_collective_exchange(
      std::move(transport),
      world::make_model_transport(world, name + "/reduce", ranks), nullptr,
      log);
}

// What is special about an axis.
struct AxisOptions {
  std::optional<ReduceHook> hook = std::nullopt;
  GatherOptions gathers = {};
  bool memory_from_backend = false;
};

// What ranks compare before they connect.
std::string describe(const std::string& kind, const AxisOptions& options) {
  std::string text = kind;
  if (options.hook) {
    text += ", hook " + options.hook->name;
  }
  if (options.gathers.coder) {
    text += ", gather hook " + options.gathers.coder->name;
  }
  if (options.memory_from_backend) {
    text += ", memory of their backend";
  }
  return options.gathers.secondary_ranks > 0
      ? text + str(", secondary shards over ", options.gathers.secondary_ranks)
      : text;
}

// The so many neighbours among the ranks that `rank` is one of.
std::vector<int> neighbours_of(
    int rank, const std::vector<int>& ranks, int group_ranks) {
  const auto place = std::ranges::find(ranks, rank) - ranks.begin();
  const auto first = ranks.begin() + place / group_ranks * group_ranks;
  return {first, first + group_ranks};
}

// Makes backends over some of the ranks, by their positions.
DeviceCollectives::Connect connector_among(
    const World& world,
    c10::Device device,
    const std::string& name,
    const std::vector<int>& ranks) {
  return [=](const std::vector<int>& members) {
    std::vector<int> some;
    std::string text;
    for (const int member : members) {
      some.push_back(ranks.at(static_cast<std::size_t>(member)));
      text += str("/", member);
    }
    return world::make_device_backend(
        world, device, str(name, "/among", text), some);
  };
}

// Ranks that agree by messages, and whose devices move the rest.
struct DeviceAxis {
  std::shared_ptr<world::Transport> gather;
  std::shared_ptr<world::Transport> reduce;
  DeviceBackends backends;
};

DeviceAxis connect_devices(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    c10::Device device,
    const AxisOptions& options) {
  auto transport = world::make_model_transport(world, name + "/gather", ranks);
  const bool in_rank_order = at::globalContext().deterministicAlgorithms();
  if (ranks.size() > 1) {
    check_all_chose(
        *transport, ranks,
        describe(
            str("collectives of ", c10::DeviceTypeName(device.type(), true),
                " devices",
                in_rank_order ? " with deterministic algorithms" : ""),
            options));
  }
  auto reduce = ranks.size() == 1
      ? transport
      : world::make_model_transport(world, name + "/reduce", ranks);
  DeviceBackends backends{
      .device = device,
      .gather =
          world::make_device_backend(world, device, name + "/gather", ranks),
      .reduce =
          {.backend = world::make_device_backend(
               world, device, name + "/reduce", ranks),
           .messages = reduce},
      .memory_from_backend = options.memory_from_backend,
      .sums_in_rank_order = in_rank_order};
  if (ranks.size() > 1) {
    backends.gathers = options.gathers;
    backends.reduce.hook = options.hook;
    backends.reduce.connect = connector_among(world, device, name, ranks);
  }
  if (const int group_ranks = backends.gathers.secondary_ranks;
      group_ranks > 0) {
    const auto group = neighbours_of(world.rank(), ranks, group_ranks);
    backends.secondary = world::make_device_backend(
        world, device, str(name, "/group", group.front()), group);
  }
  return {std::move(transport), std::move(reduce), std::move(backends)};
}

std::unique_ptr<Exchange> exchange_over(DeviceAxis axis, const FlightLog& log) {
  return make_collective_exchange(
      std::move(axis.gather), std::move(axis.reduce),
      over_devices(std::move(axis.backends)), log);
}

// In the way that the options allow, by messages.
std::unique_ptr<Exchange> connect_messages(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    const AxisOptions& options,
    const FlightLog& log) {
  auto transport = world::make_model_transport(world, name + "/gather", ranks);
  check_all_chose(
      *transport, ranks, describe(text_of(Kind::kCollective), options));
  return make_collective_exchange(
      std::move(transport),
      world::make_model_transport(world, name + "/reduce", ranks),
      [options](const auto& model, const auto& gathers, const auto& reductions)
          -> Result<std::unique_ptr<UnitTransport>> {
        return make_message_unit_transport(
            model, gathers, reductions, options.gathers, options.hook);
      },
      log);
}

// The same, also on devices.
std::unique_ptr<Exchange> connect_axis(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    Kind kind,
    c10::Device device,
    const AxisOptions& options,
    const FlightLog& log) {
  if (!device.is_cpu()) {
    return exchange_over(
        connect_devices(world, name, ranks, device, options), log);
  }
  const auto& gathers = options.gathers;
  const bool other_gathers = gathers.coder ||
      (gathers.secondary_ranks > 0 && kind == Kind::kCollective);
  return options.hook || (other_gathers && ranks.size() > 1)
      ? connect_messages(world, name, ranks, options, log)
      : connect_exchange(world, name, ranks, kind, log);
}

}  // namespace

std::unique_ptr<Exchange> make_exchange(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    Kind kind,
    c10::Device device,
    const std::optional<ReduceHook>& hook,
    bool memory_from_backend) {
  const auto log = log_of(world, name, ranks);
  return make_recorded_exchange(
      connect_axis(
          world, name, ranks, kind, device,
          {.hook = hook, .memory_from_backend = memory_from_backend}, log),
      log);
}

std::unique_ptr<Exchange> make_hierarchical_exchange(
    const World& world,
    const std::string& name,
    std::shared_ptr<world::Transport> gather,
    FlightLog log) {
  const auto& ranks = gather->ranks();
  auto hosts = world::ranks_by_host(world, ranks);
  for (auto& host : hosts) {
    for (auto& rank : host) {  // Their positions from here on.
      rank = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
    }
  }
  return make_collective_exchange(
      std::move(gather),
      world::make_model_transport(
          world, name + "/reduce", ranks, 2 * world.options().deadline),
      [=](const ModelSpec& model, const auto& gathers,
          const auto& sums) -> Result<std::unique_ptr<UnitTransport>> {
        if (model.replicates()) {
          return make_message_unit_transport(model, gathers, sums);
        }
        return make_hierarchical_unit_transport(
            world, name, hosts, model, gathers, sums);
      },
      std::move(log));
}

std::unique_ptr<DeviceCollectives> make_device_collectives(
    const World& world,
    c10::Device device,
    const std::string& name,
    const std::vector<int>& ranks) {
  return std::make_unique<DeviceCollectives>(
      device, world::make_device_backend(world, device, name, ranks),
      connector_among(world, device, name, ranks));
}

std::unique_ptr<Exchange> make_exchange(
    const Mesh& mesh,
    const std::string& name,
    const MeshExchangeOptions& options) {
  const auto& world = mesh.world();
  const bool on_cpu = options.device.is_cpu();
  if (mesh.replicate_size() == 1) {
    const auto log = log_of(world, name, mesh.shard_ranks());
    return make_recorded_exchange(
        connect_axis(
            world, name, mesh.shard_ranks(), options.within, options.device,
            {.hook = options.hook,
             .gathers = options.gathers,
             .memory_from_backend = options.memory_from_backend},
            log),
        log);
  }
  const auto log = log_of(world, name, Mesh(world).shard_ranks());
  // Groups that do not meet have names of their own all the same.
  const auto replica = str(name, "/replica", mesh.replicate_index());
  const auto shard = str(name, "/shard", mesh.shard_index());
  const auto log_within = log.part(replica, mesh.shard_ranks());
  const auto log_across = log_of(world, shard, mesh.replicate_ranks());
  const AxisOptions within_options{
      .gathers = options.gathers,
      .memory_from_backend = options.memory_from_backend};
  const AxisOptions across_options{
      .hook = options.hook, .memory_from_backend = options.memory_from_backend};
  std::unique_ptr<Exchange> within, across;
  if (on_cpu) {
    // A rank that is a replica by itself uses its units where it has them.
    within = options.both_axes && mesh.shard_size() == 1
        ? make_shared_memory_exchange(
              world, replica,
              world::make_model_transport(
                  world, replica + "/gather", mesh.shard_ranks()),
              /*sum_thread=*/false, log_within)
        : connect_axis(
              world, replica, mesh.shard_ranks(), options.within,
              options.device, within_options, log_within);
    across = connect_axis(
        world, shard, mesh.replicate_ranks(), options.across, options.device,
        across_options, log_across);
  } else {
    auto shard_axis = connect_devices(
        world, replica, mesh.shard_ranks(), options.device, within_options);
    auto replicate_axis = connect_devices(
        world, shard, mesh.replicate_ranks(), options.device, across_options);
    // With its hook, which the exchange of the replicate axis has no use for.
    shard_axis.backends.across =
        std::exchange(replicate_axis.backends.reduce, {});
    replicate_axis.backends.reduce.backend =
        shard_axis.backends.across->backend;
    within = exchange_over(std::move(shard_axis), log_within);
    across = exchange_over(std::move(replicate_axis), log_across);
  }
  const auto reduce_across = !on_cpu ? ReduceAcross::kByShardAxis
      : options.hook                 ? ReduceAcross::kInOrder
                                     : ReduceAcross::kInAnyOrder;
  return make_recorded_exchange(
      make_hybrid_exchange(
          std::move(within), std::move(across),
          {.shard_index = mesh.shard_index(),
           .replicas = mesh.replicate_size(),
           .both_axes = options.both_axes},
          reduce_across, options.device),
      log);
}

}  // namespace sherd::exchange
