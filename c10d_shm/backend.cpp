// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/backend.h"

#include <algorithm>
#include <utility>
#include "base/check.h"
#include "c10d_shm/collective_operation.h"
#include "c10d_shm/p2p_worker.h"
#include "c10d_shm/shm_group.h"
#include "c10d_shm/work.h"

namespace sherd::c10d_shm {
namespace {

Status run_all(
    const std::vector<CollectivePart>& parts,
    ShmCommunicator& communicator,
    Duration deadline) {
  for (const CollectivePart& part : parts) {
    if (Status failed = part.run(communicator, deadline); !failed.ok()) {
      return failed;
    }
  }
  for (const CollectivePart& part : parts) {
    for (const TensorBytes& output : part.outputs) {
      output.copy_back();
    }
  }
  return {};
}

}  // namespace

ShmBackend::ShmBackend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    c10::intrusive_ptr<ShmBackendOptions> options)
    : Backend(rank, size), options_(std::move(options)) {
  SHERD_CHECK(
      size >= 1 && rank >= 0 && rank < size,
      "[c10d_shm] expected a rank from 0 to ", size - 1, ", found ", rank);
  const auto names = options_->global_ranks_in_group.size();
  SHERD_CHECK(
      names == 0 || names == static_cast<std::size_t>(size),
      "[c10d_shm] expected ", size, " global ranks, found ", names);
  group_ = join_shm_group(store, rank, size, *options_);
  queue_ =
      std::make_shared<WorkQueue>([g = group_] { g->communicator.abort(); });
  p2p_ = std::make_shared<P2pWorker>(group_);
  init();
}

ShmBackend::~ShmBackend() {
  if (group_ != nullptr) {
    release_resources();
  }
}

void ShmBackend::release_resources() {
  if (options_->unlocked) {
    options_->unlocked([this] { shutdown(); });
  } else {
    shutdown();
  }
  p2p_.reset();
  queue_.reset();
  group_.reset();
}

bool ShmBackend::single_copy() const {
  return group_->communicator.single_copy();
}

c10::intrusive_ptr<c10d::Backend::Options> ShmBackend::getBackendOptions() {
  return c10::static_intrusive_pointer_cast<Options>(options_);
}

void ShmBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
}

void ShmBackend::shutdown() {
  queue_->stop();
  p2p_->stop();
  group_->segment.peers().leave();
}

void ShmBackend::abort() {
  group_->communicator.abort();
  group_->segment.peers().give_up("it aborted the group");
  queue_->stop();
  p2p_->stop();
}

c10::intrusive_ptr<c10d::Work> ShmBackend::issue(
    CollectiveOperation operation) {
  const auto timeout =
      operation.timeout.count() > 0 ? operation.timeout : options_->timeout;
  ++sequence_;
  auto work = c10::make_intrusive<ShmWork>(
      WorkOptions{
          .rank = rank_,
          .type = operation.type,
          .title = operation.title,
          .inputs = std::move(operation.inputs),
          .outputs = std::move(operation.outputs),
          .sequence = sequence_},
      [group = group_, parts = std::move(operation.parts), timeout] {
        return run_all(parts, group->communicator, timeout);
      });
  queue_->issue(work, !operation.async);
  return work;
}

c10::intrusive_ptr<c10d::Work> ShmBackend::barrier(
    const c10d::BarrierOptions& opts) {
  CollectivePart part;
  part.run = [](ShmCommunicator& communicator, Duration deadline) {
    return c10d_shm::barrier(
        communicator, {.what = "barrier()", .deadline = deadline});
  };
  return issue(
      {c10d::OpType::BARRIER, "shm:barrier", {}, {}, only(std::move(part))},
      opts);
}

c10::intrusive_ptr<c10d::Backend> ShmBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& opts) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) {
    return nullptr;
  }
  auto options = c10::make_intrusive<ShmBackendOptions>(
      opts == nullptr ? options_->timeout : opts->timeout);
  options->communicator = options_->communicator;
  options->unlocked = options_->unlocked;
  options->made = options_->made;
  const auto& names = options_->global_ranks_in_group;
  for (const int r : ranks) {
    SHERD_CHECK(
        r >= 0 && r < size_, "[c10d_shm] split: expected ranks from 0 to ",
        size_ - 1, ", found ", r);
    options->global_ranks_in_group.push_back(
        names.empty() ? static_cast<std::uint64_t>(r)
                      : names[static_cast<std::size_t>(r)]);
  }
  auto part = c10::make_intrusive<ShmBackend>(
      store, static_cast<int>(own - ranks.begin()),
      static_cast<int>(ranks.size()), std::move(options));
  if (options_->made) {
    options_->made(part);
  }
  return part;
}

}  // namespace sherd::c10d_shm
