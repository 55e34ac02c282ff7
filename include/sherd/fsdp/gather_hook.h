// SPDX-License-Identifier: Apache-2.0
//
// Gather hooks decide what is sent when a unit is gathered. One function is called before a shard
// is sent, another where it arrives. Without a hook shards are sent in param_dtype.
//
//   sherd::FullyShardOptions options;
//   options.gather_hook = sherd::quantise_gathers();
//   auto fsdp = sherd::fully_shard(*model, world, options);
//
// Mirrors fsdp_pre_all_gather() and fsdp_post_all_gather() of FSDP2's tensor subclasses, and the
// quantised weights of ZeRO++, arXiv 2306.10209. docs/guide/hooks.md
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <ATen/core/Tensor.h>

namespace sherd {

// One rank's part of a flat: of the parameters of a unit that share a dtype.
struct GatheredShard {
  std::string unit;
  int flat = 0;   // The index of the flat, as in UnitReport::flats.
  int owner = 0;  // The position of the shard's rank on the shard axis.
};

// One object for each handle. An exception of a function ends the training on every rank. On a
// device, all tensors lie there, and the current stream is that of gathers. Thread rule: called by
// one thread at a time, beside the thread of the model.
class GatherHook {
 public:
  virtual ~GatherHook() = default;

  // Ranks compare the names, so include everything on which sent_bytes() depends.
  virtual std::string name() const = 0;

  // How many bytes are sent of a shard of `numel` elements that will have `param_dtype` when it is
  // whole. Must depend only on its arguments, because receivers call it, too.
  virtual std::int64_t sent_bytes(
      std::int64_t numel, at::ScalarType param_dtype) const;

  // Called before this rank's shard is sent, once after each change of the shard. Fills `sent`,
  // kByte, 1-D, from `shard`, 1-D, in the precision of shards. The default casts to param_dtype.
  virtual void pre_gather(
      const GatheredShard& which,
      const at::Tensor& shard,
      at::ScalarType param_dtype,
      const at::Tensor& sent);

  // Called each time a shard has arrived, also for this rank's own. Fills `part`, the shard's
  // elements of the whole unit, 1-D, in param_dtype, from what was sent; the bits must be the same
  // on every rank.
  virtual void post_gather(
      const GatheredShard& which,
      const at::Tensor& sent,
      const at::Tensor& part);
};

using GatherHookPtr = std::shared_ptr<GatherHook>;

struct QuantiseGathersOptions {
  // How many elements share a scale (fp32): the largest magnitude among them / 127.
  std::int64_t block = 256;
};
// Sends shards as int8, 1 + 4 / block bytes for each element. Each number is off by at most half a
// scale; a block with a number that is not finite becomes NaN. Integers, booleans and complex
// numbers are sent as they are. Forward and backward use the rounded values, optimizers use the
// shards themselves. Mirrors DeepSpeed's zero_quantized_weights (qwZ).
GatherHookPtr quantise_gathers(const QuantiseGathersOptions& options = {});

}  // namespace sherd
