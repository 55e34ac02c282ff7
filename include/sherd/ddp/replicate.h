// SPDX-License-Identifier: Apache-2.0
//
// Distributed data parallel training of an unmodified module: every rank has
// the whole model and its own part of the batch; gradients are averaged over
// ranks in buckets while backward goes on.
//
//   auto world = sherd::World::from_environment();
//   auto ddp = sherd::replicate(*model, world);
//   torch::optim::AdamW adamw(model->parameters());   // Any optimizer.
//   model->loss(batch).backward();                    // As on one device.
//   adamw.step();
//   adamw.zero_grad();
//
// Mirrors torch.nn.parallel.DistributedDataParallel; PyTorch Distributed,
// arXiv 2006.15704. Concepts: docs/guide/replicas.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/world/exchange_kind.h>
#include <sherd/world/world.h>
#include <sherd/ddp/comm_hook.h>
#include <sherd/optim/named_parameters.h>

namespace torch::nn {
class Module;
}

namespace sherd {

struct ReplicateOptions {
  // Performance. Gradients travel in buckets of about this many bytes, at least
  // one parameter each; the first is small, so that it leaves early. Memory grows
  // with it. PyTorch's 25 MiB are no faster between processes of a host.
  std::int64_t bucket_bytes = std::int64_t{8} << 20;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;
  // Performance. Buckets are filled in the order in which gradients became ready
  // in the first synchronised backward, which ranks agree on at its end; else in
  // reverse order of registration for good, so that a rank that comes later has
  // the same ones.
  bool learn_bucket_order = true;
  // Performance. What a rank's backwards use is the same each time: buckets do not
  // wait for parameters that the first synchronised one did not use there. One
  // that gets more or fewer gradients than then is an error on every rank.
  bool static_graph = false;
  // Performance. Same values either way, up to the order of sums.
  ExchangeKind exchange = ExchangeKind::kAuto;
  // Behaviour. Buckets on their way at a time; bounds memory beside gradients.
  // 0: no limit. As FullyShardOptions::reductions_under_way_max.
  int reductions_under_way_max = 4;
  // Behaviour. Parameters and buffers get rank 0's values first; otherwise
  // ranks must hold equal ones.
  bool init_sync = true;
  // Behaviour. At the end of each synchronised backward buffers (running
  // statistics) get rank 0's values, so that ranks evaluate alike.
  bool broadcast_buffers = true;
  // Behaviour. `.grad()` is a view into the memory that is reduced, instead of a
  // tensor of its own: saves a copy of all gradients, in memory and time.
  bool gradient_as_bucket_view = true;
  // Behaviour. Reduces gradients instead of the exchange, by messages; one object
  // for each handle, hooks of the same name on every rank. Unset: the mean.
  CommHookPtr hook = nullptr;
  // Behaviour. For buffers, e.g. their mean; needs broadcast_buffers. Mirrors
  // DistributedDataParallel._register_buffer_comm_hook.
  BufferHook buffer_hook = nullptr;
  // Performance. Parameters by name whose gradients are reduced after all others,
  // in buckets of their own: those that are known to come last, so that no other
  // waits for them.
  std::vector<std::string> delayed = {};
  // Behaviour. Parameters and buffers by name, that are neither compared, nor
  // synchronised, nor averaged.
  std::vector<std::string> ignored = {};
};

// Of one synchronised backward on this rank, in milliseconds; as those of
// c10d::Logger.
struct ReplicaTimes {
  double forward_ms = 0;  // From the first operator on a parameter to backward.
  double backward_ms = 0;  // From the first gradient to the end of it.
  // From the departure of the first bucket until all is exchanged, and as much of
  // that as lies before the end of backward.
  double communication_ms = 0;
  double overlap_ms = 0;
};

struct ReplicateReport {
  std::string module;  // Its type.
  int world_size = 1;  // Replicas, and which of them this is.
  int rank = 0;
  std::string exchange;  // "shared memory", "messages"; empty: nobody to.
  int threads = 1;       // Of operators.
  // Trainable ones.
  std::int64_t parameters = 0;
  std::int64_t parameter_bytes = 0;
  std::vector<std::string> dtypes;
  // In the order in which they are reduced: names of their parameters.
  std::vector<std::vector<std::string>> buckets;
  std::vector<std::int64_t> bucket_bytes;
  // How often buckets were made anew from an order that was learned.
  int bucket_version = 0;
  std::int64_t backwards = 0;  // Synchronised ones.
  // In the last of them: parameters that no rank had a gradient for.
  std::vector<std::string> unused;
  std::int64_t unused_bytes = 0;
  // In the last of them, on this rank: names as gradients came; a reentrant
  // segment may bring one more than once.
  std::vector<std::string> ready_order;
  // So far every backward of this rank had as many gradients of each parameter:
  // options.static_graph would be fine here.
  bool same_graph = true;
  bool joining = false;  // In a join scope.
  std::string error;     // Why the handle is of no more use; empty: it is.
  ReplicaTimes last;
  ReplicaTimes mean;  // Over all of them.
  std::string hook;   // Its name; empty: none.
  // Of all buckets reduced so far, and what a hook has given to its group of them.
  std::int64_t gradient_bytes = 0;
  std::int64_t hook_bytes = 0;
  // Reductions, late ones included.
  std::int64_t reduces = 0;
  std::int64_t reduces_under_way_peak = 0;
  std::int64_t gradient_slot_bytes_peak = 0;
};

namespace ddp {
class DdpEngine;
}

// While it lives, backwards add to `.grad()` and exchange nothing; the first one
// after it averages what has added up, too.
class LocalGradientsScope {
 public:
  LocalGradientsScope(LocalGradientsScope&&) noexcept;
  LocalGradientsScope& operator=(LocalGradientsScope&&) = delete;
  ~LocalGradientsScope();

