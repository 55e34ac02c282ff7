// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/backend.h"

#include <algorithm>
#include <exception>
#include <random>
#include <utility>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "base/check.h"
#include "base/status.h"
#include "c10d_shm/collective_operation.h"
#include "c10d_shm/p2p_worker.h"
#include "c10d_shm/shm_group.h"
#include "c10d_shm/window.h"
#include "c10d_shm/work.h"

namespace sherd::c10d_shm {
namespace {

Status run_all(
    const std::vector<CollectivePart>& parts,
    ShmCommunicator& communicator,
    Duration deadline) {
  for (const CollectivePart& part : parts) {
    SHERD_RETURN_IF_FAILED(
        communicator.run([&] { return part.run(communicator, deadline); }));
  }
  for (const CollectivePart& part : parts) {
    for (const TensorBytes& output : part.outputs) {
      output.copy_back();
    }
  }
  return {};
}

void run_abort_hooks(const HookTable<>& hooks) {
  for (const std::exception_ptr& failure : hooks.run()) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      TORCH_WARN("[c10d_shm] an abort hook failed: ", error.what());
    } catch (...) {
      TORCH_WARN("[c10d_shm] an abort hook failed");
    }
  }
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
// The same seed in all processes would give the same numbers.
std::uint64_t random_id() {
  std::random_device random;
  return (std::uint64_t{random()} << 32U) | random();
}
#endif

}  // namespace

ShmBackend::ShmBackend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    c10::intrusive_ptr<ShmBackendOptions> options)
    : Backend(rank, size),
      options_(std::move(options))
#ifdef C10D_BACKEND_HAS_RECONFIGURE
      ,
      store_(store),
      handle_{.global_rank = global_rank(), .id = random_id()}
#endif
{
  SHERD_CHECK(
      size >= 1 && rank >= 0 && rank < size,
      "[c10d_shm] expected a rank from 0 to ", size - 1, ", found ", rank);
  const auto names = options_->global_ranks_in_group.size();
  SHERD_CHECK(
      names == 0 || names == static_cast<std::size_t>(size),
      "[c10d_shm] expected ", size, " global ranks, found ", names);
  init();
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  if (options_->enable_reconfigure) {
    return;
  }
#endif
  join(store, options_->timeout);
}

void ShmBackend::join(
    const c10::intrusive_ptr<c10d::Store>& store,
    std::chrono::milliseconds timeout) {
  group_ = join_shm_group(store, rank_, size_, *options_, timeout);
  group_store_ = store;
  memories_ = 0;
  queue_ =
      std::make_shared<WorkQueue>([g = group_] { g->communicator.abort(); });
  p2p_ = std::make_shared<P2pWorker>(
      group_, [hooks = abort_hooks_] { run_abort_hooks(*hooks); });
}

ShmBackend::~ShmBackend() {
  if (has_group()) {
    release_resources();
  }
}

bool ShmBackend::in_forked_child() const {
  return has_group() && queue_->process().in_child();
}

void ShmBackend::expect_not_forked() const {
  if (has_group()) {
    queue_->process().expect_not_forked();
  }
}

void ShmBackend::expect_group() const {
  SHERD_CHECK_AS(
      kFailedPrecondition, has_group(),
      "[c10d_shm] expected a group, found none: reconfigure() forms one");
  expect_not_forked();
}

std::uint64_t ShmBackend::global_rank() const {
  const auto& names = options_->global_ranks_in_group;
  const auto own = static_cast<std::size_t>(rank_);
  return own < names.size() ? names[own] : own;
}

void ShmBackend::release_resources() {
  if (options_->unlocked) {
    options_->unlocked([this] { shutdown(); });
  } else {
    shutdown();
  }
  drop_group();
}

void ShmBackend::drop_group() {
  p2p_.reset();
  queue_.reset();
  group_.reset();
}

c10::intrusive_ptr<c10d::Backend::Options> ShmBackend::getBackendOptions() {
  return c10::static_intrusive_pointer_cast<Options>(options_);
}

void ShmBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
}

void ShmBackend::shutdown() {
  if (!has_group() || in_forked_child()) {
    return;
  }
  queue_->stop();
  p2p_->flush();
  p2p_->stop();
  group_->segment.peers().leave();
}

