// SPDX-License-Identifier: Apache-2.0
//
// Communication hooks replace the averaging of gradients over ranks. A hook gets one bucket after
// another, on a thread beside backward or, on a device, in a stream beside it, and leaves in the
// bucket the result for all ranks. Plain averaging needs no hook.
//
//   auto ddp = sherd::replicate(*model, world, {
//       .hook = sherd::power_sgd({.rank = 2})});
//
//   sherd::FullyShardOptions options;
//   options.hook = sherd::compress(at::kBFloat16);
//   auto fsdp = sherd::fully_shard(*model, mesh, options);
//
// Mirrors register_comm_hook of DistributedDataParallel and of FullyShardedDataParallel, and
// torch.distributed.algorithms.ddp_comm_hooks. docs/guide/hooks.md
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>

namespace sherd {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct BucketParameter {
  // The parameter's name. If parameters are sharded, the rows that lie in the shard have that name,
  // and the elements of a row that is cut are 1-D and named with their range, as in
  // "layer.weight[12:20]".
  std::string name;
  at::Tensor gradient;  // A view into the bucket, in the parameter's shape.
};

struct GradientBucket {
  int index = 0;
  // No other bucket has a larger index. Buckets come in the order of their indices, except that
  // buckets that no rank used in the last backward come last, or not at all.
  bool last = false;
  // The number of synchronised backwards before this one with these ranks.
  std::int64_t step = 0;
  // This rank's gradients, 1-D, contiguous, in the parameters' dtype (with MixedPrecision in
  // reduce_dtype); zero for parameters that had none. With hybrid sharding, the mean over this
  // rank's replica. The hook leaves its result here: the mean over ranks or an approximation of it.
  // It writes it in place, or assigns another tensor of the same shape, dtype and device, which is
  // then copied to where this one lies. That memory is used again once the hook has returned.
  at::Tensor gradients;
  std::vector<BucketParameter> parameters;
  // Empty: every rank keeps the whole result. Otherwise this is a reduce-scatter: rank r of the
  // group keeps elements [cuts[r], cuts[r + 1]) and may leave anything in the others.
  std::vector<std::int64_t> cuts = {};
};

// Collectives among the ranks of a hook. Calls block, and throw Error if a rank is lost. Every rank
// must make the same calls in the same order, on contiguous tensors of equal sizes and dtypes, on
// the CPU or on the bucket's device; otherwise ranks hang or crash. Calls with tensors of a device
// are queued on the current stream and return at once. With SHERD_DEBUG=detail in the environment
// of every rank, ranks compare calls first, and a call that differs throws an Error that names it;
// this costs a small message for each call. Thread rule: the thread of the hook.
class HookGroup {
 public:
  virtual ~HookGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place: the mean of all ranks' tensors, with the same bits on every rank. On the CPU sums are
  // made in rank order, in fp32 for half-precision numbers; on a device as its backend makes them.
  virtual void all_reduce_mean(const at::Tensor& tensor) = 0;
  // The same among `ranks`, which are ascending and include this one.
  virtual void all_reduce_mean(
      const at::Tensor& tensor, const std::vector<int>& ranks) = 0;
  // In place, 1-D: elements [cuts[r], cuts[r + 1]) of rank r's tensor become the mean over ranks.
  // Its other elements stay as they are.
  virtual void reduce_scatter_mean(
      const at::Tensor& tensor, const std::vector<std::int64_t>& cuts) = 0;
  // Every rank's tensor, by rank, in memory of their own.
  virtual std::vector<at::Tensor> all_gather(const at::Tensor& tensor) = 0;
};

// A hook; one object per handle. It may keep state between calls. Thread rule: reduce() is called
// by one thread at a time, not always the same, but on a device always with the same current
// stream; state() and load() between backwards.
class CommHook {
 public:
  virtual ~CommHook() = default;

  virtual std::string name() const = 0;

  // Leaves the result in bucket.gradients. An exception ends the training on every rank, with an
  // error that names this one.
  virtual void reduce(GradientBucket& bucket, HookGroup& group) = 0;

