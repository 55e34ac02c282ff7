// SPDX-License-Identifier: Apache-2.0
//
// SingleRankEngine is the engine of a world of one rank. It moves nothing and needs neither key nor
// exchange, so sharding on one rank costs nothing: a slice is the whole parameter, flattened, and
// gets its gradient from a hook without a copy. Thread rule: as for FsdpEngine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "fsdp/idle_optimizer_detector.h"
#include "fsdp/memory_planner.h"
#include "fsdp/sharding_engine.h"

namespace sherd::fsdp {

class SingleRankEngine final : public ShardingEngine {
 public:
  // Gradients are divided by `divide_factor`.
  explicit SingleRankEngine(
      ModelUnits model,
      std::optional<MemoryPlanner::Limit> memory = std::nullopt,
      double divide_factor = 1.0);
  ~SingleRankEngine() override;
  SingleRankEngine(const SingleRankEngine&) = delete;
  SingleRankEngine& operator=(const SingleRankEngine&) = delete;

  // Sets the gradient hooks.
  void start();

  // ShardingEngine
  NamedParameters named_parameters() override;
  double clip_grad_norm(double max_norm, const ClipOptions& options) override;
  void publish() override;
  void begin_summon(const SummonOptions& options) override;
  at::Tensor summoned(const std::string& name) override;
  at::Tensor summoned_gradient(const std::string& name) override;
  void end_summon() override;
  void begin_full_precision() override;  // Values already are.
  void end_full_precision() override { full_precision_ = false; }
  // There is nothing to leave out, because gradients are already in their slices, but hooks of
  // slices wait.
  void begin_no_sync(NoSyncAxis axis) override;
  void end_no_sync(NoSyncAxis axis) override;
  void unshard() override {}
  void reshard() override {}
  std::vector<UnitId> begin_unshard(const std::string& module) override {
    return units_of(model_, module);
  }
  bool finish_unshard(const std::vector<UnitId>&) override { return true; }
  void reshard(const std::string& module) override {
    (void)units_of(model_, module);
  }
  void set_budget(
      Strategy strategy, std::optional<std::int64_t> bytes) override {
    check_budget_change(strategy, bytes, memory_ != nullptr);
  }
  ShardReport report() override;
  void close() override;

 private:
  // ModelEngine
  void end_of_backward(const std::exception_ptr& failure) override;
  void call_hooks(std::unique_lock<std::mutex>& lock) override;
  // ShardingEngine
  void gradient_arrived(int parameter, at::Tensor gradient) override;
  bool has_gradient(int parameter) const override;
  void clear_gradient(int parameter) override;
  void check_parameter(int parameter) const override;

  bool has_changed_since_added(int parameter) const;
  // Under no_sync(): makes the slice's gradient one that drop_unsynchronised() can take back.
  void begin_unsynchronised(int parameter);
  // Takes back what backwards under no_sync() have added since the last synchronised one.
  void drop_unsynchronised();
  void check_parameters() const;
  at::Tensor summoned_tensor(const at::Tensor& own) const;
  // Whether the slice still shows the memory of its parameter.
  bool shares_memory(std::size_t parameter) const;
  std::int64_t trainable() const;
  void warn_if_idle();

  const double gradient_scale_;
  std::vector<at::Tensor> slices_;  // By parameter; undefined for empty ones.
  // By parameter: it has a gradient for which the hook of its slice was not called yet.
  std::vector<bool> hook_due_;
  // What a slice's gradient was before backwards under no_sync() added to it.
  struct Synchronised {
    at::Tensor sum;  // Undefined: none.
    // The gradient with what was added, when it was last added to; null: nothing was added.
    const c10::TensorImpl* with_added = nullptr;
    std::int64_t version = 0;
  };
  std::vector<Synchronised> synchronised_;  // By parameter.
  IdleOptimizerDetector idle_;
  std::int64_t gradients_ = 0;
  bool published_ = false;
  std::optional<SummonOptions> summoned_;
  bool full_precision_ = false;
  const std::optional<MemoryPlanner::Limit> memory_limit_;
  std::unique_ptr<MemoryPlanner> memory_;  // Null without a limit.
  std::int64_t gradients_planned_ = 0;
};

}  // namespace sherd::fsdp
