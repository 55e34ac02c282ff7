// SPDX-License-Identifier: Apache-2.0
//
// Gather hooks decide what travels when a unit is gathered: one function is called before a shard is
// sent, another where it arrives. Without a hook shards travel in param_dtype.
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

// One rank's part of the parameters of a unit that share a dtype.
struct GatheredShard {
  std::string unit;
  int flat = 0;   // Of the unit, as in UnitReport::flats.
  int owner = 0;  // Whose it is: that rank's position on the shard axis.
};

// One object for each handle. Thread rule: called by one thread at a time, beside the model's; what
// a function throws ends the training on every rank. On a device all tensors lie there, and the
// current stream is that of gathers.
class GatherHook {
 public:
  virtual ~GatherHook() = default;

  // Ranks compare it: include what sent_bytes() depends on.
  virtual std::string name() const = 0;

  // How many bytes travel of a shard of `numel` elements that is to have `param_dtype` when it is
  // whole. A function of its arguments, since receivers ask, too.
  virtual std::int64_t sent_bytes(
      std::int64_t numel, at::ScalarType param_dtype) const;

  // Before this rank's shard is sent, once after each change of it: fills `sent`, kByte, 1-D, from
  // `shard`, 1-D, in the precision of shards. The default casts to param_dtype.
  virtual void pre_gather(
      const GatheredShard& which,
      const at::Tensor& shard,
      at::ScalarType param_dtype,
      const at::Tensor& sent);

  // Each time a shard has arrived, this rank's included: fills `part`, its elements of the whole
  // unit, 1-D, in param_dtype, from what was sent, on every rank to the same bits.
  virtual void post_gather(
      const GatheredShard& which,
      const at::Tensor& sent,
      const at::Tensor& part);
};

using GatherHookPtr = std::shared_ptr<GatherHook>;

struct QuantiseGathersOptions {
  // So many elements share a scale, their largest magnitude / 127, in fp32.
  std::int64_t block = 256;
};
// Shards travel as int8: 1 + 4 / block bytes for each element. Each number is off by at most half a
// scale; a block with a number that is not finite becomes NaN. Integers, booleans and complex numbers
// travel as they are. Forward and backward use the rounded values, optimizers the shards themselves. Mirrors DeepSpeed's zero_quantized_weights (qwZ).
GatherHookPtr quantise_gathers(const QuantiseGathersOptions& options = {});

}  // namespace sherd
