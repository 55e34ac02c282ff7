// SPDX-License-Identifier: Apache-2.0
//
// FsdpEngine's part for ranks with different numbers of inputs (docs/design/runtime.md).
#include <numeric>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "fsdp/fsdp_engine.h"

namespace sherd::fsdp {

using plan::JoinKind;

JoinKind FsdpEngine::gradient_kind() const {
  if (join_ && join_->in_round) {
    return join_->round.kind;
  }
  if (no_sync_scopes_ > 0 && world_size() > 1) {
    return JoinKind::kKeeps;
  }
  return options_.replicas > 1 && partial_sync_scopes_ > 0
      ? JoinKind::kReducesPartially
      : JoinKind::kReduces;
}

void FsdpEngine::begin_training_forward() {
  check_storages(model_, cache_->storages());
  if (join_ && !join_->ended_early) {
    begin_join_round(gradient_kind());
  }
}

void FsdpEngine::begin_join_round(JoinKind mine) {
  std::vector<double> told(static_cast<std::size_t>(world_size()));
  told[static_cast<std::size_t>(world_rank())] = static_cast<double>(mine);
  auto& round = join_->round;
  round = plan::join_round(
      reduced(std::move(told), exchange::ScalarReduceOp::kSum));
  if (!round.difference.empty()) {
    close_with_failure({ErrorCode::kPeerMismatch, "[fsdp] " + round.difference})
        .throw_if_failed();
  }
  const bool some_without = round.first_without >= 0;
  if (round.active.empty()) {
    return;
  }
  if (some_without && join_->options.throw_on_early_termination) {
    join_->ended_early = true;
    throw Error(
        "[fsdp] " + plan::no_more_inputs(round.first_without, backwards_),
        ErrorCode::kFailedPrecondition);
  }
  double divisor = options_.divide_factor.value_or(world_size());
  if (!join_->options.divide_by_initial_world_size) {
    divisor = divisor * static_cast<double>(round.active.size()) / world_size();
  }
  gradients_->set_scale(1.0 / divisor);
  cache_->set_uneven(some_without);
  join_->in_round = true;
}

void FsdpEngine::begin_join(const JoinOptions& options) {
  const std::lock_guard lock(mu_);
  check_open();
  SHERD_CHECK_AS(
      kFailedPrecondition, !join_,
      "[fsdp] join() inside another join scope of the same model");
  refuse_in_full_precision("join()");
  SHERD_CHECK_AS(
      kFailedPrecondition, !memory_ || !memory_->measuring(),
      "[fsdp] join() before memory_bytes has led to a decision, for which "
      "every rank's steps are measured; expected five steps before it");
  forget_forward();  // A forward without a backward is no round of this scope.
  join_.emplace(Join{.options = options});
}

bool FsdpEngine::take_part_without_inputs() {
  // The order that all such ranks have, and most likely that of the others.
  visited_.resize(model_.units.size());
  std::iota(visited_.begin(), visited_.end(), 0);
  gradients_->set_without_inputs(true);
  const auto over = [this](void*) { gradients_->set_without_inputs(false); };
  const std::unique_ptr<void, decltype(over)> at_end(this, over);
  try {
    end_of_backward(nullptr);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kAborted || !usable()) {
      throw;
    }
    return false;  // Who gave the backward up has thrown there.
  }
  return true;
}

void FsdpEngine::finish_join(const std::function<void()>& after_backward) {
  std::unique_lock lock(mu_);
  const auto leave = [this](void*) { end_join_scope(); };
  const std::unique_ptr<void, decltype(leave)> at_end(this, leave);
  check_open();
  SHERD_CHECK_AS(
      kFailedPrecondition, !join_->ended_early,
      "[fsdp] this join scope was ended by a rank without inputs");
  if (after_backward == nullptr) {
    close_with_failure(
        {ErrorCode::kInvalidArgument,
         "[fsdp] finish() of a sharded model was told nothing that follows a "
         "backward, though each rank updates its own shards; expected a "
         "function that makes the optimizer's step"})
        .throw_if_failed();
  }
  forget_forward();
  while (true) {
    if (!join_->in_round) {  // Else no backward has followed a forward.
      if (unpublished_ && publishers_.expired()) {
        publish_locked(/*keep_frozen=*/true);
      }
      begin_join_round(JoinKind::kNoInputs);
    }
    if (join_->round.active.empty()) {
      return;
    }
    const auto kind = join_->round.kind;
    if (take_part_without_inputs() && kind == JoinKind::kReduces) {
      call_hooks(lock);
      call_after_backward(lock, after_backward, "fsdp");
    }
  }
}

void FsdpEngine::end_join_scope() {
  join_.reset();
  gradients_->set_scale(1.0 / options_.divide_factor.value_or(world_size()));
}

void FsdpEngine::abandon_join() {
  const std::lock_guard lock(mu_);
  if (usable() && !join_->ended_early) {
    (void)close_with_failure(
        {ErrorCode::kFailedPrecondition,
         "[fsdp] a join scope ended without finish()"});
  }
  end_join_scope();
}

}  // namespace sherd::fsdp
