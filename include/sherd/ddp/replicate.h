// SPDX-License-Identifier: Apache-2.0
//
// Distributed data parallel training of an unmodified module: every rank has the whole model and
// its own part of the batch; gradients are averaged over ranks in buckets while backward runs.
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
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/autograd/join.h>
#include <sherd/base/error.h>
#include <sherd/ddp/comm_hook.h>
#include <sherd/optim/named_parameters.h>
#include <sherd/world/world.h>

namespace torch::nn {
class Module;
}

namespace sherd {

struct ReplicateOptions {
  // Performance. Gradients are sent in buckets of about this many bytes, with at least one
  // parameter each. The first bucket is small, so that it is sent early. Larger buckets need more
  // memory; between processes of one host, PyTorch's 25 MiB are no faster.
  std::int64_t bucket_bytes = std::int64_t{8} << 20;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;
  // Performance. Buckets are filled in the order in which gradients became ready in the first
  // synchronised backward that has any, which ranks agree on at its end. With false they keep the
  // reverse order of registration, so that a rank that joins later has the same ones.
  bool learn_bucket_order = true;
  // Performance. Promises that all backwards of a rank use the same parameters: buckets do not wait
  // for parameters that the first synchronised backward did not use on that rank. If a parameter
  // gets more or fewer gradients than in that backward, it is an error on every rank.
  bool static_graph = false;
  // Performance. The values are the same either way, up to the order of sums.
  ExchangeKind exchange = ExchangeKind::kAuto;
  // Behaviour. How many buckets may be in flight at a time, which limits the memory needed beside
  // the gradients. 0: no limit. Like FullyShardOptions::reductions_under_way_max.
  int reductions_under_way_max = 4;
  // Behaviour. Mixed precision: matrix products, convolutions, norms and recurrent layers compute
  // in this dtype (kBFloat16, kHalf or kFloat), and embeddings return it; parameters and the
  // tensors they meet are cast. Parameters, their gradients and optimizer state stay in the
  // module's dtype, and so do parameters of norms with running statistics. Element-wise operators
  // follow LibTorch's rules. Costs a cast of each parameter in each forward, and the memory of the
  // copies until backward. Unset: the module's dtype. Mirrors DistributedDataParallel's
  // _MixedPrecision.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  // Behaviour. The dtype in which gradients are sent; they are added up in fp32. Unset:
  // param_dtype. Gradients of norms with running statistics are sent in their own dtype.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  // Behaviour. Parameters and buffers first get the values of rank 0. With false, ranks must hold
  // equal values.
  bool init_sync = true;
  // Behaviour. At the end of each synchronised backward, buffers (running statistics) get rank 0's
  // values, so that all ranks evaluate with the same ones.
  bool broadcast_buffers = true;
  // Behaviour. `.grad()` is a view into the bucket instead of a tensor of its own, which saves a
  // copy of all gradients, in memory and time.
  bool gradient_as_bucket_view = true;
  // Behaviour. What sums of gradients over replicas are divided by. Unset: the number of replicas,
  // which gives the mean; 1 gives the sum. A hook's mean is multiplied accordingly. In a join scope
  // without divide_by_initial_world_size it shrinks as the number of ranks with inputs does. Must
  // be the same on all ranks. Mirrors FSDPModule.set_gradient_divide_factor.
  std::optional<double> gradient_divide_factor = std::nullopt;
  // Behaviour. Reduces gradients, by messages, instead of the exchange's mean. One object for each
  // handle; hooks of the same name on every rank.
  CommHookPtr hook = nullptr;
  // Behaviour. Synchronises buffers instead of the broadcast, for example by their mean. Needs
  // broadcast_buffers. Mirrors DistributedDataParallel._register_buffer_comm_hook.
  BufferHook buffer_hook = nullptr;
  // Performance. Names of parameters whose gradients are known to come last. They are reduced after
  // all others, in buckets of their own, so that no other gradient waits for them.
  std::vector<std::string> delayed = {};
  // Behaviour. Names of parameters and buffers that sherd leaves alone: they are not compared, not
  // synchronised and not averaged, and a checkpoint has such parameters only if the program adds
  // them.
  std::vector<std::string> ignored = {};
};

// Times of one synchronised backward on this rank, in milliseconds, as c10d::Logger defines them.
struct ReplicaTimes {
  double forward_ms = 0;   // From the first use of a parameter to backward.
  double backward_ms = 0;  // From the first gradient to the end of backward.
  // From the start of the first bucket until all are exchanged, and the part of that before the end
  // of backward.
  double communication_ms = 0;
  double overlap_ms = 0;
};

struct ReplicateReport {
  std::string module;    // The type of the module.
  int world_size = 1;    // The number of replicas.
  int rank = 0;          // Which of them this is.
  std::string exchange;  // "shared memory", "messages"; empty with one rank.
  int threads = 1;       // Threads of operators.
  // The number of trainable parameters, and their bytes.
  std::int64_t parameters = 0;
  std::int64_t parameter_bytes = 0;
  std::vector<std::string> dtypes;
  // For each bucket, in the order in which buckets are reduced: the names of its parameters.
  std::vector<std::vector<std::string>> buckets;
  std::vector<std::int64_t> bucket_bytes;
  // For each bucket: the total time from its last gradient until its average was seen, in seconds.
  std::vector<double> bucket_reduce_s;
  // How often buckets were rebuilt in a learned order.
  int bucket_version = 0;
  std::int64_t backwards = 0;  // Synchronised ones.
  // Parameters for which no rank had a gradient in the last of them.
  std::vector<std::string> unused;
  std::int64_t unused_bytes = 0;
  // Names in the order in which gradients became ready on this rank in the last of them; a name may
  // appear twice if there are reentrant checkpoints.
  std::vector<std::string> ready_order;
  // Whether every backward of this rank so far had the same number of gradients for each parameter.
  // If so, options.static_graph could be set.
  bool same_graph = true;
  bool joining = false;  // A join scope is open.
  std::string error;     // Why the handle can no longer be used; else empty.
  ReplicaTimes last;
  ReplicaTimes mean;  // The mean over all synchronised backwards.
  std::string hook;   // Its name; empty: none.
  // Bytes of all buckets reduced so far, and of what a hook has passed to its group.
  std::int64_t gradient_bytes = 0;
  std::int64_t hook_bytes = 0;
  // Reductions, including repeated ones for gradients that came late in a backward.
  std::int64_t reduces = 0;
  std::int64_t reduces_under_way_peak = 0;
  std::int64_t gradient_slot_bytes_peak = 0;
};

// A table with a line for each bucket and one line for all of them.
std::string to_text(const ReplicateReport& report);
// One JSON object with the names above, without line breaks.
std::string to_json(const ReplicateReport& report);

namespace ddp {
class DdpEngine;
}

// While it lives, backwards add to `.grad()` and exchange nothing. The first backward afterwards
// also averages what they have accumulated.
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

// The handle of a replicated model. Move-only; keep it as long as the model trains. Afterwards the
// module is a plain one again, with the values it then has. Thread rule: one thread, which need not
// be one that uses the model, and never while another thread uses the model.
class DistributedDataParallel {
 public:
  DistributedDataParallel(DistributedDataParallel&&) noexcept;
  DistributedDataParallel& operator=(DistributedDataParallel&&) noexcept;
  ~DistributedDataParallel();

