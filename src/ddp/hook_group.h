// SPDX-License-Identifier: Apache-2.0
//
// The ranks of a hook, over an exchange's link. Thread rule: as HookGroup.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <sherd/ddp/comm_hook.h>
#include "exchange/link_group.h"

namespace sherd::ddp {

class LinkHookGroup final : public HookGroup {
 public:
  // `what` is reduced, for messages.
  LinkHookGroup(exchange::Link& link, const std::string& what);

  int rank() const override { return all_.index(); }
  int size() const override { return all_.size(); }
  void all_reduce_mean(const at::Tensor& tensor) override;
  void all_reduce_mean(
      const at::Tensor& tensor, const std::vector<int>& ranks) override;
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor) override;

  // Of the tensors of all calls so far.
  std::int64_t bytes() const { return bytes_; }

 private:
  void take(const at::Tensor& tensor);

  exchange::Link& link_;
  const std::string what_;
  exchange::LinkGroup all_;
  std::int64_t bytes_ = 0;
};

}  // namespace sherd::ddp
