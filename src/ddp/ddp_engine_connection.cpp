// SPDX-License-Identifier: Apache-2.0
// DdpEngine's part for its connections to other ranks, and for what hooks and buffers send there.
#include <iomanip>
#include <numeric>
#include <utility>

#include "autograd/param_key.h"
#include "base/check.h"
#include "base/rank_environment.h"
#include "base/status.h"
#include "ddp/broadcast_state.h"
#include "ddp/comm_hook_group.h"
#include "ddp/ddp_engine.h"
#include "exchange/make_exchange.h"
#include "world/device_backend.h"
#include "world/on_all_or_none.h"

namespace sherd::ddp {
namespace {

constexpr const char* kDevices = "devices";  // A kind of exchange.

// The reverse order, because gradients come from the last layer to the first.
std::vector<int> reversed(std::size_t parameters) {
  std::vector<int> order(parameters);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

}  // namespace

void DdpEngine::connect(const Mesh& mesh) {
  mesh_ = mesh;
  ranks_ = mesh.replicate_ranks();
  // Groups without common ranks have different names, too.
  name_ = str("ddp/", world().next_number(), "/", ranks_.front());
  compares_calls_ = asks_to_compare_calls(process_environment());
  bucket_version_ = 0;
  learns_order_ = options_.learn_bucket_order;
  backwards_connected_ = 0;
  const auto order = reversed(model_.trainable.size());
  if (size() == 1) {
    buckets_ = make_buckets(model_.trainable, order, options_, 1);
    return;
  }
  transport_ = world::make_c10d_transport(world(), name_, ranks_);
  if (options_.buffer_hook) {
    buffer_transport_ =
        world::make_c10d_transport(world(), name_ + "/buffers", ranks_);
    buffer_collectives_ = model_.device.is_cpu()
        ? nullptr
        : exchange::make_device_collectives(
              world(), model_.device, name_ + "/buffers", ranks_);
  }
  open(order);
}

void DdpEngine::check_on_device(
    const ReplicatedModel& model, const Mesh& mesh) {
  if (!model.device.is_cpu() && mesh.replicate_size() > 1) {
    world::check_device_backend(mesh.world(), model.device);
  }
}

void DdpEngine::open(const std::vector<int>& order) {
  buckets_ = make_buckets(model_.trainable, order, options_, size());
  exchange_ = make_exchange();
  log_ = exchange_->log();
  exchange::ModelSpec spec;
  spec.units = buckets_.units;
  spec.placement = exchange::ModelPlacement::kReplicate;
  spec.own_shards = false;
  spec.overwrites_gradients = true;
  spec.agreed = describe(model_);
  if (options_.param_dtype) {
    spec.agreed.push_back(
        str("parameters used as ", c10::toString(*options_.param_dtype)));
  }
  if (options_.buffer_hook) {
    spec.agreed.push_back(
        str("buffer hook", compares_calls_ ? ", calls compared" : ""));
  }
  if (options_.gradient_divide_factor) {
    spec.agreed.push_back(
        str("gradients divided by ", std::setprecision(17), divide_factor()));
  }
  exchange_->open(spec).throw_if_failed();
  gradients_.clear();
  gradient_addresses_.clear();
  for (std::size_t u = 0; u < buckets_.units.size(); ++u) {
    gradients_.push_back(
        exchange_->shard_memory(static_cast<plan::UnitId>(u), 0).gradient);
    gradient_addresses_.push_back(gradients_.back().const_data_ptr());
  }
  reducer_ = std::make_unique<exchange::Reducer>(
      buckets_.units, buckets_.parameters, *exchange_, *this,
      1.0 / divide_factor(), options_.reductions_under_way_max);
  reducer_->leave_out_unused();
}

std::unique_ptr<exchange::Exchange> DdpEngine::make_exchange() {
  auto kind = ExchangeKind::kCollective;
  std::optional<exchange::ReduceHook> hook;
  if (options_.hook) {
    hook = {
        .name = name_of_hook(*options_.hook, compares_calls_),
        .reduce =
            [this](
                plan::UnitId unit, const std::vector<at::Tensor>& flats,
                const exchange::HookTransport& transport) {
              run_hook(unit, flats.at(0), transport);
            },
        .stream = hook_stream_};
  } else {
    kind = exchange::choose_kind(
        world(), ranks_, options_.exchange, process_environment(),
        model_.device);
  }
  kind_ = model_.device.is_cpu() ? exchange::text_of(kind) : kDevices;
  return exchange::make_exchange(
      world(), str(name_, "/", bucket_version_), ranks_, kind, model_.device,
      hook);
}

void DdpEngine::run_hook(
    plan::UnitId unit,
    const at::Tensor& gradients,
    const exchange::HookTransport& transport) {
  const auto u = static_cast<std::size_t>(unit);
  GradientBucket bucket;
  bucket.index = unit;
  bucket.last = u + 1 == buckets_.units.size();
  bucket.step = backwards_connected_;
  bucket.gradients = gradients;
  for (const int p : buckets_.members[u]) {
    const auto index = static_cast<std::size_t>(p);
    bucket.parameters.push_back(
        {model_.trainable[index].name, place_in(gradients, index)});
  }
  // The model's lock may be held meanwhile; a parameter that announces itself would wait for it.
  const auto no_announcements = autograd::exclude_param_key();
  CommHookGroup group(
      transport, "gradients of " + buckets_.units[u].name, compares_calls_);
  reduce_in_place(*options_.hook, bucket, group);
  hook_bytes_ += group.bytes();
}

void DdpEngine::check_connection(const char* call, const Mesh& mesh) const {
  world::on_all_or_none(mesh.world(), "[ddp]", "connect", [&] {
    SHERD_CHECK_AS(
        kFailedPrecondition,
        !closed_ && !join_ &&
            (reducer_ == nullptr || !reducer_->started() || !error_.ok()),
        "[ddp] ", call,
        " of a closed handle, in a join scope or in a backward; "
        "expected it between two steps");
    check_on_device(model_, mesh);
  });
}

void DdpEngine::set_mesh(const Mesh& mesh) {
  const std::lock_guard lock(mu_);
  check_connection("set_world()", mesh);
  if (options_.hook) {
    options_.hook->reset();
  }
  rank_with_all_steps_.reset();  // New ranks know of no join scope.
  connect_again(mesh);
}

void DdpEngine::set_hook(const CommHookPtr& hook) {
  const std::lock_guard lock(mu_);
  check_connection("set_hook()", mesh_);
  options_.hook = hook;
  connect_again(Mesh(mesh_));
}

void DdpEngine::disconnect() {
  accumulation_hooks_.assign(accumulation_hooks_.size(), nullptr);
  release_parameters();
  for (const auto& parameter : model_.trainable) {
    // A gradient may view memory that is freed below.
    if (parameter.tensor.grad().defined()) {
      parameter.tensor.mutable_grad() = parameter.tensor.grad().clone();
    }
  }
  reducer_.reset();
  if (exchange_) {
    reduces_before_ += exchange_->counters().reduces;
    exchange_->close(Status());
  }
  exchange_.reset();
  transport_.reset();
  buffer_transport_.reset();
  buffer_collectives_.reset();
  gradients_.clear();
  error_ = {};
  forget_forward();
  ready_.clear();
  arrivals_.assign(arrivals_.size(), 0);
  sparse_.assign(sparse_.size(), {});
  for (auto& state : states_) {
    state.kept.reset();
  }
}

void DdpEngine::connect_again(const Mesh& mesh) {
  disconnect();
  error_ = status_of(
      [&] {
        connect(mesh);
        start();
      },
      ErrorCode::kFailedPrecondition);
  if (!error_.ok()) {
    // Backwards must fail, rather than train without the other ranks.
    release_parameters();
    take_parameters();
    error_.throw_if_failed();
  }
}

// ---- buffers ----

void DdpEngine::synchronise_buffers() {
  if (!options_.broadcast_buffers || model_.buffers.empty()) {
    return;
  }
  if (options_.buffer_hook) {
    run_buffer_hook();
    return;
  }
  std::vector<at::Tensor> buffers;
  for (const auto& buffer : model_.buffers) {
    buffers.push_back(buffer.tensor);
  }
  require(broadcast(
      buffers, *transport_, join_ ? join_->round.active.back() : 0,
      "buffers after a backward"));
}

void DdpEngine::run_buffer_hook() {
  NamedTensors buffers;
  for (const auto& buffer : model_.buffers) {
    buffers.emplace_back(buffer.name, buffer.tensor);
  }
  const auto no_announcements = autograd::exclude_param_key();
  CommHookGroup group(
      {.messages = *buffer_transport_,
       .collectives = buffer_collectives_.get()},
      "buffers", compares_calls_);
  require(status_of(
      [&] { options_.buffer_hook(buffers, group); },
      ErrorCode::kFailedPrecondition, "[ddp] options.buffer_hook failed: "));
}

}  // namespace sherd::ddp
