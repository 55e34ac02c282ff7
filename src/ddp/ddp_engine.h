// SPDX-License-Identifier: Apache-2.0
//
// DdpEngine is the engine of one replicated model: it hears when a training
// forward begins and when the outermost backward ends (access), carries
// gradients to the exchange, bucket by bucket, while backward goes on, and shows
// the averages as the parameters' `.grad()`. Parameters stay where they are.
//
// Thread rule: operators, hooks and backwards from any thread, under one lock;
// the rest as the public header says. States: docs/design/replicas.md.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <sherd/world/world.h>
#include <sherd/ddp/replicate.h>
#include "autograd/backward.h"
#include "autograd/managed_storage.h"
#include "world/collectives.h"
#include "world/transport.h"
#include "ddp/backward_update_table.h"
#include "ddp/keyed_parameters.h"
#include "ddp/replicated_model.h"
#include "ddp/step_timer.h"
#include "exchange/exchange.h"
#include "exchange/reducer.h"

namespace sherd::ddp {

class DdpEngine final : public autograd::ParameterUseListener,
                      public autograd::BackwardListener,
                      public exchange::ReducedGradients,
                      public std::enable_shared_from_this<DdpEngine> {
 public:
  // Collective: compares models and opens the exchange. Nothing of the module
  // changes before start().
  DdpEngine(
      std::string module,
      ReplicatedModel model,
      const Mesh& mesh,
      const ReplicateOptions& options);
  ~DdpEngine() override;
  DdpEngine(const DdpEngine&) = delete;
  DdpEngine& operator=(const DdpEngine&) = delete;

  // Collective: first values, hooks.
  void start();

  NamedParameters named_parameters();
  std::shared_ptr<void> register_backward_update(BackwardUpdate update);
  void begin_no_sync();
  void end_no_sync();
  void begin_join(const JoinOptions& options);
  void finish_join();
  void abandon_join();
  void set_mesh(const Mesh& mesh);
  void average_parameters();
  ReplicateReport report() const;
  void close();

  // autograd::ParameterUseListener
  void begin_use(std::span<const autograd::ParameterUse> uses, const char* operator_name)
      override;
  void end_use(std::span<const autograd::ParameterUse>) noexcept override {}
  // autograd::BackwardListener
  void backward_ended(std::exception_ptr failure) override;
  // exchange::ReducedGradients
  std::vector<bool> accumulation(plan::UnitId unit) override;
  void set_gradients(plan::UnitId unit, const std::vector<bool>& used) override;
  void clear_gradients() override;

 private:
  // Of one trainable parameter.
  struct State {
    bool unsynced = false;  // `.grad()` holds what only this rank has seen.
    at::Tensor kept;  // What `.grad()` was where this backward brought none.
  };

  bool alone() const { return exchange_ == nullptr; }
  // Replicas, and which of them this is.
  int size() const { return static_cast<int>(ranks_.size()); }
  int index() const;
  const at::Tensor& tensor(std::size_t p) const {
    return model_.trainable[p].tensor;
  }
  // To the ranks of the mesh.
  void connect(const Mesh& mesh);
  void open(const std::vector<int>& order);
  std::unique_ptr<exchange::Exchange> make_exchange();
  // On the exchange's thread.
  void run_hook(
      plan::UnitId unit, const at::Tensor& gradients, world::Transport& transport);
  void check_not_thawed() const;
  void gradient_arrived(std::size_t p, at::Tensor gradient);
  // Whether this backward is one of all ranks. Asks them, in a join scope.
  bool begin_synchronised(bool has_inputs);
  // In a join scope: whether ranks with inputs go on.
  bool ask_for_inputs(bool has_inputs);
  void sparse_arrived(std::size_t s, at::Tensor gradient);
  [[nodiscard]] Status reduce_sparse();
  // Why this is not the graph of the first backward; empty: it is, or may differ.
  std::string changed_graph() const;
  bool ends_early() const;
  void end_join_scope();
  int divisor() const;  // Of sums, in this backward.
  [[noreturn]] void refuse_early_termination() const;
  void add_accumulated();
  // Ends it here and everywhere; the failure of any rank as a status.
  Status end_synchronised(const std::string& aborted);
  std::vector<at::Tensor> state() const;
  void synchronise_buffers();
  void run_buffer_hook();
  // Agrees on buckets for good, from the order in which gradients were ready.
  void learn_order(const std::vector<int>& ready);
  // The parameter's place in its bucket.
  at::Tensor reduced(std::size_t p) const;
  at::Tensor place_in(const at::Tensor& gradients, std::size_t p) const;
  void show(std::size_t p);
  // What optimizers do in backward, once nothing of it can fail any more.
  void update_in_backward();
  // Closes the exchange, remembers the first failure, and throws it.
  void fail(const Status& status);

  mutable std::mutex mu_;
  const std::string module_;  // Its type.
  World world_;
  std::vector<int> ranks_;  // Of the world: the replicas.
  const ReplicateOptions options_;
  std::string name_;  // Of its connections.
  ReplicatedModel model_;
  KeyedParameters keyed_;  // The trainable ones, then the sparse ones.
  BackwardUpdateTable updates_;
  std::shared_ptr<world::Transport> transport_;
  std::shared_ptr<world::Transport> buffer_transport_;  // Of options_.buffer_hook.
  bool compares_calls_ = false;                  // Of hooks.
  Buckets buckets_;
  std::unique_ptr<exchange::Exchange> exchange_;  // Null: a world of one.
  std::vector<at::Tensor> gradients_;             // By bucket: averages.
  std::unique_ptr<exchange::Reducer> reducer_;
  std::vector<State> states_;       // By trainable parameter.
  std::vector<int> arrivals_;       // In this backward, by trainable parameter.
  std::vector<int> graph_;          // Those of the first; empty: may differ.
  std::vector<at::Tensor> sparse_;  // In this backward, by sparse parameter.

  Status error_;  // Not ok: an operation failed, and the exchange is closed.
  bool closed_ = false;
  bool armed_ = false;  // By a training forward, for the backward to come.
  bool armed_in_backward_ = false;
  int no_sync_scopes_ = 0;
  int bucket_version_ = 0;
  std::int64_t backwards_ = 0;
  std::int64_t backwards_connected_ = 0;  // Since connect().
  std::int64_t gradient_bytes_ = 0;
  std::atomic<std::int64_t> hook_bytes_ = 0;  // Written beside backward.
  std::int64_t reduces_before_ = 0;           // Of exchanges that are gone.
  struct Join {
    JoinOptions options;
    std::vector<int> active = {};  // Ranks with inputs, in the last backward.
    bool terminated = false;       // This backward is nobody's.
  };
  std::optional<Join> join_;
  std::vector<int> ready_;         // In this backward, in order: parameters.
  std::vector<int> ready_before_;  // In the last one.
  std::vector<int> arrivals_before_;
  bool same_graph_ = true;  // All had as many gradients of each parameter.
  std::vector<bool> used_;  // In the last one, by some rank.
  std::string kind_;        // Of the exchange, for reports.
  const SteadyClock time_;
  StepTimer timer_;
};

}  // namespace sherd::ddp