void ShmBackend::abort() {
  if (in_forked_child()) {
    return;
  }
  run_abort_hooks(*abort_hooks_);
  if (!has_group()) {
    return;
  }
  group_->communicator.abort();
  group_->segment.peers().give_up("it aborted the group");
  queue_->stop();
  p2p_->stop();
}

WorkOptions ShmBackend::work_options(
    c10d::OpType type,
    const char* title,
    Tensors inputs,
    Tensors outputs) const {
  return {
      .rank = rank_,
      .type = type,
      .title = title,
      .inputs = std::move(inputs),
      .outputs = std::move(outputs),
#ifdef SHERD_C10D_HAS_COMPLETION_HOOKS
      .completion_hooks = completion_hooks_,
#endif
  };
}

C10dWork ShmBackend::issue(CollectiveOperation operation) {
  expect_group();
  const auto timeout =
      operation.timeout.count() > 0 ? operation.timeout : options_->timeout;
  WorkOptions options = work_options(
      operation.type, operation.title, std::move(operation.inputs),
      std::move(operation.outputs));
  options.sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  auto work = c10::make_intrusive<ShmWork>(
      std::move(options),
      [group = group_, parts = std::move(operation.parts), timeout,
       hooks = abort_hooks_] {
        Status outcome = run_all(parts, group->communicator, timeout);
        // After calls that do not match the group goes on.
        if (!outcome.ok() && outcome.code() != ErrorCode::kPeerMismatch) {
          run_abort_hooks(*hooks);
        }
        return outcome;
      });
  queue_->issue(work, !operation.async);
  return work;
}

C10dWork ShmBackend::barrier(const c10d::BarrierOptions& opts) {
  CollectivePart part;
  part.run = [](ShmCommunicator& communicator, Duration deadline) {
    return c10d_shm::barrier(
        communicator, {.what = "barrier()", .deadline = deadline});
  };
  return issue(
      {c10d::OpType::BARRIER, "shm:barrier", {}, {}, only(std::move(part))},
      opts);
}

shm::HostSegment ShmBackend::join_memory(
    const std::string& what, std::size_t bytes) {
  expect_group();
  return join_host_segment(
      c10::make_intrusive<c10d::PrefixStore>(
          str("memory/", memories_++, "/", what), group_store_),
      rank_, size_, *options_, {.bytes = bytes}, options_->timeout);
}

#ifdef C10D_BACKEND_HAS_WINDOW
c10::intrusive_ptr<c10d::Window> ShmBackend::new_window(
    const std::optional<at::Tensor>& tensor) {
  auto window = std::make_shared<ShmWindow>(
      c10::intrusive_ptr<ShmBackend>::reclaim_copy(this));
  if (tensor) {
    window->register_tensor(*tensor, /*owning=*/true);
  }
  return make_c10d_window(std::move(window));
}
#endif

c10::intrusive_ptr<c10d::Backend> ShmBackend::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& opts) {
  const auto own = std::ranges::find(ranks, rank_);
  if (own == ranks.end()) {
    return nullptr;
  }
  expect_not_forked();
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

#ifdef C10D_BACKEND_HAS_RECONFIGURE
c10d::ReconfigureHandle ShmBackend::get_reconfigure_handle() const {
  return handle_.to_text();
}

C10dWork ShmBackend::reconfigure(const c10d::ReconfigureOptions& opts) {
  const auto handles = std::visit(
      [](const auto& all) {
        return std::vector<std::string>(all.begin(), all.end());
      },
      opts.handles);
  const bool ordered =
      std::holds_alternative<std::vector<std::string>>(opts.handles);
  expect_not_forked();
  const GroupMembers members =
      group_members(
          handles, ordered ? MemberOrder::kAsGiven : MemberOrder::kByRank,
          handle_)
          .value();
  SHERD_CHECK(
      uuids_.insert(opts.uuid).second,
      "[c10d_shm] reconfigure: expected a uuid that this backend has not had, "
      "found ",
      opts.uuid, " again");
  shutdown();
  drop_group();
  rank_ = members.rank;
  size_ = static_cast<int>(members.global_ranks.size());
  sequence_.store(0, std::memory_order_relaxed);
  options_->global_ranks_in_group = members.global_ranks;
  join(
      c10::make_intrusive<c10d::PrefixStore>(
          str("reconfigure/", opts.uuid), store_),
      opts.timeout.value_or(options_->timeout));
  return completed_work({.rank = rank_, .title = "shm:reconfigure"});
}
#endif

}  // namespace sherd::c10d_shm
