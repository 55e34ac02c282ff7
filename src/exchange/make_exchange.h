// SPDX-License-Identifier: Apache-2.0
//
// Chooses and makes the exchange for a group of ranks. This is the only file above the
// implementations that knows all of them. Thread rule: any thread.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <c10/core/Device.h>
#include <sherd/world/world.h>
#include "base/flight_recorder.h"
#include "base/rank_environment.h"
#include "exchange/coded_shards.h"
#include "exchange/exchange.h"
#include "exchange/reduce_hook.h"
#include "exchange/unit_transport.h"

namespace sherd::exchange {

using Kind = ExchangeKind;

// For messages, e.g. "shared memory".
const char* text_of(Kind kind);

// The kind that suits hosts with `ranks_by_host` ranks each: shared memory on one host, and none if
// each rank has a host of its own. A pure function.
Kind kind_for(std::span<const int> ranks_by_host);

// What `wanted` means for `ranks` (world ranks, ascending). If it is kAuto, SHERD_EXCHANGE decides
// ("auto", "collective", "shm" or "hierarchical"); if that is unset or "auto", the hosts decide.
// For parameters on a `device` other than the CPU only kCollective is possible. Throws Error if the
// variable has another value, or if host memory is requested for parameters on a device.
Kind choose_kind(
    const World& world,
    const std::vector<int>& ranks,
    Kind wanted,
    const EnvironmentLookup& environment,
    c10::Device device = c10::kCPU);

// The same for ranks of the replicate axis, which may be on other hosts than their neighbours on
// the shard axis: shared memory if they are all on one host, otherwise messages; always messages if
// those are requested.
Kind choose_kind_across(
    const World& world,
    const std::vector<int>& ranks,
    Kind wanted,
    const EnvironmentLookup& environment);

// Whether ranks that share memory sum gradients on a thread of their own, as SHERD_SUM_THREAD says
// ("on", "off" or "auto"); otherwise true if each of the `ranks` that share the `cores` has one
// beside those of its operators, which have `threads`. Throws Error if the variable has another
// value.
bool sums_have_a_thread(
    int cores, int ranks, int threads, const EnvironmentLookup& environment);

// Collective over `ranks`, under a `name` that is unique in this world. A single rank needs no
// connection, and so no store. Throws Error if the ranks cannot be connected, and on all of them if
// they differ in `kind`, which must not be kAuto, or in the name of `hook`. If parameters lie on a
// `device`, bytes move between devices, in their streams. A `hook` reduces gradients instead of the
// exchange, and memory may be the backends' (MeshExchangeOptions). REQUIRES: kCollective in both
// cases.
std::unique_ptr<Exchange> make_exchange(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    Kind kind = Kind::kCollective,
    c10::Device device = c10::kCPU,
    const std::optional<ReduceHook>& hook = std::nullopt,
    bool memory_from_backend = false);

// For a shard axis that spans several hosts: ranks of a host share memory, and between hosts each
// rank moves its part by messages, so that a host receives every byte once. Ranks agree as in
// CollectiveExchange; replicated units are moved only by messages. Collective over the ranks of
// `gather`, any number on each host. Throws Error if they cannot be connected.
// docs/design/hierarchical.md
std::unique_ptr<Exchange> make_hierarchical_exchange(
    const World& world,
    const std::string& name,
    std::shared_ptr<world::Transport> gather,
    FlightLog log = {});

// Collective over `ranks`, under a `name` that is unique in this world. For hooks that no exchange
// calls.
std::unique_ptr<DeviceCollectives> make_device_collectives(
    const World& world,
    c10::Device device,
    const std::string& name,
    const std::vector<int>& ranks);

struct MeshExchangeOptions {
  Kind within = Kind::kCollective;  // On the shard axis.
  Kind across = Kind::kCollective;  // On the other axis; not hierarchical.
  bool both_axes = false;           // As in MeshPosition.
  // Reduces gradients across replicas or, if there is one, on the shard axis; on the CPU by
  // messages.
  std::optional<ReduceHook> hook = std::nullopt;
  // Those of the shard axis; on the CPU by messages. Secondary shards are used if `within` is
  // kCollective or there is a hook.
  GatherOptions gathers = {};
  // Where parameters lie.
  c10::Device device = c10::kCPU;
  // On a device: units, shards and gradients lie in memory that the backends of its collectives
  // allocate, if they do that.
  bool memory_from_backend = false;
};

// Collective over all ranks of the mesh. With one replica like the function above, otherwise a
// HybridExchange.
std::unique_ptr<Exchange> make_exchange(
    const Mesh& mesh,
    const std::string& name,
    const MeshExchangeOptions& options = {});

}  // namespace sherd::exchange
