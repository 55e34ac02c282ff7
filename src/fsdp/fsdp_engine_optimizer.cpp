// SPDX-License-Identifier: Apache-2.0
//
// What optimizers see of FsdpEngine: slices, sums over ranks, clipping and publishing.
#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "autograd/gradient_hook.h"
#include "base/check.h"
#include "base/status.h"
#include "fsdp/clip_gradients.h"
#include "fsdp/fsdp_engine.h"

namespace sherd::fsdp {

NamedParameters FsdpEngine::named_parameters() {
  auto named = without_slices();
  for (const auto& slice : slices_->all()) {
    named.items.push_back({slice.name, slice.tensor});
  }
  named.publish = while_alive(
      this, [](FsdpEngine& self) { self.publish_now(/*keep_frozen=*/true); });
  named.before_load = while_alive(this, &FsdpEngine::before_load);
  named.publish_loaded = while_alive(this, &FsdpEngine::publish);
  if (exchange_->takes_sinks()) {
    named.update_in_backward =
        while_alive(this, &FsdpEngine::register_backward_update);
  }
  named.writes_in_backward = while_alive(this, [](FsdpEngine& self) {
    const std::lock_guard lock(self.mu_);
    return self.slices_->writes_in_backward();
  });
  named.claim = while_alive(this, &FsdpEngine::claim_publisher);
  named.drop_kept = while_alive(this, &FsdpEngine::drop_kept);
  named.check_gradients_writable =
      while_alive(this, [](FsdpEngine& self, const char* what) {
        const std::lock_guard lock(self.mu_);
        self.refuse_in_gradient_summon(what);
      });
  named.whole.items = slices_->whole_parameters();
  const bool drift_apart =
      options_.hook && !options_.hook->hook().keeps_models_equal();
  if (drift_apart) {
    named.rank_to_save = [] { return 0; };
  }
  const bool whole_slices = options_.strategy == Strategy::kNoShard;
  if (drift_apart || !whole_slices) {
    named.all_reduce_max = while_alive(this, &FsdpEngine::all_reduce_max);
  }
  if (whole_slices) {
    return named;
  }
  named.whole.rank = owner();
  named.whole.ranks = options_.both_axes ? world_size() : options_.ranks;
  named.whole.gradients_are_shared = shares_gradients();
  if (options_.connect_devices && options_.ranks > 1) {
    named.whole.all_to_all = while_alive(this, &FsdpEngine::all_to_all);
  }
  return named;
}

void FsdpEngine::drop_kept(const std::vector<std::string>& names) {
  const std::lock_guard lock(mu_);
  for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
    const auto index = static_cast<int>(p);
    if (gradients_->keeps(index) &&
        std::ranges::find(names, model_.parameters[p].name) != names.end()) {
      gradients_->drop_kept(index);
    }
  }
}

std::shared_ptr<void> FsdpEngine::register_backward_update(
    BackwardUpdate update) {
  const std::lock_guard lock(mu_);
  return slices_->register_backward_update(std::move(update));
}

void FsdpEngine::all_reduce_max(const at::Tensor& numbers) {
  const std::lock_guard lock(mu_);
  check_open();
  require(exchange_->all_reduce(numbers, exchange::ScalarReduceOp::kMax));
}

// Runs on the caller's thread, in its stream. An optimizer's ranks have just agreed on gradients by way
// of the thread that gathers, so that this thread has nothing left to start on any of them.
std::vector<at::Tensor> FsdpEngine::all_to_all(
    const std::vector<at::Tensor>& to,
    const std::vector<std::int64_t>& numels) {
  const std::lock_guard lock(mu_);
  check_open();
  std::vector<at::Tensor> from;
  require(status_of(
      [&] {
        if (collectives_ == nullptr) {
          collectives_ = options_.connect_devices();
        }
        from = collectives_->all_to_all(to, numels);
      },
      ErrorCode::kUnavailable, "[fsdp] ranks could not exchange matrices: "));
  return from;
}

// Collective.
std::vector<double> FsdpEngine::reduced(
    std::vector<double> numbers, exchange::ScalarReduceOp op) {
  auto all = exchange::all_reduce(*exchange_, std::move(numbers), op);
  require(all.status());
  return std::move(all).value();
}

