// SPDX-License-Identifier: Apache-2.0
//
// Chooses and makes the exchange for a group of ranks: the one file above the implementations that knows
// them all. Thread rule: any thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <c10/core/Device.h>
#include <sherd/world/exchange_kind.h>
#include <sherd/world/world.h>
#include "base/flight_recorder.h"
#include "base/rank_environment.h"
#include "exchange/coded_shards.h"
#include "exchange/comm_hook_unit_transport.h"
#include "exchange/exchange.h"

namespace sherd::exchange {

using Kind = ExchangeKind;

// For messages, e.g. "shared memory".
const char* text_of(Kind kind);

// What suits ranks on these hosts, `ranks_by_host` many on each: shared memory
// on one host, none of it where each rank has a host of its own. Pure.
Kind kind_for(std::span<const int> ranks_by_host);

// What `wanted` means for `ranks` (world ranks, ascending). Where that is left
// open, SHERD_EXCHANGE says it ("auto", "collective", "shm" or
// "hierarchical"), else the hosts do. Parameters on a `device` other than the CPU leave
// collectives only. Throws Error when the variable says something else, and when memory of the
// host is asked for that on a device.
Kind choose_kind(
    const World& world,
    const std::vector<int>& ranks,
    Kind wanted,
    const EnvironmentLookup& environment,
    c10::Device device = c10::kCPU);

// The same for ranks of the replicate axis, who may be on other hosts than their
// neighbours on the shard axis: shared memory where they are all on one host,
// else messages; messages where those are asked for.
Kind choose_kind_across(
    const World& world,
    const std::vector<int>& ranks,
    Kind wanted,
    const EnvironmentLookup& environment);

// Collective over `ranks`, under a `name` unique in this world. A single rank
// needs no connection, hence no store. Throws Error when they cannot be
// connected, and on all of them when they differ in `kind`, which is not kAuto. Where parameters lie
// on a `device`, bytes move between devices, in their streams. REQUIRES: kCollective there.
std::unique_ptr<Exchange> make_exchange(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    Kind kind = Kind::kCollective,
    c10::Device device = c10::kCPU);

// For a shard axis that spans several hosts: ranks of a host share memory, and between hosts each rank
// moves its part by messages, so that a host receives every byte once. Ranks agree as in
// CollectiveExchange; replicated units move by messages alone. Collective over the ranks of `gather`,
// any number on each host. Throws Error when they cannot be connected. docs/design/hierarchical.md
std::unique_ptr<Exchange> make_hierarchical_exchange(
    const World& world,
    const std::string& name,
    std::shared_ptr<world::Transport> gather,
    FlightLog log = {});

// As make_exchange() by messages or, where parameters lie on a `device`, by its collectives: the hook
// reduces gradients instead of the exchange. Throws Error, on all ranks, also when they differ in its
// name.
std::unique_ptr<Exchange> make_comm_hook_exchange(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    const ReduceHook& hook,
    c10::Device device = c10::kCPU);

// Collective over `ranks`, under a `name` unique in this world: for hooks that no exchange calls.
std::unique_ptr<DeviceCollectives> make_device_collectives(
    const World& world,
    c10::Device device,
    const std::string& name,
    const std::vector<int>& ranks);

struct MeshExchangeOptions {
  Kind within = Kind::kCollective;  // Of the shard axis.
  Kind across = Kind::kCollective;  // Of the replicate axis; not hierarchical.
  bool both_axes = false;           // As MeshPosition.
  // Reduces gradients across replicas or, where there is one, on the shard axis: on the CPU by
  // messages.
  std::optional<ReduceHook> hook = std::nullopt;
  // Codes what gathers on the shard axis carry: on the CPU by messages.
  std::shared_ptr<const ShardCoder> coder = nullptr;
  // GatherOptions of the shard axis, where `within` is kCollective or there is a hook.
  int secondary_ranks = 0;
  // Where parameters lie.
  c10::Device device = c10::kCPU;
};

// Collective over all ranks of the mesh. With one replica as above, otherwise a
// HybridExchange.
std::unique_ptr<Exchange> make_exchange(
    const Mesh& mesh,
    const std::string& name,
    const MeshExchangeOptions& options = {});

}  // namespace sherd::exchange
