// SPDX-License-Identifier: Apache-2.0
//
// GradScaler scales the loss of training in fp16 (Micikevicius et al., Mixed Precision Training,
// arXiv 1710.03740), so that small gradients do not become zero in fp16. A step whose gradients
// have overflowed is skipped on every rank, and the scale becomes smaller.
//
//   sherd::GradScaler scaler(fsdp.named_parameters());
//   scaler.scale(model->loss(batch)).backward();
//   scaler.unscale();   // Before anything that reads gradients. Otherwise step() does it.
//   fsdp.clip_grad_norm(1.0);
//   scaler.step(adamw);
//   scaler.update();
//
// Mirrors torch.amp.GradScaler and ShardedGradScaler, but decides once for all optimizers of a
// model. Thread rule: one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/base/error.h>
#include <sherd/optim/named_parameters.h>

namespace sherd {

// Must be the same on every rank. All of them change behaviour.
struct GradScalerOptions {
  double init_scale = 65536.0;  // Positive. A power of two loses no bits.
  double growth_factor = 2.0;   // Above 1.
  double backoff_factor = 0.5;  // Between 0 and 1.
  // The scale grows after this many consecutive steps with finite gradients.
  int growth_interval = 2000;
  // Set it if fp16 is used in a way that the parameters do not show, as by autocast or
  // communication hooks. If nothing uses fp16, the constructor throws: fp32 and bf16 need no
  // scaler.
  bool uses_fp16 = false;
};

class GradScaler {
 public:
  // `parameters` are all parameters of the model: those of fully_shard or replicate or, in one
  // process, plain tensors. Throws Error, on every rank, if an option is out of range, if there is
  // no parameter, or if nothing uses fp16.
  explicit GradScaler(
      NamedParameters parameters, const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  // Returns the loss times the scale; call backward() on the result, in each micro-batch of a step.
  // Throws Error (kFailedPrecondition) if an optimizer updates in backward, because it would use
  // scaled gradients before it is known whether all of them are finite.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the gradients by the scale, in place, and finds out whether any rank has one that is
  // infinite or not a number. Collective where parameters are sharded. Throws Error the second time
  // before update(), and inside a summon scope that writes whole gradients back; nothing has changed
  // then.
  void unscale();

  // Calls unscale() unless that was already done, and then step() of each optimizer, in this order.
  // If any rank has an infinite or NaN gradient, it skips the optimizers and publishes the
  // parameters unchanged. Returns whether the step was made, the same on every rank. Gradients
  // stay. Throws Error (kFailedPrecondition) if called twice before update().
  template <typename... Optimizers>
  bool step(Optimizers&... optimizers) {
    return step_with([&] { (static_cast<void>(optimizers.step()), ...); });
  }
  // The same with a function that makes the step.
  bool step_with(const std::function<void()>& make_step);

  // Chooses the scale of the next step. Throws Error (kFailedPrecondition) if neither unscale() nor
  // step() came before, and if the scale would fall below the range of fp32, because then gradients
  // are not finite whatever the scale is.
  void update();

  double get_scale() const;

  // "scale", fp32, and "growth_tracker", int32, the number of steps since the scale changed. Both
  // are 0-D and the same on every rank. They share the scaler's memory: writing them restores it.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  struct Impl;
  HandleState<std::unique_ptr<Impl>, "[optim] GradScaler"> impl_;
};

}  // namespace sherd
