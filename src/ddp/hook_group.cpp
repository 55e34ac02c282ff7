// SPDX-License-Identifier: Apache-2.0
#include "ddp/hook_group.h"

#include <algorithm>

#include "base/check.h"

namespace sherd::ddp {
LinkHookGroup::LinkHookGroup(exchange::Link& link, const std::string& what)
    : link_(link), what_("gradients of " + what), all_(link, what_) {}

void LinkHookGroup::take(const at::Tensor& tensor) {
  SHERD_CHECK(
      tensor.defined() && tensor.is_contiguous() && tensor.device().is_cpu(),
      "[ddp] a hook gave a tensor to its group that cannot be sent; expected a "
      "contiguous CPU tensor");
  bytes_ += static_cast<std::int64_t>(tensor.nbytes());
}

void LinkHookGroup::all_reduce_mean(const at::Tensor& tensor) {
  take(tensor);
  all_.all_reduce(tensor, 1.0 / size()).throw_if_failed();
}

void LinkHookGroup::all_reduce_mean(
    const at::Tensor& tensor, const std::vector<int>& ranks) {
  take(tensor);
  SHERD_CHECK(
      std::is_sorted(ranks.begin(), ranks.end()) &&
          std::find(ranks.begin(), ranks.end(), rank()) != ranks.end() &&
          ranks.front() >= 0 && ranks.back() < size(),
      "[ddp] a hook named ranks to reduce among; expected ascending ones of "
      "the ",
      size(), " with rank ", rank());
  if (ranks.size() > 1) {
    exchange::LinkGroup(link_, ranks, what_)
        .all_reduce(tensor, 1.0 / static_cast<double>(ranks.size()))
        .throw_if_failed();
  }
}

std::vector<at::Tensor> LinkHookGroup::all_gather(const at::Tensor& tensor) {
  take(tensor);
  auto all = all_.all_gather(tensor);
  all.status().throw_if_failed();
  return std::move(all).value();
}

}  // namespace sherd::ddp
