// SPDX-License-Identifier: Apache-2.0
#include "comm/shm_backend/backend.h"

#include <algorithm>
#include <utility>
#include "base/check.h"
#include "comm/shm_backend/backend_issue.h"
#include "comm/shm_backend/group.h"
#include "comm/shm_backend/post.h"
#include "comm/shm_backend/work.h"

namespace sherd::comm::shm {
ShmBackend::ShmBackend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    c10::intrusive_ptr<ShmBackendOptions> options)
    : Backend(rank, size), options_(std::move(options)) {
  SHERD_CHECK(
      size >= 1 && rank >= 0 && rank < size,
      "[comm] expected a rank from 0 to ", size - 1, ", found ", rank);
  GroupOptions group;
  group.rank = rank;
  group.ranks = size;
  for (const auto r : options_->global_ranks_in_group) {
    group.names.push_back(static_cast<int>(r));
  }
  SHERD_CHECK(
      group.names.empty() ||
          group.names.size() == static_cast<std::size_t>(size),
      "[comm] expected ", size, " global ranks, found ", group.names.size());
  group.stage = options_->stage;
  group.deadline = options_->timeout;
  group_ = join_group(store, group);
  line_ = std::make_shared<WorkLine>([g = group_] { g->stage.abort(); });
  post_ = std::make_shared<Post>(group_);
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
  post_.reset();
  line_.reset();
  group_.reset();
}

bool ShmBackend::single_copy() const { return group_->stage.single_copy(); }

c10::intrusive_ptr<c10d::Backend::Options> ShmBackend::getBackendOptions() {
  return c10::static_intrusive_pointer_cast<Options>(options_);
}

void ShmBackend::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
}

void ShmBackend::shutdown() {
  line_->stop();
  post_->stop();
  group_->segment.peers().leave();
}

void ShmBackend::abort() {
  group_->stage.abort();
  group_->segment.peers().give_up("it aborted the group");
  line_->stop();
  post_->stop();
}

c10::intrusive_ptr<c10d::Work> ShmBackend::issue(Issue issue) {
  const auto timeout =
      issue.timeout.count() > 0 ? issue.timeout : options_->timeout;
  ++sequence_;
  auto work = c10::make_intrusive<ShmWork>(
      WorkOptions{
          .rank = rank_,
          .type = issue.type,
          .title = issue.title,
          .inputs = std::move(issue.inputs),
          .outputs = std::move(issue.outputs),
          .sequence = sequence_},
      [group = group_, run = std::move(issue.run), timeout] {
        return run(group->stage, timeout);
      });
  line_->issue(work, !issue.async);
  return work;
}

c10::intrusive_ptr<c10d::Work> ShmBackend::barrier(
    const c10d::BarrierOptions& opts) {
  return issue(
      {.type = c10d::OpType::BARRIER,
       .title = "shm:barrier",
       .inputs = {},
       .outputs = {},
       .timeout = opts.timeout,
       .async = opts.asyncOp,
       .run = [](Stage& stage, Duration deadline) {
         return shm::barrier(
             stage, {.what = "barrier()", .deadline = deadline});
       }});
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
  options->stage = options_->stage;
  options->unlocked = options_->unlocked;
  options->made = options_->made;
  const auto& names = options_->global_ranks_in_group;
  for (const int r : ranks) {
    SHERD_CHECK(
        r >= 0 && r < size_, "[comm] split: expected ranks from 0 to ",
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

}  // namespace sherd::comm::shm
