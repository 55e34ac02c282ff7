// SPDX-License-Identifier: Apache-2.0
#include "world/collectives.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include "base/check.h"
#include "base/copy_bytes.h"
#include "world/rank_order_sum.h"

namespace sherd::world {
namespace {

// Up to this size a second message costs more than the bytes that it saves.
constexpr std::size_t kAtOnceBytes = std::size_t{16} << 10;

std::size_t position(int member) { return static_cast<std::size_t>(member); }

std::vector<int> all_of(const Transport& transport) {
  std::vector<int> members(static_cast<std::size_t>(transport.size()));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

}  // namespace

Collectives::Collectives(Transport& transport, std::string what)
    : Collectives(transport, std::move(what), transport.next_collective_tag()) {
}

Collectives::Collectives(Transport& transport, std::string what, int tag)
    : Collectives(transport, all_of(transport), std::move(what), tag) {}

Collectives::Collectives(
    Transport& transport, std::vector<int> members, std::string what, int tag)
    : transport_(transport),
      members_(std::move(members)),
      what_(std::move(what)),
      tag_(tag) {
  const auto self = std::ranges::find(members_, transport_.index());
  SHERD_ASSERT(self != members_.end());
  index_ = static_cast<int>(self - members_.begin());
}

int Collectives::world_rank(int member) const {
  return transport_.world_rank(peer(member));
}

Status Collectives::all_reduce(const at::Tensor& tensor, double scale) {
  SHERD_ASSERT(tensor.is_contiguous());
  const auto flat = tensor.detach().view({-1});
  return flat.nbytes() <= kAtOnceBytes || size() == 1
      ? all_reduce_at_once(flat, scale)
      : all_reduce_in_slices(flat, scale);
}

Status Collectives::all_reduce_at_once(const at::Tensor& flat, double scale) {
  const auto pieces = all_gather(flat);
  SHERD_RETURN_IF_FAILED(pieces.status());
  sum_in_rank_order(pieces.value(), scale, /*accumulate=*/false, flat);
  return {};
}

Status Collectives::exchange(
    const TensorOf& incoming, const TensorOf& outgoing) {
  Transfers transfers;
  for (int member = 0; member < size(); ++member) {
    if (member != index_) {
      transfers.push_back(
          transport_.receive(incoming(member), peer(member), tag_));
      transfers.push_back(
          transport_.send(outgoing(member), peer(member), tag_));
    }
  }
  return wait_all(transfers, what_);
}

Collectives::TensorOf Collectives::slices_of(
    const at::Tensor& flat, const std::vector<std::int64_t>& cuts) {
  return [flat, cuts](int member) {
    const auto begin = cuts[position(member)];
    return flat.narrow(0, begin, cuts[position(member) + 1] - begin);
  };
}

Status Collectives::reduce_scatter(
    const at::Tensor& tensor,
    const std::vector<std::int64_t>& cuts,
    double scale) {
  SHERD_ASSERT(tensor.is_contiguous() && tensor.dim() == 1);
  SHERD_ASSERT(
      cuts.size() == position(size()) + 1 && cuts.back() == tensor.numel());
  const auto slice = slices_of(tensor.detach(), cuts);
  const auto own = slice(index_);
  const auto pieces = beside_own(own, [&](int) { return at::empty_like(own); });
  auto status =
      exchange([&](int member) { return pieces[position(member)]; }, slice);
  if (status.ok()) {
    sum_in_rank_order(pieces, scale, /*accumulate=*/false, own);
  }
  return status;
}

// Each member sums one slice and sends it to all: 2 (W - 1) / W of the bytes, the least possible.
Status Collectives::all_reduce_in_slices(const at::Tensor& flat, double scale) {
  std::vector<std::int64_t> cuts;
  for (int member = 0; member <= size(); ++member) {
    cuts.push_back(flat.numel() * member / size());
  }
  SHERD_RETURN_IF_FAILED(reduce_scatter(flat, cuts, scale));
  const auto slice = slices_of(flat, cuts);
  return exchange(slice, [&](int) { return slice(index_); });
}

Status Collectives::broadcast(
    const std::vector<at::Tensor>& tensors, int root) {
  SHERD_CHECK(
      root >= 0 && root < size(), "[world] expected a root index below ",
      size(), ", found ", root);
  Transfers transfers;
  for (const auto& tensor : tensors) {
    const auto plain = tensor.detach();
    if (index_ != root) {
      transfers.push_back(transport_.receive(plain, peer(root), tag_));
      continue;
    }
    for (int member = 0; member < size(); ++member) {
      if (member != root) {
        transfers.push_back(transport_.send(plain, peer(member), tag_));
      }
    }
  }
  return wait_all(transfers, what_);
}

std::vector<at::Tensor> Collectives::beside_own(
    const at::Tensor& own, const TensorOf& other) const {
  std::vector<at::Tensor> all;
  for (int member = 0; member < size(); ++member) {
    all.push_back(member == index_ ? own : other(member));
  }
  return all;
}

Result<std::vector<at::Tensor>> Collectives::all_gather(
    const at::Tensor& mine) {
  auto all = beside_own(mine, [&](int) { return at::empty_like(mine); });
  SHERD_RETURN_IF_FAILED(exchange(
      [&](int member) { return all[position(member)]; },
      [&](int) { return mine; }));
  return all;
}

Result<std::vector<std::string>> Collectives::all_gather_texts(
    const std::string& mine) {
  const auto count = static_cast<std::int64_t>(mine.size());
  const auto counts = all_gather(at::full({1}, count, at::kLong));
  SHERD_RETURN_IF_FAILED(counts.status());
  std::vector<std::int64_t> lengths;
  for (const auto& one : counts.value()) {
    lengths.push_back(*one.const_data_ptr<std::int64_t>());
  }
  return all_gather_texts(mine, lengths);
}

Result<std::vector<std::string>> Collectives::all_gather_texts(
    const std::string& mine, const std::vector<std::int64_t>& lengths) {
  const auto buffer_of = [&](int member) {
    return at::empty({lengths[position(member)]}, at::kByte);
  };
  const auto own = buffer_of(index_);
  copy_bytes(own.mutable_data_ptr(), mine.data(), mine.size());
  const auto texts = beside_own(own, buffer_of);
  SHERD_RETURN_IF_FAILED(exchange(
      [&](int member) { return texts[position(member)]; },
      [&](int) { return own; }));
  std::vector<std::string> all;
  for (const auto& text : texts) {
    all.emplace_back(
        static_cast<const char*>(text.const_data_ptr()), text.nbytes());
  }
  return all;
}

}  // namespace sherd::world
