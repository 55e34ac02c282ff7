// SPDX-License-Identifier: Apache-2.0
//
// CommHookGroup gives a communication hook its collectives over an exchange's transport: for
// tensors on the CPU by messages, for tensors on a device in its current stream. Thread rule: as
// for HookGroup.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <sherd/ddp/comm_hook.h>
#include "base/rank_environment.h"
#include "exchange/make_exchange.h"
#include "world/collectives.h"

namespace sherd::ddp {

class CommHookGroup final : public HookGroup {
 public:
  // `what` is being reduced; for error messages. `compares_calls` has the same value on all ranks.
  CommHookGroup(
      const exchange::HookTransport& transport,
      const std::string& what,
      bool compares_calls);

  int rank() const override { return all_.index(); }
  int size() const override { return all_.size(); }
  void all_reduce_mean(const at::Tensor& tensor) override;
  void all_reduce_mean(
      const at::Tensor& tensor, const std::vector<int>& ranks) override;
  void reduce_scatter_mean(
      const at::Tensor& tensor, const std::vector<std::int64_t>& cuts) override;
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override;

  // Bytes of the tensors of all calls so far.
  std::int64_t bytes() const { return bytes_; }

 private:
  enum class Call : std::int64_t { kAllReduce, kAllGather, kReduceScatter };
  // Checks the tensor and, if calls are compared, that the group makes the same call.
  void take(world::Collectives& group, Call call, const at::Tensor& tensor);
  bool can_send(const at::Tensor& tensor) const;

  const exchange::HookTransport transport_;
  const std::string what_;
  world::Collectives all_;
  const bool compares_calls_;
  std::int64_t bytes_ = 0;
};

// Has the hook reduce the bucket, and copies the result to where the bucket's gradients lie if the
// hook has assigned another tensor to them. Throws Error if that has another shape, dtype or device.
void reduce_in_place(CommHook& hook, GradientBucket& bucket, HookGroup& group);

// The text that ranks compare before the hook reduces.
std::string name_of_hook(const CommHook& hook, bool compares_calls);

// Whether SHERD_DEBUG is "detail"; false if it is "off" or unset. Throws Error for any other value.
bool asks_to_compare_calls(const EnvironmentLookup& environment);

}  // namespace sherd::ddp
