// SPDX-License-Identifier: Apache-2.0
//
// World is this process's membership in the group of all ranks of one job: its rank, their number,
// and the store through which they meet. Mesh arranges the ranks on two named axes, W = R x F:
// `replicate` (outer) and `shard` (inner), rank = replicate_index * F + shard_index.
//
// Both are cheap handles on shared state: copies stand for the same job. Thread rule: any thread for
// the getters, one thread for everything else.
// Mirrors torch.distributed.init_process_group and init_device_mesh.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace sherd {

struct WorldOptions {
  // How long any wait for another rank may last while that rank makes no
  // progress. After that the wait ends with an error that names the rank.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // How long ranks may take to arrive when the job starts.
  std::chrono::milliseconds rendezvous_deadline = std::chrono::minutes(5);
  // The interface ("eth0") for connections between hosts. Empty: the one that
  // leads to rank 0. Ranks of one host always use the loopback address.
  std::string network_interface{};
  // Models made over this world, 64 at most, use the same connections, two to each
  // other rank, instead of two for each model. They share their fate, too: the
  // failure of one is that of all, and a rank that closes one of them early is
  // noticed at the deadline. Equal on all ranks. Mirrors share_comm_ctx() of FSDP2.
  bool share_connections = false;
};

class World {
 public:
  // Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
  // MASTER_PORT (torchrun's names, its agent store included), else Slurm's or
  // Open MPI's variables; with none of them set the world is this one process.
  // Collective: returns when all ranks have met. Throws Error, on every rank
  // that arrived, when a variable is malformed, the port is taken, ranks
  // disagree on the world size, or one does not arrive in time. A process may
  // make another world once every rank has closed the one before.
  static World from_environment(const WorldOptions& options = {});

  // The same over a store that exists already (tests, other launchers).
  // REQUIRES: every rank passes an equal `size` and its own `rank`.
  static World from_store(
      c10::intrusive_ptr<c10d::Store> store,
      int rank,
      int size,
      const WorldOptions& options = {});

  // One process, no store, no communication.
  static World single();

  int rank() const;
  int size() const;
  // Position among the ranks of this host, and their number.
  int local_rank() const;
  int local_size() const;
  const WorldOptions& options() const;

  // Collective: returns on a rank when all ranks have called it. Throws Error
  // when one is lost or does not come before the deadline.
  void barrier() const;

  // Collective: every rank's numbers, by rank; equally many from each. For
  // metrics, not for tensors. Throws Error when a rank is lost.
  std::vector<std::vector<double>> all_gather(
      const std::vector<double>& mine) const;

  // The same for texts of any bytes and lengths. Every rank holds all of them
  // in memory.
  std::vector<std::string> all_gather_texts(const std::string& mine) const;

  // Collective, in place: every rank gets rank 0's values. Contiguous CPU
  // tensors. Throws Error, on every rank, when a rank is lost or ranks differ
  // in the number of tensors or bytes.
  void broadcast(const std::vector<at::Tensor>& tensors) const;

  // Collective over `ranks`, ascending, of which this is one: a world of these ranks alone, numbered
  // from 0 in that order, over which other things can be made than elsewhere, such as one model on
  // each half of the job. It has this world's options. Close it before this world, on all of its
  // ranks. Throws Error when this rank is not in `ranks`, and when one of them does not come in
  // time. Mirrors torch.distributed.new_group and slices of a DeviceMesh, but ranks outside take no
  // part.
  World subset(const std::vector<int>& ranks) const;

  // Collective. Ends the connections in order; afterwards only getters work.
  // Destroy or close what was made over this world, e.g. models, first. A rank that calls it while
  // others wait for it elsewhere ends their wait: they throw and name it. Throws
  // Error when a rank was lost.
  // Destruction without close() is safe and never waits, but a peer that still
  // needs this rank gets an error that says it left.
  void close();

  // Returns 0, 1, ...: a number for each object that is made over this world.
  // It is equal on all ranks that make their objects in the same order.
  int next_number() const;

  // Internal: what src/world makes of it.
  struct Impl;
  explicit World(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

struct MeshOptions {
  int replicate = 1;
  int shard = 0;  // 0: whatever is left, world size / replicate.
};

class Mesh {
 public:
  // Throws unless replicate * shard == world.size().
  explicit Mesh(const World& world, const MeshOptions& options = {});

  const World& world() const { return world_; }
  int replicate_size() const { return replicate_size_; }
  int shard_size() const { return shard_size_; }
  int replicate_index() const { return world_.rank() / shard_size_; }
  int shard_index() const { return world_.rank() % shard_size_; }
  // World ranks that share this rank's position on the other axis, in order.
  std::vector<int> replicate_ranks() const;
  std::vector<int> shard_ranks() const;

 private:
  World world_;
  int replicate_size_;
  int shard_size_;
};

}  // namespace sherd
