// SPDX-License-Identifier: Apache-2.0
//
// The engine of a world of one rank: the same handle, nothing moved, no key, no
// exchange. A slice is the whole parameter, flattened; a gradient is handed
// over without a copy as soon as autograd has it. Thread rule: as FsdpEngine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>
#include "autograd/backward.h"
#include "fsdp/idle_optimizer_detector.h"
#include "fsdp/model_units.h"
#include "fsdp/module_gradients.h"
#include "fsdp/sharding_engine.h"

namespace sherd::fsdp {

class SingleRankEngine final : public ShardingEngine,
                          public autograd::BackwardListener,
                          public std::enable_shared_from_this<SingleRankEngine> {
 public:
  explicit SingleRankEngine(ModelUnits model);
  ~SingleRankEngine() override;
  SingleRankEngine(const SingleRankEngine&) = delete;
  SingleRankEngine& operator=(const SingleRankEngine&) = delete;

  // Sets the gradient hooks.
  void start();

  // autograd::BackwardListener
  void backward_ended(std::exception_ptr failure) override;

  // ShardingEngine
  NamedParameters named_parameters() override;
  double clip_grad_norm(double max_norm, const ClipOptions& options) override;
  void publish() override;
  void begin_summon(const SummonOptions& options) override;
  at::Tensor summoned(const std::string& name) override;
  void end_summon() override { summoned_ = false; }
  // Gradients are where they belong already.
  void begin_no_sync(NoSyncAxis) override {}
  void end_no_sync(NoSyncAxis) override {}
  void unshard() override {}
  void reshard() override {}
  ShardReport report() override;
  void close() override;

 private:
  void gradient_arrived(int parameter, at::Tensor gradient);
  void watch_module_gradients();
  void clear_gradient(int parameter);
  void check_identity(std::size_t parameter) const;
  std::int64_t trainable() const;
  void warn_if_idle();

  std::mutex mu_;
  ModelUnits model_;
  std::vector<at::Tensor> slices_;  // By parameter; empty ones undefined.
  std::unique_ptr<ModuleGradients> module_gradients_;
  bool armed_in_backward_ = false;
  IdleOptimizerDetector idle_;
  std::int64_t gradients_ = 0;
  bool published_ = false;
  bool summoned_ = false;
  bool closed_ = false;
};

}  // namespace sherd::fsdp
