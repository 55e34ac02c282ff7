// SPDX-License-Identifier: Apache-2.0
#include "ddp/ddp_engine.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "autograd/gradient_hook.h"
#include "autograd/param_key.h"
#include "base/check.h"
#include "base/copy_bytes.h"
#include "base/status.h"
#include "ddp/broadcast_state.h"
#include "ddp/sparse_gradients.h"
#include "plan/buckets.h"
#include "world/collectives.h"

namespace sherd::ddp {
namespace {

std::vector<ModuleTensor> all_trainable(const ReplicatedModel& model) {
  auto all = model.trainable;
  all.insert(all.end(), model.sparse.begin(), model.sparse.end());
  return all;
}

std::vector<ModuleTensor> floating(std::vector<ModuleTensor> tensors) {
  std::erase_if(tensors, [](const ModuleTensor& item) {
    return !at::isFloatingType(item.tensor.scalar_type());
  });
  return tensors;
}

// Returns the gradient in the memory layout of the parameter, which the view of its average has.
at::Tensor in_memory_order(
    const at::Tensor& gradient, const at::Tensor& parameter) {
  if (!gradient.defined() || gradient.is_sparse() ||
      parameter.is_contiguous()) {
    return gradient;
  }
  auto dense = gradient;
  if (gradient.strides() != parameter.strides()) {
    dense = at::empty_strided(
        parameter.sizes(), parameter.strides(), gradient.options());
    dense.copy_(gradient);
  }
  return dense.as_strided({dense.numel()}, {1});
}

// Whether a forward computes with them. Copies do not count: otherwise a deepcopy of the module, or
// `parameter.clone()` beside a step, would make only this rank take part in the next backward. If a
// forward does clone a parameter, its gradient will show it.
bool trains(
    std::span<const autograd::ParameterUse> uses,
    std::string_view operator_name) {
  return operator_name != "aten::clone" &&
      std::ranges::any_of(uses, [](const autograd::ParameterUse& use) {
           return use.tensor->requires_grad();
         });
}

// The bytes of a bucket's gradients as they are sent.
std::int64_t sent_bytes(const exchange::UnitSpec& bucket) {
  return exchange::flat_offsets(bucket, &exchange::FlatSpec::slot_dtype).back();
}

std::string text_of(const std::vector<int>& numbers) {
  return {
      reinterpret_cast<const char*>(numbers.data()),
      numbers.size() * sizeof(int)};
}

std::vector<int> numbers_of(const std::string& text) {
  std::vector<int> numbers(text.size() / sizeof(int));
  copy_bytes(numbers.data(), text.data(), numbers.size() * sizeof(int));
  return numbers;
}

}  // namespace

DdpEngine::DdpEngine(
    std::string module,
    ReplicatedModel model,
    const Mesh& mesh,
    const ReplicateOptions& options)
    : ModelEngine("[ddp] this model's handle was closed"),
      module_(std::move(module)),
      mesh_(mesh),
      options_(options),
      model_(std::move(model)),
      keyed_(all_trainable(model_), {.parameters = options.param_dtype}),
      frozen_(floating(model_.frozen), {.parameters = options.param_dtype}),
      updates_(model_.trainable),
      hook_stream_(device::Stream::with_high_priority(model_.device)),
      states_(model_.trainable.size()),
      arrivals_(model_.trainable.size(), 0),
      used_(model_.trainable.size(), true) {
  sparse_.resize(model_.sparse.size());
  summed_.resize(keyed_.parameters().size(), false);
  accumulation_hooks_.resize(keyed_.parameters().size());
  connect(mesh);
}

DdpEngine::~DdpEngine() { close(); }

void DdpEngine::start() {
  if (!alone() && options_.init_sync) {
    broadcast(
        state(/*with_buffers=*/true), *transport_, 0,
        "the first values of a replica")
        .throw_if_failed();
  }
  take_parameters();
  watch_accumulation();
}

void DdpEngine::take_parameters() {
  if (!alone() || options_.param_dtype) {
    autograd::install_param_key();
  }
  if (options_.param_dtype) {
    frozen_.take(*this, nullptr);
  }
  if (alone()) {
    if (options_.param_dtype) {
      keyed_.take(*this, nullptr);
    }
    return;
  }
  autograd::install_backward_engine();
  keyed_.take(*this, [this](std::size_t p) -> autograd::GradientCallback {
    return while_alive(this, [p](DdpEngine& self, at::Tensor gradient) {
      const auto dense = self.model_.trainable.size();
      p < dense ? self.gradient_arrived(p, std::move(gradient))
                : self.sparse_arrived(p - dense, std::move(gradient));
    });
  });
}

void DdpEngine::release_parameters() {
  keyed_.release();
  frozen_.release();
}

std::vector<at::Tensor> DdpEngine::state(bool with_buffers) const {
  std::vector<at::Tensor> state;
  for (const auto* items :
       {&model_.trainable, &model_.sparse, &model_.frozen, &model_.buffers}) {
    for (const auto& item : *items) {
      if (with_buffers || items != &model_.buffers) {
        state.push_back(item.tensor);
      }
    }
  }
  return state;
}

void DdpEngine::check_not_thawed() const {
  for (const auto& parameter : model_.frozen) {
    SHERD_CHECK_AS(
        kFailedPrecondition, !parameter.tensor.requires_grad(),
        "[ddp] parameter ", parameter.name,
        " was frozen at replicate() and requires grad now, so that ranks would "
        "train it apart; expected requires_grad(false), or true before "
        "replicate(): what is trainable then may be frozen and thawed later");
  }
}

void DdpEngine::abandon_exchange(const Status& failure) {
  if (exchange_) {
    exchange_->close(failure);
  }
  transport_->abandon(failure);
  if (buffer_transport_) {
    buffer_transport_->abandon(failure);
  }
  if (buffer_collectives_) {
    buffer_collectives_->abort();
  }
}

// ---- forward and backward ----

void DdpEngine::begin_use(
    std::span<const autograd::ParameterUse> uses, const char* operator_name) {
  const std::lock_guard lock(mu_);
  if (alone() || closed_) {
    return;
  }
  SHERD_CHECK_AS(
      kFailedPrecondition,
      !uses[0].written || !uses[0].tensor->requires_grad() ||
          std::string_view(operator_name) != "aten::embedding_renorm_",
      "[ddp] ", operator_name, " would write parameter ",
      keyed_.name_in(uses[0].tag->unit),
      " in forward, on each rank the rows that it looks up, so that replicas "
      "would drift apart; leave max_norm out of the Embedding, and renormalise "
      "all rows under no_grad after the optimizer step");
  if (autograd::in_backward() || trains(uses, operator_name)) {
    note_use();
  }
}

void DdpEngine::begin_training_forward() {
  keyed_.check();
  check_not_thawed();
  watch_accumulation();  // For parameters that were frozen before.
  (void)keyed_.set_gradient_hooks();
  timer_.forward_began(time_.now());
  log_.record({.event = FlightEvent::kVisited, .step = FlightStep::kForward});
}

// share_memory() of Python gives the storage of `.grad()`, which is that of the bucket, other memory in
// place, but the exchange knows the bucket by its address. Not in a forward: parameters that were moved,
// too, do not announce their use there.
void DdpEngine::check_not_moved() const {
  for (std::size_t b = 0; b < gradients_.size(); ++b) {
    SHERD_CHECK_AS(
        kFailedPrecondition,
        gradient_addresses_[b] == nullptr ||
            gradients_[b].const_data_ptr() == gradient_addresses_[b],
        "[ddp] the gradient of parameter ",
        model_.trainable[static_cast<std::size_t>(buckets_.members[b][0])].name,
        " was given other memory (share_memory() or the like); set .grad() to "
        "nothing before, or replicate with gradient_as_bucket_view = false");
  }
}

void DdpEngine::gradient_arrived(std::size_t p, at::Tensor gradient) {
  const std::lock_guard lock(mu_);
  note_backward();
  if (no_sync_scopes_ > 0) {
    states_[p].unsynced = states_[p].unsynced || gradient.defined();
    autograd::return_gradient(tensor(p), std::move(gradient));
    return;
  }
  error_.throw_if_failed();
  SHERD_CHECK_AS(
      kFailedPrecondition, !gradient.defined() || !gradient.requires_grad(),
      "[ddp] the gradient of parameter ", model_.trainable[p].name,
      " was made with create_graph; its average over ranks has no graph, so "
      "that a second derivative would miss the other ranks; use "
      "autograd::grad, or a backward under no_sync()");
  timer_.gradient_came(time_.now());
  if (!reducer_->started()) {
    log_.record(
        {.event = FlightEvent::kVisited, .step = FlightStep::kBackward});
  }
  if (!reducer_->started() && !begin_synchronised(/*has_inputs=*/true)) {
    refuse_early_termination();
  }
  ready_.push_back(static_cast<int>(p));
  arrivals_[p] += gradient.defined() ? 1 : 0;
  require(reducer_->arrived(
      static_cast<int>(p), in_memory_order(gradient, tensor(p))));
  if (reducer_->reducing()) {
    timer_.bucket_left(time_.now());
  }
  (void)exchange_->progress();
}

void DdpEngine::sparse_arrived(std::size_t s, at::Tensor gradient) {
  const std::lock_guard lock(mu_);
  note_backward();
  if (no_sync_scopes_ > 0 || !gradient.defined()) {
    autograd::return_gradient(model_.sparse[s].tensor, std::move(gradient));
    return;
  }
  error_.throw_if_failed();
  SHERD_CHECK_AS(
      kFailedPrecondition, gradient.is_sparse() && !gradient.requires_grad(),
      "[ddp] the gradient of parameter ", model_.sparse[s].name, " is ",
      gradient.is_sparse() ? "made with create_graph" : "dense",
      "; expected a sparse one of an embedding with sparse(true)");
  const at::NoGradGuard no_grad;
  sparse_[s] = sparse_[s].defined() ? sparse_[s].add(gradient) : gradient;
}

Status DdpEngine::reduce_sparse() {
  for (std::size_t s = 0; s < sparse_.size(); ++s) {
    const auto& parameter = model_.sparse[s];
    auto& grad = parameter.tensor.mutable_grad();
    auto mine = std::exchange(sparse_[s], {});
    const auto p = model_.trainable.size() + s;
    if (!mine.defined()) {
      // What no_sync() has left, or the last average.
      mine = summed_[p] && grad.defined() ? grad.mul(scale_of_summed()) : grad;
    }
    const auto sum = sum_sparse(
        mine, parameter.tensor, 1.0 / divisor(), *transport_, parameter.name);
    SHERD_RETURN_IF_FAILED(sum.status());
    grad = sum.value();
    summed_[p] = grad.defined();
  }
  return {};
}

// If a user has set a hook since the forward, the gradient has not arrived: it still lies in `.grad()`
// with what only this rank has accumulated there.
void DdpEngine::note_replaced_hooks() {
  for (const auto p : keyed_.set_gradient_hooks()) {
    if (p < model_.trainable.size() && tensor(p).grad().defined() &&
        !reducer_->has_arrived(static_cast<int>(p))) {
      states_[p].unsynced = true;
      arrivals_[p] += no_sync_scopes_ > 0 ? 0 : 1;
    }
  }
}

// Adds gradients of earlier backwards for parameters to which this one brought none.
void DdpEngine::add_accumulated() {
  for (std::size_t p = 0; p < model_.trainable.size(); ++p) {
    auto& grad = tensor(p).mutable_grad();
    if (reducer_->has_arrived(static_cast<int>(p)) || !grad.defined()) {
      continue;
    }
    auto waiting = std::move(grad);
    grad.reset();
    // Copied, because the tensor may lie where averages go.
    states_[p].kept = states_[p].unsynced ? at::Tensor() : waiting.clone();
    if (summed_[p]) {
      waiting = waiting.mul(scale_of_summed());
    }
    require(reducer_->arrived(
        static_cast<int>(p), in_memory_order(waiting, tensor(p)),
        states_[p].unsynced));
  }
}

void DdpEngine::end_of_backward(const std::exception_ptr& failure) {
  if (usable() && !alone()) {
    note_replaced_hooks();
  }
  // The forward that armed it may have run before set_world().
  if (!usable() || no_sync_scopes_ > 0 || alone()) {
    timer_.drop_step();
    return;
  }
  const at::NoGradGuard no_grad;
  if (join_ && std::exchange(join_->terminated, false)) {
    return;  // All ranks have left this backward at its beginning.
  }
  if (!reducer_->started() && !begin_synchronised(/*has_inputs=*/true)) {
    join_->terminated = false;
    refuse_early_termination();
  }
  timer_.backward_ended(time_.now());
  add_accumulated();
  const auto changed = failure ? "" : changed_graph();
  const auto status = end_synchronised(failure ? reason_of(failure) : changed);
  if (!failure) {
    SHERD_CHECK_AS(kFailedPrecondition, changed.empty(), changed);
    status.throw_if_failed();
    keyed_.check();
  }
}

std::string DdpEngine::changed_graph() const {
  if (ready_.empty()) {
    return "";  // This backward was that of another model.
  }
  for (std::size_t p = 0; p < graph_.size(); ++p) {
    if (arrivals_[p] != graph_[p]) {
      return str(
          "[ddp] parameter ", model_.trainable[p].name, " has ", arrivals_[p],
          " gradients in this backward and had ", graph_[p],
          " in the first; expected the same with options.static_graph");
    }
  }
  return {};
}

bool DdpEngine::begin_synchronised(bool has_inputs) {
  check_not_moved();
  if (join_ && !ask_for_inputs(has_inputs)) {
    return false;
  }
  std::vector<bool> unexpected;
  for (std::size_t p = 0; p < model_.trainable.size(); ++p) {
    unexpected.push_back(!graph_.empty() && graph_[p] == 0);
    // Its bucket may have been reduced before add_accumulated() reads it.
    auto& grad = tensor(p).mutable_grad();
    if ((unexpected[p] || !tensor(p).requires_grad()) && grad.defined()) {
      grad = grad.clone();
    }
  }
  reducer_->expect(unexpected);
  return true;
}

Status DdpEngine::end_synchronised(const std::string& aborted) {
  std::fill(used_.begin(), used_.end(), false);
  const auto result = reducer_->finish(aborted, false);
  if (result.ok()) {
    show_averages();
  }
  for (auto& state : states_) {
    state.unsynced = false;
    state.kept.reset();
  }
  const auto ready = std::exchange(ready_, {});
  ready_before_ = ready;
  if (!ready.empty()) {
    same_graph_ = same_graph_ &&
        (arrivals_before_.empty() || arrivals_before_ == arrivals_);
    arrivals_before_ = arrivals_;
  }
  if (result.ok() && options_.static_graph && graph_.empty() &&
      !ready.empty()) {
    graph_ = arrivals_;
  }
  std::fill(arrivals_.begin(), arrivals_.end(), 0);
  if (result.ok()) {
    require(reduce_sparse());
    ++backwards_;
    ++backwards_connected_;
    for (std::size_t u = 0; u < buckets_.units.size(); ++u) {
      gradient_bytes_ +=
          reducer_->left_out()[u] ? 0 : sent_bytes(buckets_.units[u]);
    }
    // A backward of another model must not write what its graph still needs.
    if (reducer_->any_used() || !model_.sparse.empty()) {
      synchronise_buffers();
    }
    timer_.step_ended(time_.now());
    if (learns_order_) {
      learn_order(ready);
    }
    update_in_backward();
  } else {
    timer_.drop_step();
    if (result.status().code() != ErrorCode::kAborted) {
      require(result.status());
    }
  }
  return result.status();
}

void DdpEngine::learn_order(const std::vector<int>& ready) {
  std::vector<int> mine;  // Without repetitions: a gradient may come in parts.
  for (const int p : ready) {
    if (std::ranges::find(mine, p) == mine.end()) {
      mine.push_back(p);
    }
  }
  const auto all = world::Collectives(*transport_, "the order of gradients")
                       .all_gather_texts(text_of(mine));
  require(all.status());
  std::vector<std::vector<int>> orders;
  for (const auto& text : all.value()) {
    orders.push_back(numbers_of(text));
    learns_order_ = learns_order_ && text.empty();
  }
  if (learns_order_) {
    return;  // No rank had a gradient.
  }
  const auto order =
      plan::common_order(static_cast<int>(model_.trainable.size()), orders);
  const auto learned = make_buckets(model_.trainable, order, options_, size());
  if (learned.members == buckets_.members) {
    return;
  }
  std::vector<at::Tensor> averages;
  for (std::size_t p = 0; p < model_.trainable.size(); ++p) {
    averages.push_back(used_[p] ? reduced(p) : at::Tensor());
  }
  reduces_before_ += exchange_->counters().reduces;
  reducer_.reset();
  const auto before = std::move(exchange_);
  ++bucket_version_;
  require(status_of([&] { open(order); }, ErrorCode::kFailedPrecondition));
  for (std::size_t p = 0; p < averages.size(); ++p) {
    if (averages[p].defined()) {
      reduced(p).copy_(averages[p]);
      show(p);
    }
  }
  before->close(Status());
}

// ---- averages ----

at::Tensor DdpEngine::reduced(std::size_t p) const {
  return place_in(
      gradients_[static_cast<std::size_t>(buckets_.parameters[p].unit)], p);
}

// Not an autograd view, which LibTorch's zero_grad() could not detach in place.
at::Tensor DdpEngine::place_in(
    const at::Tensor& gradients, std::size_t p) const {
  const auto& place = buckets_.parameters[p];
  const auto& layout =
      buckets_.units[static_cast<std::size_t>(place.unit)].flats[0].layout;
  return at::empty({0}, gradients.options())
      .set_(
          gradients.storage(),
          gradients.storage_offset() +
              layout.offsets[static_cast<std::size_t>(place.position)],
          tensor(p).sizes(), tensor(p).strides());
}

void DdpEngine::show(std::size_t p) {
  const auto average = reduced(p);
  tensor(p).mutable_grad() =
      options_.gradient_as_bucket_view ? average : average.clone();
}

void DdpEngine::update_in_backward() {
  for (std::size_t p = 0; p < used_.size(); ++p) {
    if (used_[p] && updates_.run(p, reduced(p))) {
      tensor(p).mutable_grad().reset();
    }
  }
}

std::vector<bool> DdpEngine::accumulation(plan::UnitId /*unit*/) {
  return {false};  // The earlier values are part of what was reduced.
}

void DdpEngine::set_gradients(
    plan::UnitId unit, const std::vector<bool>& used) {
  const auto& members = buckets_.members[static_cast<std::size_t>(unit)];
  for (std::size_t t = 0; t < members.size(); ++t) {
    const auto p = static_cast<std::size_t>(members[t]);
    used_[p] = used_[p] || used[t];
  }
}

// After the last round: a late one adds to averages, of which `.grad()` may be a copy.
void DdpEngine::show_averages() {
  for (std::size_t p = 0; p < used_.size(); ++p) {
    auto& kept = states_[p].kept;
    if (used_[p]) {
      show(p);
      summed_[p] = true;
    } else if (kept.defined()) {
      tensor(p).mutable_grad() = std::exchange(kept, {});
    }
  }
}

void DdpEngine::clear_gradients() {
  for (const auto& parameter : keyed_.parameters()) {
    parameter.tensor.mutable_grad().reset();
  }
  sparse_.assign(sparse_.size(), {});
}

// ---- the rest ----

void DdpEngine::synchronize() {
  const std::lock_guard lock(mu_);
  if (!alone()) {
    check_open();
    exchange_->synchronize();
  }
}

void DdpEngine::average_parameters() {
  const std::lock_guard lock(mu_);
  if (alone()) {
    return;
  }
  check_open();
  const at::NoGradGuard no_grad;
  for (std::size_t p = 0; p < keyed_.parameters().size(); ++p) {
    const auto values = keyed_.values(p);
    const auto on_host = values.cpu();
    require(world::Collectives(*transport_, "the mean of parameters")
                .all_reduce(on_host, 1.0));
    on_host.div_(size());
    if (!values.is_cpu()) {
      values.copy_(on_host);
    }
    keyed_.bump_version(p);
  }
}

NamedParameters DdpEngine::named_parameters() {
  NamedParameters named;
  named.tied_names = model_.tied_names;
  for (const auto& parameter : model_.frozen) {
    named.state_only.push_back({parameter.name, parameter.tensor});
  }
  for (const auto& parameter : keyed_.parameters()) {
    // Optimizers refuse what has no elements.
    auto& list = parameter.tensor.numel() > 0 ? named.items : named.state_only;
    list.push_back({parameter.name, parameter.tensor});
    named.uses_fp16 =
        named.uses_fp16 || parameter.tensor.scalar_type() == at::kHalf;
  }
  named.uses_fp16 = named.uses_fp16 || options_.param_dtype == at::kHalf ||
      options_.reduce_dtype == at::kHalf;
  named.update_in_backward =
      while_alive(this, &DdpEngine::register_backward_update);
  named.writes_in_backward = while_alive(this, [](DdpEngine& self) {
    const std::lock_guard lock(self.mu_);
    return self.updates_.writes();
  });
  named.rank_to_save = while_alive(this, &DdpEngine::rank_to_save);
  named.all_reduce_max = while_alive(this, &DdpEngine::all_reduce_max);
  // There is nothing to publish, but this tells a profile when the optimizer has ended.
  named.publish = while_alive(this, [](DdpEngine& self) {
    self.log_.record({.event = FlightEvent::kPublished});
  });
  return named;
}

std::optional<int> DdpEngine::rank_to_save() const {
  const std::lock_guard lock(mu_);
  if (rank_with_all_steps_) {
    return rank_with_all_steps_;
  }
  return models_drift_apart() ? std::optional(ranks_.front()) : std::nullopt;
}

// In a join scope only ranks with inputs make steps.
void DdpEngine::all_reduce_max(const at::Tensor& numbers) {
  const std::lock_guard lock(mu_);
  if (models_drift_apart() && !join_) {
    check_open();
    require(exchange_->all_reduce(numbers, exchange::ScalarReduceOp::kMax));
  }
}

bool DdpEngine::models_drift_apart() const {
  return !alone() && options_.hook && !options_.hook->keeps_models_equal();
}

std::shared_ptr<void> DdpEngine::register_backward_update(
    BackwardUpdate update) {
  const std::lock_guard lock(mu_);
  // What no_sync() has left in `.grad()` is this rank's own: the next backward averages it, too.
  const bool unsynced = std::ranges::any_of(
      states_, [](const auto& state) { return state.unsynced; });
  return alone() || closed_ || unsynced ? nullptr
                                        : updates_.take(std::move(update));
}

void DdpEngine::begin_no_sync() {
  const std::lock_guard lock(mu_);
  ++no_sync_scopes_;
}

void DdpEngine::end_no_sync() {
  const std::lock_guard lock(mu_);
  --no_sync_scopes_;
}

void DdpEngine::close() {
  const std::lock_guard lock(mu_);
  accumulation_hooks_.assign(accumulation_hooks_.size(), nullptr);
  if (std::exchange(closed_, true)) {
    return;
  }
  release_parameters();
  if (alone()) {
    return;
  }
  if (exchange_) {
    exchange_->close(Status());  // Changes nothing after a failure.
  }
  if (transport_) {
    transport_->leave();
  }
  if (buffer_transport_) {
    buffer_transport_->leave();
  }
}

}  // namespace sherd::ddp
