// SPDX-License-Identifier: Apache-2.0
#include "world/communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include "base/check.h"
#include "world/world_impl.h"

namespace sherd::world {
namespace {

// Below this every rank sends everything to every other: one round instead of
// two, at W times the bytes.
constexpr std::int64_t kDirectBytesMax = 32 << 10;

// Operations of one collective step, waited for together.
class Batch {
 public:
  Batch(C10dGroup& group, const std::string& what) : group_(group), what_(what) {}
  void send(const at::Tensor& t, int peer, int tag) {
    pending_.push_back(group_.send(t, peer, tag));
  }
  void receive(const at::Tensor& t, int peer, int tag) {
    pending_.push_back(group_.receive(t, peer, tag));
  }
  Status wait() {
    Status first;
    for (Pending& p : pending_) {
      Status status = group_.wait(p, what_);
      if (first.ok() && !status.ok()) {
        first = std::move(status);
      }
    }
    pending_.clear();
    return first;
  }

 private:
  C10dGroup& group_;
  const std::string& what_;
  std::vector<Pending> pending_;
};

void combine(at::Tensor& into, const at::Tensor& value, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      into.add_(value);
      return;
    case ReduceOp::kMax:
      into = at::maximum(into, value);
      return;
    case ReduceOp::kMin:
      into = at::minimum(into, value);
      return;
  }
}

// Combines `parts` in order into `out`, which may be one of them.
void reduce_in_order(
    const std::vector<at::Tensor>& parts, ReduceOp op, const at::Tensor& out) {
  const bool half =
      out.scalar_type() == at::kHalf || out.scalar_type() == at::kBFloat16;
  const auto accumulate_as = half ? at::kFloat : out.scalar_type();
  at::Tensor sum =
      parts.front().to(accumulate_as, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    combine(sum, parts[i], op);
  }
  at::Tensor target = out;
  target.copy_(sum);
}

at::Tensor bytes_of(const std::string& text) {
  at::Tensor t = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(t.mutable_data_ptr(), text.data(), text.size());
  return t;
}

std::string text_of(const at::Tensor& bytes) {
  return {
      static_cast<const char*>(bytes.const_data_ptr()),
      static_cast<std::size_t>(bytes.numel())};
}

Status all_reduce_direct(
    C10dGroup& group,
    const at::Tensor& flat,
    ReduceOp op,
    const std::string& what) {
  const int tag = group.next_own_tag();
  Batch batch(group, what);
  std::vector<at::Tensor> parts;
  for (int i = 0; i < group.size(); ++i) {
    parts.push_back(i == group.index() ? flat : at::empty_like(flat));
    if (i != group.index()) {
      batch.receive(parts.back(), i, tag);
      batch.send(flat, i, tag);
    }
  }
  const Status moved = batch.wait();
  if (moved.ok()) {
    reduce_in_order(parts, op, flat);
  }
  return moved;
}

// Each rank combines one slice and sends it to all: 2 (W - 1) / W of the bytes,
// the least possible.
Status all_reduce_by_slices(
    C10dGroup& group,
    const at::Tensor& flat,
    ReduceOp op,
    const std::string& what) {
  const std::int64_t ranks = group.size();
  const auto slice = [&](int i) {
    const std::int64_t begin = flat.numel() * i / ranks;
    const std::int64_t end = flat.numel() * (i + 1) / ranks;
    return flat.narrow(0, begin, end - begin);
  };
  const at::Tensor own = slice(group.index());
  const int reduce_tag = group.next_own_tag();
  const int gather_tag = group.next_own_tag();
  Batch batch(group, what);
  std::vector<at::Tensor> parts;
  for (int i = 0; i < group.size(); ++i) {
    parts.push_back(i == group.index() ? own : at::empty_like(own));
    if (i != group.index()) {
      batch.receive(parts.back(), i, reduce_tag);
      batch.send(slice(i), i, reduce_tag);
    }
  }
  Status moved = batch.wait();
  if (!moved.ok()) {
    return moved;
  }
  reduce_in_order(parts, op, own);
  for (int i = 0; i < group.size(); ++i) {
    if (i != group.index()) {
      batch.receive(slice(i), i, gather_tag);
      batch.send(own, i, gather_tag);
    }
  }
  return batch.wait();
}

}  // namespace

Communicator::Communicator(
    const World& world,
    const std::string& name,
    std::vector<int> ranks,
    std::optional<std::chrono::milliseconds> deadline)
    : world_(world),
      name_(name),
      group_(world.impl()->make_group(
          name, ranks, deadline.value_or(world.options().deadline))) {}