double FsdpEngine::clip_grad_norm(double max_norm, const ClipOptions& options) {
  const std::lock_guard lock(mu_);
  check_open();
  refuse_in_gradient_summon("clip_grad_norm()");
  SHERD_CHECK_AS(
      kFailedPrecondition, !slices_->updates_in_backward(),
      "[fsdp] clip_grad_norm() with an optimizer that updates in backward: "
      "there is no gradient left to clip; construct it without in_backward");
  const auto sum_over_ranks = [&](const at::Tensor& value) {
    if (options_.strategy == Strategy::kNoShard) {
      return;  // Every rank has all gradients already.
    }
    const auto op = std::isinf(options.p)
        ? exchange::ScalarReduceOp::kMax
        : exchange::ScalarReduceOp::kSumOverOwners;
    require(exchange_->all_reduce(value, op));
  };
  return clip_gradients(slices_->tensors(), max_norm, options, sum_over_ranks);
}

std::shared_ptr<void> FsdpEngine::claim_publisher() {
  const std::lock_guard lock(mu_);
  auto claim = publishers_.lock();
  if (claim == nullptr) {
    claim = std::make_shared<int>();
    publishers_ = claim;
  }
  return claim;
}

void FsdpEngine::before_load() {
  const std::lock_guard lock(mu_);
  check_open();
  if (writes_in_place()) {
    // A rank comes here when it has read whatever it reads, and reads nothing before the publish.
    (void)reduced({0.0}, exchange::ScalarReduceOp::kMax);
    read_since_backward_ = false;
  }
}

void FsdpEngine::publish_if_due(const char* operator_name) {
  // What full_precision() has not published, nobody has written.
  if (full_precision_scope_) {
    return;
  }
  if (!unpublished_) {
    refuse_late_writes(operator_name);
    return;
  }
  if (autograd::in_backward()) {
    refuse_read_of_written(operator_name);
  } else if (!autograd::in_graph()) {
    refuse_early_read(operator_name);
  } else if (publishers_.expired()) {
    // If the step was left out, a custom Function may have saved parameters by now, as
    // refuse_early_read() allows, and they must keep their version.
    publish_locked(
        /*keep_frozen=*/true, !step_outstanding_ || slices_written());
  }
}

bool FsdpEngine::slices_written() const {
  return slices_->versions() != published_versions_ ||
      slices_->sample_changed();
}

// A program may have written slices after the step of an optimizer was published. A publish here would
// wait for ranks that own nothing of what was written: they do not know that one is due.
void FsdpEngine::refuse_late_writes(const char* operator_name) const {
  SHERD_CHECK_AS(
      kFailedPrecondition,
      in_step_ || autograd::in_backward() ||
          slices_->versions() == published_versions_,
      "[fsdp] ", operator_name,
      " reads a sharded parameter after a slice was written and before that "
      "was published; call fsdp.publish() on every rank when the program has "
      "written slices by itself, for instance to clip weights");
}

// A backward may follow another one, as of the losses of one forward. But after an optimizer's step
// whole units have values from before it, and other ranks may still write what is read in place.
void FsdpEngine::refuse_read_of_written(const char* operator_name) const {
  SHERD_CHECK_AS(
      kFailedPrecondition, !publishers_.expired() || !slices_->sample_changed(),
      "[fsdp] ", operator_name,
      " reads a sharded parameter in a backward, after an optimizer has "
      "written it and before that was published; call fsdp.publish() on every "
      "rank after each optimizer step that no training forward follows before "
      "the next backward (step() of sherd's own optimizers does)");
}

// Nothing may be read without gradients that an optimizer may have written already, nor in place what
// one of another rank may write meanwhile. A training forward has a backward before the next write, as
// publish_now() demands, and so have those of its parts that record nothing.
void FsdpEngine::refuse_early_read(const char* operator_name) const {
  if (step_outstanding_ && !slices_->sample_changed()) {
    return;  // Values are those that were published.
  }
  SHERD_CHECK_AS(
      kFailedPrecondition, !may_be_written(), "[fsdp] ", operator_name,
      " reads a sharded parameter without recording gradients, after a "
      "backward and before its update was published; call fsdp.publish() on "
      "every rank after the optimizer step, or where that is left out (step() "
      "of sherd's own optimizers does). A training forward may begin so, too: "
      "with a custom autograd::Function, a NoGradGuard or a reentrant "
      "checkpoint");
  SHERD_CHECK_AS(
      kFailedPrecondition, !writes_in_place() || in_forward(), "[fsdp] ",
      operator_name,
      " reads a sharded parameter without recording gradients, between a "
      "backward and the optimizer step, in which other ranks write the memory "
      "that is read; evaluate after the step, or call fsdp.publish() on every "
      "rank if no step follows. If this begins a training forward (a custom "
      "autograd::Function, a NoGradGuard, a reentrant checkpoint), use a "
      "parameter with gradients before it");
}

