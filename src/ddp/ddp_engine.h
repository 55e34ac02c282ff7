// SPDX-License-Identifier: Apache-2.0
//
// DdpEngine is the engine of one replicated model. It reduces gradients bucket by bucket while
// backward runs and sets the averages as the parameters' `.grad()`; parameters stay where they are.
// ModelEngine tells it when a training forward begins and when the outermost backward has ended.
//
// Thread rule: operators, hooks and backwards from any thread, under ModelEngine's lock; the rest
// as the public header says. States: docs/design/replicas.md.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <sherd/ddp/replicate.h>
#include <sherd/world/world.h>
#include "autograd/managed_storage.h"
#include "autograd/model_engine.h"
#include "ddp/backward_update_table.h"
#include "ddp/keyed_parameters.h"
#include "ddp/replicated_model.h"
#include "ddp/step_timer.h"
#include "device/stream.h"
#include "exchange/exchange.h"
#include "exchange/make_exchange.h"
#include "exchange/reducer.h"
#include "plan/join_round.h"
#include "world/transport.h"

namespace sherd::ddp {

class DdpEngine final : public autograd::ModelEngine,
                        public autograd::ParameterUseListener,
                        public exchange::ReducedGradients {
 public:
  // Collective: compares models and opens the exchange. The module does not change until start().
  DdpEngine(
      std::string module,
      ReplicatedModel model,
      const Mesh& mesh,
      const ReplicateOptions& options);
  ~DdpEngine() override;
  DdpEngine(const DdpEngine&) = delete;
  DdpEngine& operator=(const DdpEngine&) = delete;

  // Collective: synchronises initial values and sets hooks.
  void start();

  // Throws Error for options that work only for parameters on the CPU.
  static void check_on_device(const ReplicatedModel& model, const Mesh& mesh);

  NamedParameters named_parameters();
  std::shared_ptr<void> register_backward_update(BackwardUpdate update);
  void begin_no_sync();
  void end_no_sync();
  void set_mesh(const Mesh& mesh);
  void set_hook(const CommHookPtr& hook);
  void average_parameters();
  void synchronize();
  ReplicateReport report() const;
  void close();

  // ModelEngine
  void begin_join(const JoinOptions& options) override;
  void finish_join(const std::function<void()>& after_backward) override;
  void abandon_join() override;
  // autograd::ParameterUseListener
  void begin_use(
      std::span<const autograd::ParameterUse> uses,
      const char* operator_name) override;
  void end_use(std::span<const autograd::ParameterUse>) noexcept override {}
  // exchange::ReducedGradients
  std::vector<bool> accumulation(plan::UnitId unit) override;
  void set_gradients(plan::UnitId unit, const std::vector<bool>& used) override;
  void clear_gradients() override;

 private:
  // The state of one trainable parameter in a backward.
  struct State {
    bool unsynced = false;  // `.grad()` has what only this rank accumulated.
    // The `.grad()` from before, if this backward brought none.
    at::Tensor kept;
  };

  // ModelEngine
  void begin_training_forward() override;
  void begin_backward() override {
    if (exchange_ && no_sync_scopes_ == 0) {
      exchange_->begin_backward();
    }
  }
  void end_of_backward(const std::exception_ptr& failure) override;
  void abandon_exchange(const Status& failure) override;

  bool alone() const { return size() == 1; }
  const World& world() const { return mesh_.world(); }
  // The number of replicas, and the index of this one.
  int size() const { return static_cast<int>(ranks_.size()); }
  int index() const { return mesh_.replicate_index(); }
  const at::Tensor& tensor(std::size_t p) const {
    return model_.trainable[p].tensor;
  }
  // Gives parameters keys, so that they announce their use and are cast, and, if there are other
  // ranks, gradient hooks.
  void take_parameters();
  void release_parameters();
  // Connects to the ranks of the mesh and opens an exchange with the first buckets.
  void connect(const Mesh& mesh);
  // Collective over the world of the mesh, before anything changes: throws on every rank if some
  // rank is not between two steps, or has options that its device does not support.
  void check_connection(const char* call, const Mesh& mesh) const;
  // Ends the exchange that there is, and starts on these ranks. A failure is that of the engine, until
  // the next call.
  void connect_again(const Mesh& mesh);
  void disconnect();
  void open(const std::vector<int>& order);
  std::unique_ptr<exchange::Exchange> make_exchange();
  // Called on the exchange's thread.
  void run_hook(
      plan::UnitId unit,
      const at::Tensor& gradients,
      const exchange::HookTransport& transport);
  void check_not_thawed() const;
  void gradient_arrived(std::size_t p, at::Tensor gradient);
  // Returns whether all ranks take part in this backward; in a join scope it asks them.
  bool begin_synchronised(bool has_inputs);
  // In a join scope: returns whether ranks with inputs continue.
  bool ask_for_inputs(bool has_inputs);
  void sparse_arrived(std::size_t s, at::Tensor gradient);
  [[nodiscard]] Status reduce_sparse();
  // Why this backward breaks options.static_graph; empty if it does not.
  std::string changed_graph() const;
  bool ends_early() const;
  void end_join_scope();
  std::optional<int> rank_to_save() const;
  void all_reduce_max(const at::Tensor& numbers);
  // REQUIRES: the lock is held.
  bool models_drift_apart() const;
  // What sums are divided by: in general, and in this backward.
  double divide_factor() const {
    return options_.gradient_divide_factor.value_or(size());
  }
  double divisor() const;
  // The factor for a gradient that ranks have already summed, so that it stays the same when they
  // sum it again.
  double scale_of_summed() const { return divide_factor() / size(); }
  void watch_accumulation();
  void before_accumulation(std::size_t p);
  [[noreturn]] void refuse_early_termination() const;
  void note_replaced_hooks();
  void check_not_moved() const;
  void add_accumulated();
  // Ends the backward on all ranks. Returns the failure of any of them.
  Status end_synchronised(const std::string& aborted);
  std::vector<at::Tensor> state(bool with_buffers) const;
  void synchronise_buffers();
  void run_buffer_hook();
  // Makes ranks agree on the final buckets, from the order in which gradients became ready.
  void learn_order(const std::vector<int>& ready);
  // The parameter's part of its bucket's averages, or of any tensor with the layout of the bucket.
  at::Tensor reduced(std::size_t p) const;
  at::Tensor place_in(const at::Tensor& gradients, std::size_t p) const;
  void show(std::size_t p);
  // Sets every `.grad()` once no rank adds to averages any more.
  void show_averages();
  // Makes the updates of optimizers in backward, once backward can no longer fail.
  void update_in_backward();

  const std::string module_;  // The type of the module.
  Mesh mesh_;
  std::vector<int> ranks_;  // The replicas, as ranks of the world.
  ReplicateOptions options_;
  std::string name_;  // Names its connections.
  ReplicatedModel model_;
  KeyedParameters keyed_;   // The trainable ones, then the sparse ones.
  KeyedParameters frozen_;  // Only taken if parameters are cast.
  BackwardUpdateTable updates_;
  std::shared_ptr<world::Transport> transport_;
  std::shared_ptr<world::Transport> buffer_transport_;  // For buffer hooks.
  // The same for buffers on a device.
  std::unique_ptr<exchange::DeviceCollectives> buffer_collectives_;
  // Outlives exchanges, because what a hook keeps belongs to one stream.
  const device::Stream hook_stream_;
  bool compares_calls_ = false;  // Calls of hooks.
  Buckets buckets_;
  // Null: a world of one, or the connection failed.
  std::unique_ptr<exchange::Exchange> exchange_;
  FlightLog log_;                                // The exchange's.
  std::vector<at::Tensor> gradients_;            // Averages by bucket.
  std::vector<const void*> gradient_addresses_;  // By bucket, when it was made.
  std::unique_ptr<exchange::Reducer> reducer_;   // Null: likewise.
  // By trainable parameter: its state, its number of gradients in this backward,
  // and, with options.static_graph, in the first one.
  std::vector<State> states_;
  std::vector<int> arrivals_;
  std::vector<int> graph_;
  std::vector<at::Tensor> sparse_;  // Gradients in this backward.
  // By parameter of keyed_, if sums are not divided by the number of replicas: whether `.grad()` is
  // what ranks have summed, and the hook that is called before autograd adds to it.
  std::vector<bool> summed_;
  std::vector<std::shared_ptr<void>> accumulation_hooks_;

  int bucket_version_ = 0;
  bool learns_order_ = false;  // In the next backward that has gradients.
  std::int64_t backwards_ = 0;
  std::int64_t backwards_connected_ = 0;  // Those since connect().
  std::int64_t gradient_bytes_ = 0;
  std::atomic<std::int64_t> hook_bytes_ = 0;  // Written beside backward.
  std::int64_t reduces_before_ = 0;           // Those of earlier exchanges.
  struct Join {
    JoinOptions options;
    plan::JoinRound round =
        {};  // The last backward for which some rank had inputs.
    bool terminated = false;  // All ranks have left this backward.
  };
  std::optional<Join> join_;
  // After a join scope in which optimizers made different numbers of steps: a rank of the world.
  std::optional<int> rank_with_all_steps_;
  // Parameters in the order of their gradients, in this backward and the last.
  std::vector<int> ready_;
  std::vector<int> ready_before_;
  std::vector<int> arrivals_before_;
  bool same_graph_ = true;  // Every backward had equally many gradients.
  std::vector<bool> used_;  // Used by some rank in the last backward.
  std::string kind_;        // The exchange's kind, for reports.
  const SteadyClock time_;
  StepTimer timer_;
};

}  // namespace sherd::ddp