Communicator::Communicator(
    const World& world,
    c10::intrusive_ptr<c10d::Backend> backend,
    std::vector<int> ranks)
    : world_(world) {
  SHERD_CHECK(backend != nullptr, "[world] expected a backend, found null");
  SHERD_CHECK(
      backend->getSize() == static_cast<int>(ranks.size()) &&
          ranks.at(static_cast<std::size_t>(backend->getRank())) ==
              world.rank(),
      "[world] expected a backend of ", ranks.size(),
      " ranks in which this one is rank ", world.rank(), ", found rank ",
      backend->getRank(), " of ", backend->getSize());
  group_ = world.impl()->make_group(
      ranks, std::move(backend), world.options().deadline);
}

Communicator::~Communicator() {
  auto& world = *world_.impl();
  if (!world.closed && group_ && group_->failure().ok()) {
    group_->leave();
    world.retired.push_back({name_, std::move(group_)});
  }
}

int Communicator::index() const { return group_->index(); }
int Communicator::size() const { return group_->size(); }
int Communicator::world_rank(int index) const {
  return group_->world_rank(index);
}

Pending Communicator::send(const at::Tensor& tensor, int peer, int tag) {
  SHERD_CHECK(
      tag >= 0 && tag < C10dGroup::kOwnTags, "[world] expected a tag below 2^30, ",
      "found ", tag);
  return group_->send(tensor, peer, tag);
}

Pending Communicator::receive(const at::Tensor& tensor, int peer, int tag) {
  SHERD_CHECK(
      tag >= 0 && tag < C10dGroup::kOwnTags, "[world] expected a tag below 2^30, ",
      "found ", tag);
  return group_->receive(tensor, peer, tag);
}

Status Communicator::wait(Pending& pending, const std::string& what) {
  return group_->wait(pending, what);
}

Status Communicator::barrier(const std::string& what) {
  return group_->barrier(what);
}

Status Communicator::all_reduce(
    const at::Tensor& tensor, ReduceOp op, const std::string& what) {
  SHERD_CHECK(
      tensor.is_contiguous() && tensor.device().is_cpu(),
      "[world] expected a contiguous CPU tensor for ", what);
  if (size() == 1 || tensor.numel() == 0) {
    return group_->failure();
  }
  const at::Tensor flat = tensor.detach().view({-1});
  const auto bytes =
      flat.numel() * static_cast<std::int64_t>(flat.element_size());
  return bytes <= kDirectBytesMax
      ? all_reduce_direct(*group_, flat, op, what)
      : all_reduce_by_slices(*group_, flat, op, what);
}

Status Communicator::broadcast(
    const at::Tensor& tensor, int root, const std::string& what) {
  SHERD_CHECK(
      root >= 0 && root < size(), "[world] expected a root index below ", size(),
      ", found ", root);
  const int tag = group_->next_own_tag();
  Batch batch(*group_, what);
  if (index() != root) {
    batch.receive(tensor, root, tag);
    return batch.wait();
  }
  for (int i = 0; i < size(); ++i) {
    if (i != root) {
      batch.send(tensor, i, tag);
    }
  }
  return batch.wait();
}

Result<std::vector<std::string>> Communicator::all_gather(
    const std::string& mine, const std::string& what) {
  const int count_tag = group_->next_own_tag();
  const int text_tag = group_->next_own_tag();
  const auto ranks = static_cast<std::size_t>(size());
  const at::Tensor own = bytes_of(mine);
  at::Tensor own_count = at::empty({1}, at::kLong);
  own_count.fill_(own.numel());
  std::vector<at::Tensor> counts(ranks);
  std::vector<at::Tensor> texts(ranks);
  Batch sends(*group_, what);
  Batch counts_in(*group_, what);
  for (std::size_t i = 0; i < ranks; ++i) {
    const int peer = static_cast<int>(i);
    if (peer == index()) {
      continue;
    }
    counts[i] = at::empty({1}, at::kLong);
    sends.send(own_count, peer, count_tag);
    sends.send(own, peer, text_tag);
    counts_in.receive(counts[i], peer, count_tag);
  }
  // A send ends only when its receiver asks for it, so the texts are asked for
  // before any send is waited for.
  Status counted = counts_in.wait();
  Batch texts_in(*group_, what);
  for (std::size_t i = 0; i < ranks && counted.ok(); ++i) {
    if (static_cast<int>(i) == index()) {
      texts[i] = own;
      continue;
    }
    texts[i] = at::empty({counts[i].item<std::int64_t>()}, at::kByte);
    texts_in.receive(texts[i], static_cast<int>(i), text_tag);
  }
  Status received = texts_in.wait();
  Status sent = sends.wait();
  for (Status* status : {&counted, &received, &sent}) {
    if (!status->ok()) {
      return std::move(*status);
    }
  }
  std::vector<std::string> all;
  all.reserve(ranks);
  for (const at::Tensor& text : texts) {
    all.push_back(text_of(text));
  }
  return all;
}

void Communicator::abandon(const Status& why) { group_->abandon(why); }
void Communicator::leave() { group_->leave(); }

}  // namespace sherd::world