void FsdpEngine::publish() { publish_now(/*keep_frozen=*/false); }

void FsdpEngine::publish_now(bool keep_frozen) {
  const std::lock_guard lock(mu_);
  check_open();
  if (in_hooks_) {
    written_in_hooks_ = written_in_hooks_.value_or(true) && keep_frozen;
    return;  // Other ranks may have other hooks: call_hooks() does it on all of them.
  }
  refuse_in_scope("publish()");
  check_storages(model_, cache_->storages());
  SHERD_CHECK_AS(
      kFailedPrecondition, !read_since_backward_ || !writes_in_place(),
      "[fsdp] parameters were read after the last backward, and other ranks "
      "may be reading still what this one has written in shared memory; "
      "expected a backward between reading and writing, or writing inside "
      "summon_full_parameters()");
  published_by_hand_ = true;
  publish_before_step(keep_frozen);
}

// Collective where some rank has hooks. Optimizers in them publish what they have written, but how
// many do so differs by rank: all ranks publish once, if any rank has written.
void FsdpEngine::call_hooks(std::unique_lock<std::mutex>& lock) {
  if (!std::exchange(hooks_due_, false)) {
    return;
  }
  written_in_hooks_.reset();
  in_hooks_ = true;
  try {
    const auto slices = slices_->hooked();
    call_unlocked(lock, [&] {
      for (const auto& slice : slices) {
        autograd::call_post_accumulation_hook(slice);
      }
    });
    in_hooks_ = false;
  } catch (...) {
    in_hooks_ = false;
    (void)close_with_failure(
        {ErrorCode::kAborted,
         "[fsdp] a hook of a slice failed after backward: " +
             reason_of(std::current_exception())});
    throw;
  }
  const auto [written, frozen_too] = on_any_rank(
      written_in_hooks_.has_value(), !written_in_hooks_.value_or(true));
  if (written) {
    published_by_hand_ = true;
    publish_locked(/*keep_frozen=*/!frozen_too);
  }
}

// Collective: what is true on some rank.
std::array<bool, 2> FsdpEngine::on_any_rank(bool first, bool second) {
  const auto any = reduced(
      {first ? 1.0 : 0.0, second ? 1.0 : 0.0}, exchange::ScalarReduceOp::kMax);
  return {any[0] != 0.0, any[1] != 0.0};
}

// Collective. Publishes at a moment that may lie before the step of an optimizer that does not publish
// by itself. If gradients are there and no rank has written, the next forward publishes again.
void FsdpEngine::publish_before_step(bool keep_frozen) {
  bool outstanding = unpublished_ && publishers_.expired();
  if (outstanding) {
    const auto [gradient, written] =
        on_any_rank(slices_->any_gradient(), slices_->sample_changed());
    outstanding = gradient && !written;
  }
  publish_locked(keep_frozen);
  unpublished_ = step_outstanding_ = outstanding;
}

// Collective: every rank is at the end of the same backward.
void FsdpEngine::warn_of_idle_optimizer() {
  const auto [changed, due] = on_any_rank(
      published_by_hand_ || idle_.changed(slices_->tensors()),
      idle_.change_due());
  if (!changed && due && world_rank() == 0) {
    idle_.warn(backwards_);
  }
}

void FsdpEngine::publish_locked(bool keep_frozen, bool written) {
  slices_->check_memory();
  cache_->end_step(keep_frozen);
  in_step_ = false;
  unpublished_ = step_outstanding_ = false;
  compared_ = false;
  ++generation_;
  require(exchange_->publish(generation_));
  published_versions_ = slices_->versions();
  if (written) {
    bump_versions();
  }
  plan_memory();
}

}  // namespace sherd::fsdp
