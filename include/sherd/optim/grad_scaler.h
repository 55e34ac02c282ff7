// SPDX-License-Identifier: Apache-2.0
//
// GradScaler scales the loss of training in fp16 (Micikevicius et al., Mixed Precision Training,
// arXiv 1710.03740): gradients too small for fp16 become large enough for it, and a step whose
// gradients have overflowed is skipped on every rank, with a smaller scale afterwards.
//
//   sherd::GradScaler scaler(fsdp.named_parameters());
//   scaler.scale(model->loss(batch)).backward();
//   scaler.unscale();   // Before anything that reads gradients; else step() does it.
//   fsdp.clip_grad_norm(1.0);
//   scaler.step(adamw);
//   scaler.update();
//
// Mirrors torch.amp.GradScaler and ShardedGradScaler, with one decision for all optimizers of a
// model. Thread rule: one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>

namespace sherd {

// The same on every rank; all of them change behaviour.
struct GradScalerOptions {
  double init_scale = 65536.0;  // Positive. A power of two loses no bits.
  double growth_factor = 2.0;   // Above 1.
  double backoff_factor = 0.5;  // Between 0 and 1.
  // The scale grows after this many steps in a row whose gradients were finite.
  int growth_interval = 2000;
  // Something uses fp16 that parameters do not tell of, as autocast and communication hooks do. It
  // is an error if nothing does: fp32 and bf16 need no scaler.
  bool uses_fp16 = false;
};

class GradScaler {
 public:
  // `parameters` are all of the model's, those of fully_shard or replicate, or plain tensors in one
  // process. Throws Error, on every rank, when an option is out of range, there is no parameter, or
  // nothing uses fp16.
  explicit GradScaler(
      NamedParameters parameters, const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  // Returns the loss times the scale, to run backward from, for each micro-batch of a step. Throws
  // Error when an optimizer updates in backward: it would use scaled gradients, before it is known
  // whether all of them are finite.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the gradients by the scale, in place, and finds out whether any rank has one that is
  // infinite or not a number. Collective where parameters are sharded. Throws Error the second time
  // before update(), and inside a summon scope that writes whole gradients back; nothing has changed
  // then.
  void unscale();

  // Calls unscale() if that is still to be done, and then step() of each optimizer, in this order.
  // If any rank has such a gradient, it skips that and publishes the parameters as they are. Returns
  // whether the step was made, the same on every rank. Gradients stay. Throws Error the second time
  // before update().
  template <typename... Optimizers>
  bool step(Optimizers&... optimizers) {
    return step_with([&] { (static_cast<void>(optimizers.step()), ...); });
  }
  // The same with a function that makes the step.
  bool step_with(const std::function<void()>& make_step);

  // Chooses the scale of the next step. Throws Error before unscale() or step(), and when the scale
  // leaves the range of fp32 at its lower end, since gradients are not finite whatever it is.
  void update();

  double get_scale() const;

  // "scale", fp32, and "growth_tracker", int32, the steps since the scale changed: numbers without
  // dimensions, the same on every rank. They share the scaler's memory: writing them restores it.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
