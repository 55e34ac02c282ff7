// SPDX-License-Identifier: Apache-2.0
//
// ShardingEngine is the base class of the engines behind a FullyShardedDataParallel: FsdpEngine for
// many ranks, and SingleRankEngine, which moves nothing. Both keep gradients in slices, so this
// class owns the placeholders that the module's parameters show instead (module_gradients.h). The
// contracts of the public methods are those of the public header. Thread rule: one thread calls the
// public methods; the rest is as ModelEngine says.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <sherd/fsdp/fully_shard.h>
#include "autograd/model_engine.h"
#include "fsdp/model_units.h"
#include "fsdp/module_gradients.h"

namespace sherd {

class ShardingEngine : public autograd::ModelEngine {
 public:
  virtual NamedParameters named_parameters() = 0;
  virtual double clip_grad_norm(
      double max_norm, const ClipOptions& options) = 0;
  virtual void publish() = 0;
  virtual void begin_summon(const SummonOptions& options) = 0;
  virtual at::Tensor summoned(const std::string& name) = 0;
  virtual at::Tensor summoned_gradient(const std::string& name) = 0;
  // Nothing where no scope is open. The engine has failed for good when it throws.
  virtual void end_summon() = 0;
  virtual void begin_full_precision() = 0;
  virtual void end_full_precision() = 0;
  virtual void begin_no_sync(NoSyncAxis axis) = 0;
  virtual void end_no_sync(NoSyncAxis axis) = 0;
  virtual void synchronize() {}
  virtual void unshard() = 0;
  virtual void reshard() = 0;
  // For one module: returns the units whose gathers were started.
  virtual std::vector<plan::UnitId> begin_unshard(
      const std::string& module) = 0;
  virtual bool finish_unshard(const std::vector<plan::UnitId>& units) = 0;
  virtual void reshard(const std::string& module) = 0;
  virtual void set_budget(
      Strategy strategy, std::optional<std::int64_t> bytes) = 0;
  virtual ShardReport report() = 0;
  std::vector<UnitReport> units() { return fsdp::list_units(model_); }
  virtual void close() = 0;

  const fsdp::ModelUnits& model() const { return model_; }
  // Throws Error if the scope that calls has ended.
  static void check_summon_scope(bool open);
  // From now on forwards of modules that are a CastForward cast their results, and their inputs
  // unless operators use parameters in full precision. REQUIRES: no forward is running.
  void cast_forwards(bool full_precision);

 protected:
  explicit ShardingEngine(fsdp::ModelUnits model);

  // A backward has brought the parameter a gradient, perhaps an undefined one.
  virtual void gradient_arrived(int parameter, at::Tensor gradient) = 0;
  // Whether this rank holds a gradient of the parameter, wherever it is.
  virtual bool has_gradient(int parameter) const = 0;
  virtual void clear_gradient(int parameter) = 0;
  // Throws Error if the parameter was given another storage.
  virtual void check_parameter(int parameter) const = 0;

  // What NamedParameters say of the model besides its slices. Parameters without elements have
  // memory of their own, since a unit's may be unreadable.
  NamedParameters without_slices() const;

  // Throws Error for options that both engines refuse.
  static void check_summon_options(const SummonOptions& options);
  static void check_summoned_gradients(bool with_gradients);
  static void check_full_precision_scope(bool open, bool summoned);
  static void check_budget_change(
      Strategy strategy, std::optional<std::int64_t> bytes, bool has_limit);

  // Gives trainable parameters a gradient hook, where they have none. REQUIRES: a shared_ptr owns
  // this.
  void set_gradient_hooks();
  // Prepares placeholders, and makes each backward set the hooks again that a user has replaced.
  // REQUIRES: a shared_ptr owns this.
  void watch_module_gradients();
  // Gives placeholders to parameters with a gradient. If a backward is running that adds to
  // `.grad()` of this model's parameters, its end does so.
  void show_module_gradients();
  // Takes them away, and clears the gradients whose placeholder the user has dropped.
  void hide_module_gradients();
  // Call it after an update, so that a graph of the old values cannot be run backward over the new
  // ones.
  void bump_versions();
  // Marks the engine as closed and takes back what was set on parameters. Returns false if it was
  // closed before.
  bool begin_close();

  const fsdp::ModelUnits model_;
  std::unique_ptr<fsdp::ModuleGradients> module_gradients_;

 private:
  // BackwardListener
  void writes_ended() final;

  bool show_due_ =
      false;  // Another backward was running when gradients were to be shown.
};

}  // namespace sherd
