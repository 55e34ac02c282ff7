// SPDX-License-Identifier: Apache-2.0
#include "exchange/collectives.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "base/check.h"
#include "exchange/rank_order_sum.h"

namespace sherd::exchange {
namespace {

// Up to here a second message costs more than the bytes that it saves.
constexpr std::size_t kAtOnceBytes = std::size_t{16} << 10;

std::vector<int> all_of(const Transport& transport) {
  std::vector<int> members(static_cast<std::size_t>(transport.size()));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

}  // namespace

Collectives::Collectives(
    Transport& transport, std::vector<int> members, std::string what, int tag)
    : transport_(transport),
      members_(std::move(members)),
      what_(std::move(what)),
      tag_(tag) {
  const auto self = std::find(members_.begin(), members_.end(), transport_.index());
  SHERD_ASSERT(self != members_.end());
  index_ = static_cast<int>(self - members_.begin());
}

Collectives::Collectives(Transport& transport, std::string what, int tag)
    : Collectives(transport, all_of(transport), std::move(what), tag) {}

int Collectives::world_rank(int member) const {
  return transport_.world_rank(members_[static_cast<std::size_t>(member)]);
}

Status Collectives::all_reduce(const at::Tensor& tensor, double scale) {
  SHERD_ASSERT(tensor.is_contiguous());
  const auto flat = tensor.view({-1});
  return flat.nbytes() <= kAtOnceBytes || size() == 1
      ? all_reduce_at_once(flat, scale)
      : all_reduce_in_slices(flat, scale);
}

Status Collectives::all_reduce_at_once(const at::Tensor& flat, double scale) {
  const auto pieces = all_gather(flat);
  if (!pieces.ok()) {
    return pieces.status();
  }
  sum_in_rank_order(pieces.value(), scale, /*accumulate=*/false, flat);
  return {};
}

// Each member sums a slice of all, and gives it to all.
Status Collectives::all_reduce_in_slices(const at::Tensor& flat, double scale) {
  const auto begin = [&](int member) { return flat.numel() * member / size(); };
  const auto slice = [&](int member) {
    return flat.narrow(0, begin(member), begin(member + 1) - begin(member));
  };
  std::vector<at::Tensor> pieces;
  Transfers transfers;
  for (int member = 0; member < size(); ++member) {
    const int peer = members_[static_cast<std::size_t>(member)];
    if (member == index_) {
      pieces.push_back(slice(index_));
      continue;
    }
    pieces.push_back(at::empty_like(slice(index_)));
    transfers.push_back(transport_.receive(pieces.back(), peer, tag_));
    transfers.push_back(transport_.send(slice(member), peer, tag_));
  }
  if (auto status = wait_all(transfers, what_); !status.ok()) {
    return status;
  }
  sum_in_rank_order(pieces, scale, /*accumulate=*/false, slice(index_));
  transfers.clear();
  for (int member = 0; member < size(); ++member) {
    const int peer = members_[static_cast<std::size_t>(member)];
    if (member != index_) {
      transfers.push_back(transport_.receive(slice(member), peer, tag_));
      transfers.push_back(transport_.send(slice(index_), peer, tag_));
    }
  }
  return wait_all(transfers, what_);
}

Result<std::vector<at::Tensor>> Collectives::all_gather(const at::Tensor& mine) {
  std::vector<at::Tensor> all;
  Transfers transfers;
  for (int member = 0; member < size(); ++member) {
    const int peer = members_[static_cast<std::size_t>(member)];
    if (member == index_) {
      all.push_back(mine);
      continue;
    }
    all.push_back(at::empty_like(mine));
    transfers.push_back(transport_.receive(all.back(), peer, tag_));
    transfers.push_back(transport_.send(mine, peer, tag_));
  }
  if (auto status = wait_all(transfers, what_); !status.ok()) {
    return status;
  }
  return all;
}

}  // namespace sherd::exchange
