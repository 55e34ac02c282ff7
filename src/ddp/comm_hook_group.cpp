// SPDX-License-Identifier: Apache-2.0
#include "ddp/comm_hook_group.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/tensor.h>

#include "base/check.h"

namespace sherd::ddp {
namespace {

// Only the hook uses the transport, so one tag is enough.
constexpr int kTag = 0;

// The numbers that must be the same in a call on all ranks.
std::vector<std::int64_t> numbers_of(const at::Tensor& fingerprint) {
  const auto* first = fingerprint.const_data_ptr<std::int64_t>();
  return {first, first + fingerprint.numel()};
}

std::string text_of(const std::vector<std::int64_t>& call) {
  constexpr const char* kNames[] = {
      "all_reduce_mean", "all_gather", "reduce_scatter_mean"};
  return str(
      kNames[call[0]], " of ", call[1], " ",
      c10::toString(static_cast<c10::ScalarType>(call[2])));
}

std::string description_of(const at::Tensor& tensor) {
  return tensor.defined()
      ? str(c10::toString(tensor.scalar_type()), " of shape ", tensor.sizes(),
            " on ", tensor.device())
      : "an undefined tensor";
}

}  // namespace

void reduce_in_place(CommHook& hook, GradientBucket& bucket, HookGroup& group) {
  const auto room = bucket.gradients;
  hook.reduce(bucket, group);
  const auto result = std::exchange(bucket.gradients, room);
  if (result.is_same(room)) {
    return;
  }
  SHERD_CHECK(
      result.defined() && result.sizes() == room.sizes() &&
          result.scalar_type() == room.scalar_type() &&
          result.device() == room.device(),
      "[ddp] hook ", hook.name(), " has assigned gradients: expected ",
      description_of(room), ", found ", description_of(result));
  room.copy_(result);
}

bool asks_to_compare_calls(const EnvironmentLookup& environment) {
  const auto value = environment("SHERD_DEBUG").value_or("off");
  SHERD_CHECK(
      value == "detail" || value == "off" || value.empty(),
      "[ddp] SHERD_DEBUG: expected detail or off, found '", value, "'");
  return value == "detail";
}

std::string name_of_hook(const CommHook& hook, bool compares_calls) {
  return str(hook.name(), compares_calls ? ", calls compared" : "");
}

CommHookGroup::CommHookGroup(
    const exchange::HookTransport& transport,
    const std::string& what,
    bool compares_calls)
    : transport_(transport),
      what_(what),
      all_(transport.messages, what_, kTag),
      compares_calls_(compares_calls) {}

bool CommHookGroup::can_send(const at::Tensor& tensor) const {
  const auto* collectives = transport_.collectives;
  return tensor.defined() && tensor.is_contiguous() &&
      (tensor.is_cpu() ||
       (collectives != nullptr && tensor.device() == collectives->device()));
}

void CommHookGroup::take(
    world::Collectives& group, Call call, const at::Tensor& tensor) {
  SHERD_CHECK(
      can_send(tensor),
      "[ddp] a hook gave a tensor to its group that cannot be sent; expected a "
      "contiguous CPU tensor",
      transport_.collectives != nullptr
          ? " or one on " + transport_.collectives->device().str()
          : std::string());
  bytes_ += static_cast<std::int64_t>(tensor.nbytes());
  if (!compares_calls_ || group.size() == 1) {
    return;
  }
  const auto mine = at::tensor(
      {static_cast<std::int64_t>(call), tensor.numel(),
       static_cast<std::int64_t>(tensor.scalar_type())},
      at::kLong);
  const auto all = group.all_gather(mine);
  all.status().throw_if_failed();
  for (std::size_t member = 0; member < all.value().size(); ++member) {
    const auto theirs = numbers_of(all.value()[member]);
    SHERD_CHECK_AS(
        kFailedPrecondition, theirs == numbers_of(mine),
        "[ddp] a hook's calls differ, for ", what_, ": rank ",
        group.world_rank(group.index()), " has ", text_of(numbers_of(mine)),
        ", rank ", group.world_rank(static_cast<int>(member)), " ",
        text_of(theirs), "; expected the same on all ranks");
  }
}

void CommHookGroup::all_reduce_mean(const at::Tensor& tensor) {
  take(all_, Call::kAllReduce, tensor);
  if (!tensor.is_cpu()) {
    transport_.collectives->all_reduce_mean(tensor);
    return;
  }
  all_.all_reduce(tensor, 1.0 / size()).throw_if_failed();
}

void CommHookGroup::all_reduce_mean(
    const at::Tensor& tensor, const std::vector<int>& ranks) {
  SHERD_CHECK(
      std::ranges::is_sorted(ranks) &&
          std::ranges::find(ranks, rank()) != ranks.end() &&
          ranks.front() >= 0 && ranks.back() < size(),
      "[ddp] a hook named ranks to reduce among; expected ascending ones of "
      "the ",
      size(), " with rank ", rank());
  world::Collectives group(transport_.messages, ranks, what_, kTag);
  take(group, Call::kAllReduce, tensor);
  if (!tensor.is_cpu()) {
    transport_.collectives->all_reduce_mean(tensor, ranks);
  } else if (group.size() > 1) {
    group.all_reduce(tensor, 1.0 / static_cast<double>(group.size()))
        .throw_if_failed();
  }
}

void CommHookGroup::reduce_scatter_mean(
    const at::Tensor& tensor, const std::vector<std::int64_t>& cuts) {
  SHERD_CHECK(
      tensor.defined() && tensor.dim() == 1 &&
          cuts.size() == static_cast<std::size_t>(size()) + 1 &&
          std::ranges::is_sorted(cuts) && cuts.front() == 0 &&
          cuts.back() == tensor.numel(),
      "[ddp] a hook's reduce_scatter_mean: expected a 1-D tensor and ",
      size() + 1, " cuts that ascend from 0 to its elements");
  take(all_, Call::kReduceScatter, tensor);
  if (!tensor.is_cpu()) {
    transport_.collectives->reduce_scatter_mean(tensor, cuts);
    return;
  }
  all_.reduce_scatter(tensor, cuts, 1.0 / size()).throw_if_failed();
}

std::vector<at::Tensor> CommHookGroup::all_gather(const at::Tensor& tensor) {
  take(all_, Call::kAllGather, tensor);
  if (!tensor.is_cpu()) {
    return transport_.collectives->all_gather(tensor);
  }
  auto gathered = all_.all_gather(tensor);
  gathered.status().throw_if_failed();
  auto all = std::move(gathered).value();
  // It is the caller's tensor, which a hook may write while it reads the others'.
  all[static_cast<std::size_t>(rank())] = tensor.clone();
  return all;
}

}  // namespace sherd::ddp
