// SPDX-License-Identifier: Apache-2.0
#include "optim/cut_matrices.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "base/check.h"

namespace sherd::optim {
namespace {

using PartOf = std::function<at::Tensor(const CutMatrix&, int rank)>;

std::int64_t part_numel(const CutMatrix& matrix, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  return matrix.cuts[r + 1] - matrix.cuts[r];
}

at::Tensor part_of_whole(const CutMatrix& matrix, int rank) {
  return matrix.whole.narrow(
      0, matrix.cuts[static_cast<std::size_t>(rank)], part_numel(matrix, rank));
}

// Undefined tensors are left out.
at::Tensor joined(
    const std::vector<CutMatrix*>& matrices,
    const PartOf& part_of,
    int rank,
    const at::TensorOptions& options) {
  std::vector<at::Tensor> parts;
  for (const auto* matrix : matrices) {
    if (const auto part = part_of(*matrix, rank); part.defined()) {
      parts.push_back(part);
    }
  }
  return parts.empty() ? at::empty({0}, options) : at::cat(parts);
}

// `outgoing` says which part of a matrix goes to a rank, and `incoming` where the part that comes
// from a rank is written; undefined: none. Parts are in the order of matrices.
void exchange_parts(
    const WholeParameters& ranks,
    const std::vector<CutMatrix*>& matrices,
    const PartOf& outgoing,
    const PartOf& incoming) {
  const auto& options = matrices.front()->options;
  std::vector<at::Tensor> to;
  std::vector<std::int64_t> numels;
  for (int rank = 0; rank < ranks.ranks; ++rank) {
    to.push_back(joined(matrices, outgoing, rank, options));
    numels.push_back(0);
    for (const auto* matrix : matrices) {
      const auto part = incoming(*matrix, rank);
      numels.back() += part.defined() ? part.numel() : 0;
    }
  }
  const auto from = ranks.all_to_all(to, numels);
  for (int rank = 0; rank < ranks.ranks; ++rank) {
    std::int64_t begin = 0;
    for (const auto* matrix : matrices) {
      const auto part = incoming(*matrix, rank);
      if (part.defined()) {
        part.copy_(from[static_cast<std::size_t>(rank)].narrow(
            0, begin, part.numel()));
        begin += part.numel();
      }
    }
  }
}

// All ranks have the same dtypes, in the same order.
void for_each_dtype(
    const std::vector<CutMatrix*>& matrices,
    const std::function<void(const std::vector<CutMatrix*>&)>& visit) {
  std::vector<std::vector<CutMatrix*>> groups;
  for (auto* matrix : matrices) {
    const auto group = std::ranges::find_if(groups, [&](const auto& of) {
      return of.front()->options.dtype() == matrix->options.dtype();
    });
    (group == groups.end() ? groups.emplace_back() : *group).push_back(matrix);
  }
  std::ranges::for_each(groups, visit);
}

PartOf parts_of_owned(const WholeParameters& ranks) {
  return [&ranks](const CutMatrix& matrix, int rank) {
    return matrix.owner == ranks.rank ? part_of_whole(matrix, rank)
                                      : at::Tensor();
  };
}

at::Tensor part_for_owner(const CutMatrix& matrix, int rank) {
  return matrix.owner == rank ? matrix.part : at::Tensor();
}

}  // namespace

std::vector<int> assign_by_cost(
    const std::vector<std::int64_t>& costs, int ranks) {
  SHERD_ASSERT(ranks >= 1);
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
  std::vector<int> owners(costs.size(), 0);
  for (const std::size_t item : order) {
    const auto least = std::ranges::min_element(loads);
    *least += costs[item];
    owners[item] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

void gather_parts(
    const WholeParameters& ranks, const std::vector<CutMatrix*>& matrices) {
  for (auto* matrix : matrices) {
    if (matrix->owner == ranks.rank) {
      matrix->whole = at::empty({matrix->cuts.back()}, matrix->options);
    }
  }
  for_each_dtype(matrices, [&](const std::vector<CutMatrix*>& group) {
    exchange_parts(ranks, group, part_for_owner, parts_of_owned(ranks));
  });
}

void scatter_parts(
    const WholeParameters& ranks, const std::vector<CutMatrix*>& matrices) {
  for_each_dtype(matrices, [&](const std::vector<CutMatrix*>& group) {
    exchange_parts(ranks, group, parts_of_owned(ranks), part_for_owner);
  });
}

}  // namespace sherd::optim