 private:
  friend class DistributedDataParallel;
  explicit LocalGradientsScope(std::shared_ptr<ddp::DdpEngine> engine);
  std::shared_ptr<ddp::DdpEngine> engine_;
};

struct JoinOptions {
  // Behaviour. What sums of gradients are divided by once some ranks have no more
  // inputs: the number of ranks, so that each input counts the same throughout;
  // or that of the ranks that still have some.
  bool divide_by_initial_world_size = true;
  // Behaviour. The first rank without inputs ends it for all: finish() there, and
  // backward() or finish() on the others, throw Error naming it.
  bool throw_on_early_termination = false;
};

// For ranks with different numbers of inputs. While it lives every synchronised
// backward begins with one small message about who takes part; a rank that has no
// more inputs calls finish().
class JoinScope {
 public:
  JoinScope(JoinScope&&) noexcept;
  JoinScope& operator=(JoinScope&&) = delete;
  // Without finish() the handle is closed, with an error on the other ranks.
  ~JoinScope();

  // Collective: takes part, with zeros, in the backwards of ranks that still have
  // inputs, until none has. Then every rank gets the parameters and buffers of
  // the last one that had, the highest of those; state of optimizers is not
  // touched. Throws Error as backward() does.
  void finish();

 private:
  friend class DistributedDataParallel;
  explicit JoinScope(std::shared_ptr<ddp::DdpEngine> engine);
  std::shared_ptr<ddp::DdpEngine> engine_;
};

// The handle of a replicated model. Move-only; keep it as long as the model
// trains. Afterwards the module is a plain one again, with the values it has.
// Thread rule: one thread, which may differ from those that use the model, and
// not while they do.
class DistributedDataParallel {
 public:
  DistributedDataParallel(DistributedDataParallel&&) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&&) noexcept;
  ~DistributedDataParallel();

  // The module's own parameters, for sherd's optimizers; any other takes
  // module.parameters(). An update that an optimizer gives to backward is made at
  // its end, when it has succeeded on every rank: one that failed changes nothing.
  NamedParameters named_parameters() const;

  // Mirrors DistributedDataParallel.no_sync(). A backward is synchronised or not
  // as the scope is when it begins, wherever its forward ran.
  LocalGradientsScope no_sync();

  // Every rank opens it, around its loop over inputs. Mirrors
  // DistributedDataParallel.join().
  JoinScope join(const JoinOptions& options = {});

  // Collective over the ranks of `world`, between two steps: trains on with them
  // instead, as if replicate() had been called; ranks that are new there call that.
  // The optimizer, the module and `.grad()` stay. Also after a rank was lost, when
  // the old world is good for nothing else. Mirrors
  // DistributedDataParallel._update_process_group.
  void set_world(const World& world);
  // The same over the mesh's replicate axis.
  void set_mesh(const Mesh& mesh);

  // Collective, between backward and the next forward: every rank's trainable
  // parameters become their mean over ranks, bit for bit the same. For hooks that
  // let models drift apart. Mirrors
  // torch.distributed.algorithms.model_averaging.average_parameters.
  void average_parameters();

  ReplicateReport report() const;

  // Ends it, as the destructor does. Not collective, never waits.
  void close();

 private:
  friend DistributedDataParallel replicate(
      torch::nn::Module&, const Mesh&, const ReplicateOptions&);
  explicit DistributedDataParallel(std::shared_ptr<ddp::DdpEngine> engine);
  std::shared_ptr<ddp::DdpEngine> engine_;
};

// Collective over all ranks of the world. Parameters that need no gradient and
// integers are only synchronised once. Trainable ones that a backward does not
// use count as zero on that rank; one that no rank used keeps its `.grad()`.
// A synchronised backward returns when every rank has come to its end, and
// throws on every rank when it failed on any. Sparse gradients, of embeddings with
// sparse(true), are summed at its end and stay sparse. Throws Error, on every
// rank, when models differ; when there is nothing to train; for parameters that
// are sparse, not on the CPU or managed by another handle.
DistributedDataParallel replicate(
    torch::nn::Module& module,
    const World& world,
    const ReplicateOptions& options = {});

// The same over the mesh's replicate axis alone: ranks with the same position on
// the shard axis are replicas of each other, others may have another model.
// Collective over all ranks of the world all the same.
DistributedDataParallel replicate(
    torch::nn::Module& module,
    const Mesh& mesh,
    const ReplicateOptions& options = {});

}  // namespace sherd
