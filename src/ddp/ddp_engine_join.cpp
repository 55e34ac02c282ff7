// SPDX-License-Identifier: Apache-2.0
// DdpEngine's part for ranks with different numbers of inputs.
#include <utility>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "ddp/broadcast_state.h"
#include "ddp/ddp_engine.h"

namespace sherd::ddp {

bool DdpEngine::ends_early() const {
  return join_->options.throw_on_early_termination &&
      !join_->round.active.empty() && join_->round.first_without >= 0;
}

bool DdpEngine::ask_for_inputs(bool has_inputs) {
  std::vector<double> mine(static_cast<std::size_t>(size()));
  mine[static_cast<std::size_t>(index())] = static_cast<double>(
      has_inputs ? plan::JoinKind::kReduces : plan::JoinKind::kNoInputs);
  const auto told = exchange::all_reduce(
      *exchange_, std::move(mine), exchange::ScalarReduceOp::kSum);
  require(told.status());
  auto round = plan::join_round(told.value());
  if (round.active.empty()) {
    return false;  // join_ keeps the ranks that had inputs last.
  }
  join_->round = std::move(round);
  if (ends_early()) {
    join_->terminated = has_inputs;
    return false;
  }
  reducer_->set_scale(1.0 / divisor());
  return true;
}

double DdpEngine::divisor() const {
  return join_ && !join_->options.divide_by_initial_world_size
      ? divide_factor() * static_cast<double>(join_->round.active.size()) /
          size()
      : divide_factor();
}

void DdpEngine::refuse_early_termination() const {
  const auto first = static_cast<std::size_t>(join_->round.first_without);
  throw Error(
      "[ddp] " + plan::no_more_inputs(ranks_[first], backwards_),
      ErrorCode::kFailedPrecondition);
}

void DdpEngine::begin_join(const JoinOptions& options) {
  const std::lock_guard lock(mu_);
  SHERD_CHECK_AS(
      kFailedPrecondition, !join_,
      "[ddp] join() inside another join scope of the same model");
  error_.throw_if_failed();
  join_.emplace(Join{.options = options});
}

void DdpEngine::finish_join(const std::function<void()>& after_backward) {
  std::unique_lock lock(mu_);
  const at::NoGradGuard no_grad;
  const auto leave = [this](void*) { end_join_scope(); };
  const std::unique_ptr<void, decltype(leave)> at_end(this, leave);
  if (alone() || closed_) {
    return;
  }
  error_.throw_if_failed();
  while (begin_synchronised(/*has_inputs=*/false)) {
    clear_gradients();  // What earlier backwards left here is no part of this one.
    // Who gave a backward up has thrown there.
    if (end_synchronised("").ok() && after_backward) {
      call_after_backward(lock, after_backward, "ddp");
    }
    clear_gradients();
  }
  if (ends_early()) {
    refuse_early_termination();
  }
  const auto& last = join_->round.active;
  if (last.empty()) {
    return;  // No rank had any inputs.
  }
  if (!after_backward && last.size() < ranks_.size()) {
    rank_with_all_steps_ = ranks_[static_cast<std::size_t>(last.back())];
  }
  require(broadcast(
      state(options_.broadcast_buffers), *transport_, last.back(),
      "the model of the last rank with inputs"));
}

void DdpEngine::end_join_scope() {
  join_.reset();
  if (reducer_) {
    reducer_->set_scale(1.0 / divide_factor());
  }
}

void DdpEngine::abandon_join() {
  const std::lock_guard lock(mu_);
  end_join_scope();
  if (!alone() && usable()) {
    error_ = {
        ErrorCode::kFailedPrecondition,
        "[ddp] a join scope ended without finish()"};
    exchange_->close(error_);
  }
}

}  // namespace sherd::ddp