  // Whether reduce() supports buckets with cuts. If not, fully_shard() refuses the hook for
  // gradients that are sharded over the ranks among which it would reduce.
  virtual bool reduces_to_shards() const { return false; }

  // Whether every rank gets the same result, so that models stay equal. If not, checkpoints save the
  // model and the optimizer's state of rank 0.
  virtual bool keeps_models_equal() const { return true; }

  // What a checkpoint must keep, under names that do not depend on buckets. load() takes what
  // state() returned, and throws Error for anything else.
  using State = NamedTensors;
  virtual State state() const { return {}; }
  virtual void load(const State& state);

  // Called by set_world(): from now on there are other ranks, some of them with a new hook. Forgets
  // all state that must be equal on all ranks.
  virtual void reset() {}
};

using CommHookPtr = std::shared_ptr<CommHook>;

// The mean that is used without a hook, of whole gradients or to shards. A building block for
// others.
CommHookPtr all_reduce_mean();

// Synchronises buffers in place at the end of each synchronised backward, on the thread of that
// backward, instead of the broadcast from rank 0. An exception ends the training on every rank.
using BufferHook =
    std::function<void(const NamedTensors& buffers, HookGroup& group)>;

// Casts gradients to the narrower dtype, kBFloat16 or kHalf (whose largest number is 65504), calls
// `inner` (null: the mean), and casts back. Half of the bytes are sent. Around quantise(), which
// sends int8 in any case, it saves nothing. What the casts lose is not added to the next gradient.
// Mirrors bf16_compress_hook, fp16_compress_hook and their wrappers.
CommHookPtr compress(at::ScalarType dtype, CommHookPtr inner = nullptr);

// Which elements share a scale. The scale is the largest magnitude among them / 127.
enum class QuantisationScale {
  kTensor,  // The elements of a parameter.
  // Those with one index in the parameter's first dimension, if it has at least two dimensions.
  kChannel,
};

struct QuantiseOptions {
  QuantisationScale scale = QuantisationScale::kChannel;
  // The rounding error is added to the next gradient, which costs a copy of all gradients in fp32.
  bool error_feedback = true;
};
// Sends gradients as int8 with scales in fp32. Every rank gets the gradients of all ranks and adds
// them up in fp32, in rank order, so a rank receives (ranks - 1) bytes for each element, where the
// mean needs up to 8. If a scale is not finite, its elements become NaN on every rank, and no error
// is kept for the next gradient. Mirrors quantization_pertensor_hook and
// quantization_perchannel_hook, which have no error feedback.
CommHookPtr quantise(const QuantiseOptions& options = {});

// Options of power_sgd() (Vogels et al., PowerSGD, arXiv 1905.13727).
struct PowerSgdOptions {
  // The rank of the approximation: a matrix of n x m is sent as (n + m) * rank numbers, in the
  // gradients' dtype if that is BFloat16 or Half, else in fp32.
  std::int64_t rank = 1;
  // Backwards before this one use the uncompressed mean, because gradients change most there.
  std::int64_t start_step = 10;
  // A matrix that would not become this many times smaller stays uncompressed.
  double compression_min = 2.0;
  // The error of the approximation is added to the next gradient.
  bool error_feedback = true;
  // Each approximation starts from the last one's Q.
  bool warm_start = true;
  // Approximates each bucket as one square matrix, vectors included, instead of each parameter as a
  // matrix of its own: fewer and larger products, but a coarser approximation. Mirrors
  // batched_powerSGD_hook.
  bool batched = false;
  std::uint64_t seed = 0;  // For the first Q; the same on every rank.
};
CommHookPtr power_sgd(const PowerSgdOptions& options = {});

// Options of post_local_sgd() (Lin et al., Don't Use Large Mini-Batches, Use Local SGD, arXiv
// 1808.07217).
struct PostLocalSgdOptions {
  // Before this step the mean is over all ranks, from it on only over groups of neighbours.
  std::int64_t start_step = 100;
  int group_size = 1;  // Divides the number of ranks.
};
// From start_step on, models drift apart; call DistributedDataParallel::average_parameters() every
// few steps to make them equal again.
CommHookPtr post_local_sgd(const PostLocalSgdOptions& options = {});

}  // namespace sherd
