// SPDX-License-Identifier: Apache-2.0
//
// What stands behind a FullyShardedDataParallel: one implementation for many
// ranks (FsdpEngine), one for a single rank (SingleRankEngine), which moves nothing.
// Contracts are those of the public header. Thread rule: one thread.
#pragma once

#include <memory>
#include <string>
#include <sherd/fsdp/fully_shard.h>

namespace sherd {

class ShardingEngine {
 public:
  virtual ~ShardingEngine() = default;

  virtual NamedParameters named_parameters() = 0;
  virtual double clip_grad_norm(
      double max_norm, const ClipOptions& options) = 0;
  virtual void publish() = 0;
  virtual void begin_summon(const SummonOptions& options) = 0;
  virtual at::Tensor summoned(const std::string& name) = 0;
  virtual void end_summon() = 0;
  virtual void begin_no_sync(NoSyncAxis axis) = 0;
  virtual void end_no_sync(NoSyncAxis axis) = 0;
  virtual void unshard() = 0;
  virtual void reshard() = 0;
  virtual ShardReport report() = 0;
  virtual void close() = 0;
};

}  // namespace sherd
