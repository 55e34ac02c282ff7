// SPDX-License-Identifier: Apache-2.0
#include "exchange/flat_collectives.h"

#include <vector>

#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sherd::exchange {
namespace {

bool has_equal_shards(const plan::FlatLayout& layout) {
  for (int rank = 1; rank < layout.ranks(); ++rank) {
    if (layout.shard(rank).numel() != layout.shard(0).numel()) {
      return false;
    }
  }
  return true;
}

at::Tensor part_of(
    const at::Tensor& whole, const plan::FlatLayout& layout, int rank) {
  const auto range = layout.shard(rank);
  return whole.narrow(0, range.begin, range.numel());
}

}  // namespace

void gather_flat(
    const BackendPtr& backend,
    const plan::FlatLayout& layout,
    const at::Tensor& shard,
    const at::Tensor& whole) {
  if (layout.numel == 0) {
    return;
  }
  if (has_equal_shards(layout)) {
    auto input = shard;
    auto output = whole;
    c10d::AllgatherOptions options;
    options.asyncOp = false;  // On the current stream, without record_stream().
    backend->_allgather_base(output, input, options);
    return;
  }
  part_of(whole, layout, backend->getRank()).copy_(shard);
  for (int owner = 0; owner < layout.ranks(); ++owner) {
    if (!layout.shard(owner).empty()) {
      std::vector<at::Tensor> part{part_of(whole, layout, owner)};
      c10d::BroadcastOptions options;
      options.rootRank = owner;
      options.asyncOp = false;
      backend->broadcast(part, options);
    }
  }
}

at::Tensor sum_for_owner(
    const BackendPtr& backend,
    const plan::FlatLayout& layout,
    const at::Tensor& gradient,
    const at::Tensor& into) {
  const int rank = backend->getRank();
  if (layout.ranks() == 1) {
    return gradient;
  }
  if (layout.numel > 0 && has_equal_shards(layout)) {
    auto input = gradient;
    auto sum = into.defined()
        ? into
        : at::empty({layout.shard(rank).numel()}, gradient.options());
    c10d::ReduceScatterOptions options;
    options.asyncOp = false;
    backend->_reduce_scatter_base(sum, input, options);
    return sum;
  }
  for (int owner = 0; owner < layout.ranks(); ++owner) {
    if (!layout.shard(owner).empty()) {
      std::vector<at::Tensor> part{part_of(gradient, layout, owner)};
      c10d::ReduceOptions options;
      options.rootRank = owner;
      options.asyncOp = false;
      backend->reduce(part, options);
    }
  }
  return part_of(gradient, layout, rank);
}

void sum_for_all(const BackendPtr& backend, const at::Tensor& gradient) {
  if (gradient.numel() == 0 || backend->getSize() == 1) {
    return;
  }
  std::vector<at::Tensor> whole{gradient};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  backend->allreduce(whole, options);
}

at::Tensor sum_for_owner_in_rank_order(
    const BackendPtr& backend,
    const plan::FlatLayout& layout,
    const at::Tensor& gradient) {
  const auto dtype =
      gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (layout.numel == 0) {
    return gradient.to(dtype);
  }
  const auto ranks = static_cast<std::size_t>(layout.ranks());
  const auto own = layout.shard(backend->getRank()).numel();
  std::vector<std::int64_t> sent;
  for (int owner = 0; owner < layout.ranks(); ++owner) {
    sent.push_back(layout.shard(owner).numel());
  }
  std::vector<std::int64_t> received(ranks, own);
  auto input = gradient;
  auto pieces = at::empty({layout.ranks() * own}, gradient.options());
  c10d::AllToAllOptions options;
  options.asyncOp = false;
  backend->alltoall_base(pieces, input, received, sent, options);
  auto sum = pieces.narrow(0, 0, own).to(dtype);
  for (std::int64_t rank = 1; rank < layout.ranks(); ++rank) {
    sum.add_(pieces.narrow(0, rank * own, own));
  }
  return sum;
}

at::Tensor sum_for_all_in_rank_order(
    const BackendPtr& backend,
    const plan::FlatLayout& layout,
    const at::Tensor& gradient) {
  const auto own = sum_for_owner_in_rank_order(backend, layout, gradient);
  const auto whole = at::empty({layout.numel}, own.options());
  gather_flat(backend, layout, own, whole);
  return whole;
}

}  // namespace sherd::exchange
