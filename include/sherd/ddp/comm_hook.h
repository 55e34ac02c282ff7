// SPDX-License-Identifier: Apache-2.0
//
// What becomes of gradients between ranks: a hook gets one bucket after another,
// on a thread beside backward, and leaves in it what all ranks agree on. Instead
// of the exchange's own sum, which no hook is needed for.
//
//   auto ddp = sherd::replicate(*model, world, {
//       .hook = sherd::power_sgd({.rank = 2})});
//
// Mirrors DistributedDataParallel.register_comm_hook and
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
  std::string name;
  at::Tensor gradient;  // Of the parameter's shape; its part of the bucket.
};

struct GradientBucket {
  int index = 0;
  bool last = false;  // Of this backward.
  // Synchronised backwards before this one with these ranks.
  std::int64_t step = 0;
  // This rank's, 1-D, contiguous, of the parameters' dtype; zero where it had
  // none. The hook leaves the result here: the mean over ranks, or what it takes
  // for it.
  at::Tensor gradients;
  std::vector<BucketParameter> parameters;
};

// The ranks of a hook. Calls block, and every rank makes the same ones in the
// same order, on contiguous CPU tensors of equal sizes and dtypes. They throw
// Error when a rank is lost. What ranks do otherwise ends in a hang or a process;
// with SHERD_DEBUG=detail in the environment of every rank calls are compared
// first, and one that differs is an Error naming it, at the price of a small
// message each. Thread rule: the thread of the hook.
class HookGroup {
 public:
  virtual ~HookGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place: the mean of all ranks' tensors, the same bits everywhere; added in
  // the order of ranks, half-precision numbers in fp32.
  virtual void all_reduce_mean(const at::Tensor& tensor) = 0;
  // The same among the `ranks`, ascending, of which this is one.
  virtual void all_reduce_mean(
      const at::Tensor& tensor, const std::vector<int>& ranks) = 0;
  // Every rank's tensor, by rank.
  virtual std::vector<at::Tensor> all_gather(const at::Tensor& tensor) = 0;
};

// One object per handle; it may keep state between calls. Thread rule: reduce()
// on one thread, not always the same; state() and load() between backwards.
class CommHook {
 public:
  virtual ~CommHook() = default;

  virtual std::string name() const = 0;

  // What it throws ends the training on every rank, naming this one.
  virtual void reduce(GradientBucket& bucket, HookGroup& group) = 0;

  // What a checkpoint must keep, by names that do not depend on buckets; load()
  // takes what state() gave, and throws Error for anything else.
  using State = NamedTensors;
  virtual State state() const { return {}; }
  virtual void load(const State& state);

  // Ranks are others from now on, some of them with a hook that has just begun:
  // forgets what must be the same on all. Called by set_world().
  virtual void reset() {}
};

using CommHookPtr = std::shared_ptr<CommHook>;

// The mean, as without a hook; what others are built on.
CommHookPtr all_reduce_mean();

// Instead of rank 0's values for all, what becomes of buffers at the end of each
// synchronised backward, in place; on the thread of that backward. What it throws
// ends the training on every rank.
using BufferHook =
    std::function<void(const NamedTensors& buffers, HookGroup& group)>;

// Gradients travel with `inner` in the narrower dtype, kBFloat16 or kHalf (whose
// largest number is 65504), and are cast back after. Mirrors bf16_compress_hook,
// fp16_compress_hook and their wrappers.
CommHookPtr compress(at::ScalarType dtype, CommHookPtr inner = nullptr);

// Vogels et al., PowerSGD, arXiv 1905.13727.
struct PowerSgdOptions {
  // Of the approximation: a matrix of n x m travels as (n + m) rank numbers.
  std::int64_t rank = 1;
  // The mean, uncompressed, in the first backwards, where gradients change most.
  std::int64_t start_step = 10;
  // Matrices are left uncompressed that would not become as many times smaller.
  double compression_min = 2.0;
  // What an approximation leaves out is added to the next gradient.
  bool error_feedback = true;
  // Each approximation starts from the last one's Q.
  bool warm_start = true;
  std::uint64_t seed = 0;  // Of the first Q; the same on every rank.
};
CommHookPtr power_sgd(const PowerSgdOptions& options = {});

// Lin et al., Don't Use Large Mini-Batches, Use Local SGD, arXiv 1808.07217.
struct PostLocalSgdOptions {
  // Up to then the mean over all ranks; then over groups of neighbours only.
  std::int64_t start_step = 100;
  int group_size = 1;  // Divides the number of ranks.
};
// Models drift apart then: DistributedDataParallel::average_parameters() brings
// them together, every few steps.
CommHookPtr post_local_sgd(const PostLocalSgdOptions& options = {});

}  // namespace sherd
