// SPDX-License-Identifier: Apache-2.0
//
// World is this process's membership in the group of all ranks of a job: its rank, the number of
// ranks, and the store through which they meet. Mesh arranges the ranks on two named axes, W = R x
// F: `replicate` (outer) and `shard` (inner), with rank = replicate_index * F + shard_index.
//
// Both are cheap handles on shared state: copies stand for the same job. Thread rule: any thread
// for the getters, one thread for everything else. Mirrors torch.distributed.init_process_group and
// init_device_mesh.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <sherd/base/error.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace sherd {

// How ranks exchange parameters and gradients.
enum class ExchangeKind {
  // As the environment variable SHERD_EXCHANGE says (auto, collective, shm or hierarchical).
  // If it is not set: kSharedMemory if all ranks are on one host, kHierarchical on several hosts of
  // which at least one has more than one rank, kCollective otherwise and for modules on a GPU.
  kAuto,
  kCollective,  // Messages over a c10d process group. Works for any ranks.
  // Memory that all ranks map; they must run on one host. Every unit lies there whole, once, and
  // nothing is gathered. Resharding frees nothing then, so any byte budget is kept.
  kSharedMemory,
  // For several hosts. A host has one copy of each unit that is whole there, and receives each byte
  // of it once; gradients are summed on a host before they leave it. Since sums are made host by
  // host, their bits depend on which ranks share a host.
  kHierarchical,
};

struct WorldOptions {
  // How long this rank waits for another rank that makes no progress. After that the wait ends with
  // an error that names that rank.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // How long ranks may take to arrive when the job starts.
  std::chrono::milliseconds rendezvous_deadline = std::chrono::minutes(5);
  // The interface ("eth0") for connections between hosts. Empty: the one that leads to rank 0.
  // Ranks of one host always use the loopback address.
  std::string network_interface{};
  // Models made over this world share connections, two to each other rank for every 64 models, closed
  // ones included; otherwise each model has two of its own. They also fail together, and if a rank
  // closes one of them early, the others notice only at the deadline. Must be the same on all ranks.
  // Mirrors share_comm_ctx() of FSDP2.
  bool share_connections = false;
};

class World {
 public:
  // Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun's
  // names, its agent store included), otherwise the variables of Slurm or Open MPI. If none of them
  // is set, the world is this one process. Collective: returns when all ranks have met. Throws
  // Error, on every rank that arrived, if a variable is malformed, the port is taken, ranks
  // disagree on the world size, or a rank does not arrive in time. A process may make another world
  // once every rank has closed the one before.
  static World from_environment(const WorldOptions& options = {});

  // The same over an existing store (for tests and other launchers). REQUIRES: every rank passes
  // the same `size` and its own `rank`.
  static World from_store(
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      int size,
      const WorldOptions& options = {});

  // One process, no store, no communication.
  static World single();

  int rank() const;
  int size() const;
  // This rank's position among the ranks of its host, and their number.
  int local_rank() const;
  int local_size() const;
  const WorldOptions& options() const;

  // Collective: returns when all ranks have called it. Throws Error if a rank is lost or does not
  // come before the deadline, and (kPeerMismatch) on every rank if another one calls something else
  // here. So do all_gather(), all_gather_texts() and broadcast().
  void barrier() const;

  // Collective: returns every rank's numbers, by rank. Each rank passes equally many. For metrics,
  // not for tensors.
  std::vector<std::vector<double>> all_gather(
      const std::vector<double>& mine) const;

  // The same for texts, which may have any bytes and lengths. Every rank holds all of them in
  // memory.
  std::vector<std::string> all_gather_texts(const std::string& mine) const;

  // Collective: every rank gets rank 0's values, in place. For contiguous tensors; those on devices
  // are copied through the host. Throws Error (kPeerMismatch) on every rank also if ranks differ in
  // the number of tensors, or in a tensor's dtype or size.
  void broadcast(const std::vector<at::Tensor>& tensors) const;

  // Collective over `ranks`, which are ascending and include this one: makes a world of these ranks
  // only, numbered from 0 in that order. In this way, for instance, each half of a job can train
  // its own model. The subset has this world's options, and a thread rule of its own: other threads
  // may meanwhile use other subsets, in any order if parameters are on the CPU. Close it, on all of
  // its ranks, before this world. Throws Error if this rank is not in `ranks`, or if one of them
  // does not come in time. Mirrors torch.distributed.new_group and slices of a DeviceMesh, except
  // that ranks outside `ranks` do not take part.
  World subset(const std::vector<int>& ranks) const;

  // Collective: ends the connections in order; afterwards only the getters work. First destroy or
  // close what was made over this world, such as models. If a rank calls it while others still wait
  // for it elsewhere, their waits end with an Error that names it. Throws Error if a rank was lost.
  // Destruction without close() is safe and never waits, but a peer that still needs this rank gets
  // an error that says it left.
  void close();

  // Returns 0, 1, ...: a number for each object that is made over this world. It is the same on all
  // ranks if they make their objects in the same order.
  int next_number() const;

  // Internal: the state that src/world keeps.
  struct Impl;
  explicit World(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  const std::shared_ptr<Impl>& impl() const { return impl_.pointer(); }

 private:
  HandleState<std::shared_ptr<Impl>, "[world] World"> impl_;
};

struct MeshOptions {
  int replicate = 1;
  int shard = 0;  // 0: world size / replicate.
};

class Mesh {
 public:
  // Throws Error unless replicate * shard == world.size().
  explicit Mesh(const World& world, const MeshOptions& options = {});

  const World& world() const { return world_; }
  int replicate_size() const { return replicate_size_; }
  int shard_size() const { return shard_size_; }
  int replicate_index() const { return world_.rank() / shard_size_; }
  int shard_index() const { return world_.rank() % shard_size_; }
  // The world ranks along an axis, ascending: those with this rank's index on the other axis.
  std::vector<int> replicate_ranks() const;
  std::vector<int> shard_ranks() const;

 private:
  World world_;
  int replicate_size_;
  int shard_size_;
};

}  // namespace sherd