  // The module's own parameters, for sherd's optimizers; for any other use module.parameters().
  // Updates in backward are made at the end of backward, when it has succeeded on every rank. If it
  // failed, nothing changes.
  NamedParameters named_parameters() const;

  // Mirrors DistributedDataParallel.no_sync(). What counts is whether the scope is open when a
  // backward begins, not where its forward ran.
  [[nodiscard]] LocalGradientsScope no_sync();

  // Every rank opens it around its loop over inputs. While it lives, every synchronised backward
  // begins with one small message about which ranks take part. Mirrors
  // DistributedDataParallel.join().
  [[nodiscard]] JoinScope join(const JoinOptions& options = {});

  // Collective over the ranks of `world`, between two steps: continues with these ranks, as if
  // replicate() had been called. Ranks that are new in this world call replicate(). The optimizer,
  // the module and `.grad()` stay. This also works after a rank was lost. Where ranks cannot connect
  // (their models or hooks differ) it throws, and so does every synchronised backward until this or
  // set_hook() succeeds. Mirrors DistributedDataParallel._update_process_group.
  void set_world(const World& world);
  // The same over the mesh's replicate axis.
  void set_mesh(const Mesh& mesh);

  // Collective, between two steps: from now on gradients are reduced by this hook or, if it is
  // null, by the exchange's mean. The hook keeps the state that it has. Otherwise like set_world()
  // with the same ranks. Mirrors DistributedDataParallel.register_comm_hook.
  void set_hook(const CommHookPtr& hook);

  // Collective, between backward and the next forward: replaces every trainable parameter by its
  // mean over ranks, with the same bits on every rank. For hooks that let models drift apart.
  // Mirrors torch.distributed.algorithms.model_averaging.average_parameters.
  void average_parameters();

  // Like FullyShardedDataParallel::synchronize().
  void synchronize();

  ReplicateReport report() const;

  // Ends replication, as the destructor does. Not collective; never waits.
  void close();

 private:
  friend DistributedDataParallel replicate(
      torch::nn::Module&, const Mesh&, const ReplicateOptions&);
  explicit DistributedDataParallel(std::shared_ptr<ddp::DdpEngine> engine);
  HandleState<std::shared_ptr<ddp::DdpEngine>, "[ddp] DistributedDataParallel">
      engine_;
};

// Makes a replica of `module` on every rank. Collective over all ranks of the world. Frozen
// parameters and integers are only synchronised once. On a rank, a trainable parameter that a
// backward does not use counts as zero; one that no rank used keeps its `.grad()`. A synchronised
// backward returns when every rank has come to its end, and throws on every rank if it failed on
// any. Sparse gradients, those of embeddings with sparse(true), are summed at its end and stay
// sparse. Throws Error, on every rank, if models differ; if there is nothing to train; and for
// parameters that are sparse, that are neither all on the CPU nor all on one device for which sherd
// can exchange (docs/design/gpu.md), or that another handle manages.
[[nodiscard]] DistributedDataParallel replicate(
    torch::nn::Module& module,
    const World& world,
    const ReplicateOptions& options = {});

// The same over the mesh's replicate axis: ranks with the same position on the shard axis are
// replicas of each other; others may have another model. Still collective over all ranks of the
// world.
[[nodiscard]] DistributedDataParallel replicate(
    torch::nn::Module& module,
    const Mesh& mesh,
    const ReplicateOptions& options = {});

}  // namespace sherd
