// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/fully_shard.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/InferenceMode.h>

#include "autograd/gradient_hook.h"
#include "autograd/managed_storage.h"
#include "base/check.h"
#include "base/log.h"
#include "base/rank_environment.h"
#include "base/status.h"
#include "device/memory_use.h"
#include "exchange/make_exchange.h"
#include "fsdp/fsdp_engine.h"
#include "fsdp/hook_reduction.h"
#include "fsdp/initial_values.h"
#include "fsdp/model_units.h"
#include "fsdp/sharding_engine.h"
#include "fsdp/single_rank_engine.h"
#include "world/device_backend.h"
#include "world/on_all_or_none.h"
#include "world/transport.h"

namespace sherd {
namespace {

void check_options(const FullyShardOptions& options) {
  SHERD_CHECK(
      options.units != nullptr,
      "[fsdp] options.units is empty; expected a policy, e.g. "
      "sherd::units::children_of_lists()");
  SHERD_CHECK(
      !options.budget_bytes || options.strategy != Strategy::kNoShard,
      "[fsdp] no_shard takes no byte budget: nothing is ever gathered");
  SHERD_CHECK(
      !options.memory_bytes ||
          (!options.budget_bytes && options.strategy != Strategy::kShardGradOp),
      "[fsdp] memory_bytes decides how many units stay whole; expected neither "
      "budget_bytes nor Strategy::kShardGradOp beside it");
  SHERD_CHECK(
      options.optimizer_axes == OptimizerAxes::kShard ||
          options.strategy != Strategy::kNoShard,
      "[fsdp] no_shard cuts nothing; expected a strategy that shards with "
      "OptimizerAxes::kBoth");
  SHERD_CHECK(
      options.reductions_under_way_max >= 0,
      "[fsdp] options.reductions_under_way_max is ",
      options.reductions_under_way_max, "; expected 0 (no limit) or more");
  SHERD_CHECK(
      options.prefetch_visits >= 0, "[fsdp] options.prefetch_visits is ",
      options.prefetch_visits, "; expected 0 (on demand) or more");
  SHERD_CHECK(
      !options.device || !options.device->is_meta(),
      "[fsdp] options.device: expected a device with memory, found meta");
  const double factor = options.gradient_divide_factor.value_or(1.0);
  SHERD_CHECK(
      factor > 0.0 && std::isfinite(factor),
      "[fsdp] options.gradient_divide_factor is ", factor,
      "; expected a finite number above 0");
}

void check_not_sharded(const fsdp::ModelUnits& model) {
  for (const auto& parameter : model.parameters) {
    autograd::check_has_values("fsdp", parameter.name, parameter.tensor);
    SHERD_CHECK_AS(
        kFailedPrecondition,
        autograd::tag_of(parameter.tensor) == nullptr &&
            !autograd::has_gradient_hook(parameter.tensor),
        "[fsdp] parameter ", parameter.name,
        " is sharded already; expected a module that no sharding handle "
        "manages");
  }
}

std::optional<fsdp::MemoryPlanner::Limit> memory_limit(
    const FullyShardOptions& options) {
  if (!options.memory_bytes) {
    return std::nullopt;
  }
  return fsdp::MemoryPlanner::Limit{
      .bytes = *options.memory_bytes,
      .regions =
          options.checkpointing ? options.checkpointing->regions() : nullptr};
}

bool over_both_axes(const Mesh& mesh, const FullyShardOptions& options) {
  return options.optimizer_axes == OptimizerAxes::kBoth &&
      mesh.replicate_size() > 1;
}

// What connects ranks later holds the world weakly.
World still_alive(const std::weak_ptr<World::Impl>& impl) {
  const auto alive = impl.lock();
  SHERD_CHECK_AS(
      kFailedPrecondition, alive != nullptr,
      "[fsdp] the world of this model has ended");
  return World(alive);
}

// Connects the ranks that hold a gradient together when it is called. Keeps no world alive.
std::function<std::shared_ptr<world::Transport>()> connector(
    const Mesh& mesh, const FullyShardOptions& options) {
  const bool both = over_both_axes(mesh, options);
  return [impl = std::weak_ptr(mesh.world().impl()),
          ranks = both ? Mesh(mesh.world()).shard_ranks() : mesh.shard_ranks(),
          replica = both ? 0 : mesh.replicate_index()] {
    const World world = still_alive(impl);
    return world::make_c10d_transport(
        world, str("fsdp/", world.next_number(), "/summon/", replica), ranks);
  };
}

// The same for devices, within a replica.
std::function<std::unique_ptr<exchange::DeviceCollectives>()> device_connector(
    const Mesh& mesh, const FullyShardOptions& options, c10::Device device) {
  if (device.is_cpu() || options.cpu_offload || over_both_axes(mesh, options)) {
    return nullptr;
  }
  return [impl = std::weak_ptr(mesh.world().impl()), device,
          ranks = mesh.shard_ranks(), replica = mesh.replicate_index()] {
    const World world = still_alive(impl);
    return exchange::make_device_collectives(
        world, device, str("fsdp/", world.next_number(), "/owners/", replica),
        ranks);
  };
}

// `whole`: every rank is a replica.
fsdp::HookReduction::Shards hooked_shards(
    const Mesh& mesh, const FullyShardOptions& options, bool whole) {
  const int replicas = mesh.replicate_size();
  if (whole) {
    return {.first = 0, .count = mesh.world().size(), .scattered = false};
  }
  if (replicas == 1) {
    return {.first = 0, .count = mesh.shard_size(), .scattered = true};
  }
  if (!over_both_axes(mesh, options)) {
    return {.first = mesh.shard_index(), .count = 1, .scattered = false};
  }
  return {
      .first = mesh.shard_index() * replicas,
      .count = replicas,
      .scattered = true};
}

void check_hook(
    const CommHookPtr& hook, const fsdp::HookReduction::Shards& shards) {
  SHERD_CHECK(
      !hook || !shards.scattered || hook->reduces_to_shards(),
      "[fsdp] options.hook ", hook ? hook->name() : "",
      " reduces whole gradients, but each rank keeps a shard of them only; "
      "expected a hook that reduces to shards, such as compress(), or "
      "several replicas with OptimizerAxes::kShard");
}

exchange::Kind chosen_kind(
    const World& world,
    const std::vector<int>& ranks,
    const FullyShardOptions& options,
    c10::Device device = c10::kCPU) {
  return exchange::choose_kind(
      world, ranks, options.exchange, process_environment(), device);
}

// Whether shards lie elsewhere than the module's parameters.
bool offloads(const FullyShardOptions& options, c10::Device device) {
  return options.cpu_offload && !device.is_cpu();
}

// Whether ranks exchange anything, or a rank alone copies.
bool has_exchange(
    const World& world,
    const FullyShardOptions& options,
    const fsdp::ModelUnits& model) {
  return world.size() > 1 || fsdp::is_mixed(model) ||
      offloads(options, model.device);
}

// What is there for parameters on the CPU only.
void check_on_device(
    const Mesh& mesh,
    const FullyShardOptions& options,
    const fsdp::ModelUnits& model) {
  if (model.device.is_cpu()) {
    return;
  }
  const auto refuse = [&](bool found, const char* option, const char* instead) {
    SHERD_CHECK(
        !found, "[fsdp] parameters are on ", model.device.str(), ", where ",
        option, " is not supported; expected ", instead,
        ", or parameters on the CPU");
  };
  refuse(
      options.memory_bytes && !device::memory_use(model.device),
      "options.memory_bytes, as LibTorch's allocator of it counts nothing,",
      "options.budget_bytes");
  if (!has_exchange(mesh.world(), options, model)) {
    return;
  }
  refuse(options.share_gradients, "options.share_gradients", "false");
  (void)chosen_kind(mesh.world(), mesh.shard_ranks(), options, model.device);
  world::check_device_backend(mesh.world(), model.device);
}

// Where parameters lie makes no difference, so that a program fails on the CPU as on a device.
void check_offload(const FullyShardOptions& options) {
  SHERD_CHECK(
      !options.cpu_offload || options.strategy != Strategy::kNoShard,
      "[fsdp] options.cpu_offload with Strategy::kNoShard, which has whole "
      "parameters on the device all the time; expected kFullShard or "
      "kShardGradOp, on a mesh with as many replicas as ranks where each rank "
      "is to own whole parameters");
  SHERD_CHECK(
      !options.cpu_offload || options.gather_hook == nullptr,
      "[fsdp] options.cpu_offload with options.gather_hook, which codes shards "
      "on the device; expected null");
}

std::string groups_of(int ranks) {
  std::string text;
  for (int group = 2; group <= ranks; ++group) {
    if (ranks % group == 0) {
      text += str(text.empty() ? "" : ", ", group);
    }
  }
  return text.empty() ? "0, which is none" : "one of " + text + ", or 0: none";
}

void check_secondary_ranks(
    const Mesh& mesh, const FullyShardOptions& options, c10::Device device) {
  const int group = options.secondary_ranks;
  if (group == 0) {
    return;
  }
  const int ranks = mesh.shard_size();
  SHERD_CHECK(
      group >= 2 && ranks % group == 0, "[fsdp] options.secondary_ranks is ",
      group, ", which makes no equal groups of the ", ranks,
      ranks == 1 ? " rank" : " ranks", " of the shard axis; expected ",
      groups_of(ranks));
  SHERD_CHECK(
      options.strategy == Strategy::kFullShard,
      "[fsdp] options.secondary_ranks is ", group,
      " with a strategy that drops no unit after forward; expected "
      "Strategy::kFullShard, with any budget_bytes, or secondary_ranks = 0");
  const bool hooks =
      options.gather_hook || (options.hook && mesh.replicate_size() == 1);
  SHERD_CHECK(
      hooks ||
          chosen_kind(mesh.world(), mesh.shard_ranks(), options, device) !=
              ExchangeKind::kHierarchical,
      "[fsdp] options.secondary_ranks is ", group,
      ", but ranks exchange by shared memory inside hosts, where a whole unit "
      "is in memory once for all ranks of a host; expected "
      "Strategy::kShardGradOp, which keeps units there, or "
      "ExchangeKind::kCollective");
}

// Collective. The ranks that a hook connects compare it, too, but others would wait for them; and the
// first messages about initial values differ with sync_module_states.
void check_same_messages(
    const World& world, const FullyShardOptions& options, c10::Device device) {
  const auto all = world.all_gather_texts(str(
      "hook ", options.hook ? options.hook->name() : "none", ", gather_hook ",
      options.gather_hook ? options.gather_hook->name() : "none",
      ", secondary_ranks ", options.secondary_ranks, ", cpu_offload ",
      options.cpu_offload ? "on" : "off", ", sync_module_states ",
      options.sync_module_states ? "on" : "off", ", parameters on ",
      device.is_cpu() ? "the CPU"
                      : c10::DeviceTypeName(device.type(), true) + " devices"));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    SHERD_CHECK_AS(
        kPeerMismatch, all[rank] == all[0],
        "[fsdp] ranks differ in options.hook, gather_hook, secondary_ranks, "
        "cpu_offload or sync_module_states, or in where their parameters lie: "
        "rank 0 has ",
        all[0], ", rank ", rank, " ", all[rank],
        "; expected the same on all ranks");
  }
}

// Also says in the model's flats that gathers are coded. Null: they are not.
std::shared_ptr<const exchange::ShardCoder> coder_of(
    const GatherHookPtr& hook, fsdp::ModelUnits& model) {
  if (!hook) {
    return nullptr;
  }
  std::vector<std::string> names;
  for (auto& unit : model.units) {
    names.push_back(unit.name);
    for (auto& flat : unit.flats) {
      flat.coded = true;
    }
  }
  const auto public_name = [names](const exchange::CodedShard& which) {
    return GatheredShard{
        .unit = names[static_cast<std::size_t>(which.unit)],
        .flat = which.flat,
        .owner = which.owner};
  };
  auto coder = std::make_shared<exchange::ShardCoder>();
  coder->name = hook->name();
  coder->bytes = [hook](std::int64_t numel, at::ScalarType dtype) {
    return hook->sent_bytes(numel, dtype);
  };
  coder->encode = [=](const exchange::CodedShard& which,
                      const at::Tensor& shard, at::ScalarType dtype,
                      const at::Tensor& coded) {
    hook->pre_gather(public_name(which), shard, dtype, coded);
  };
  coder->decode = [=](const exchange::CodedShard& which,
                      const at::Tensor& coded, const at::Tensor& part) {
    hook->post_gather(public_name(which), coded, part);
  };
  return coder;
}

fsdp::FsdpEngine::Options runtime_options(
    const Mesh& mesh,
    const FullyShardOptions& options,
    bool whole,
    c10::Device device,
    const std::shared_ptr<fsdp::HookReduction>& hook) {
  fsdp::FsdpEngine::Options runtime;
  runtime.prefetch_visits = options.prefetch_visits;
  runtime.reductions_under_way_max = options.reductions_under_way_max;
  runtime.share_gradients = options.share_gradients;
  runtime.shards_on_host = offloads(options, device);
  runtime.memory = memory_limit(options);
  runtime.divide_factor = options.gradient_divide_factor;
  runtime.connect = connector(mesh, options);
  runtime.connect_devices = device_connector(mesh, options, device);
  runtime.hook = hook;
  if (whole) {
    runtime.rank = mesh.world().rank();
    runtime.ranks = mesh.world().size();
    runtime.strategy = Strategy::kNoShard;
    return runtime;
  }
  runtime.rank = mesh.shard_index();
  runtime.ranks = mesh.shard_size();
  runtime.replica = mesh.replicate_index();
  runtime.replicas = mesh.replicate_size();
  runtime.both_axes = over_both_axes(mesh, options);
  runtime.strategy = options.strategy;
  runtime.budget_bytes = options.budget_bytes;
  return runtime;
}

void cast_buffers(const fsdp::ModelUnits& model) {
  const c10::InferenceMode off(false);
  for (const auto& buffer : model.cast_buffers) {
    buffer.tensor.set_data(buffer.tensor.to(buffer.dtype));
  }
}

// Called after ranks have agreed on options, so that it fails on all or none.
void check_gradients_shared(
    const Mesh& mesh,
    const FullyShardOptions& options,
    const fsdp::FsdpEngine& engine) {
  const auto found = [&]() -> std::string {
    if (over_both_axes(mesh, options)) {
      return "OptimizerAxes::kBoth";
    }
    if (options.hook && mesh.replicate_size() == 1) {
      return "options.hook";
    }
    if (options.gather_hook) {
      return "options.gather_hook";
    }
    const auto kind = chosen_kind(mesh.world(), mesh.shard_ranks(), options);
    return str("ranks that exchange by ", exchange::text_of(kind));
  };
  SHERD_CHECK(
      !options.share_gradients || engine.shares_gradients(),
      "[fsdp] options.share_gradients needs memory that all ranks of the "
      "shard "
      "axis share; expected ExchangeKind::kSharedMemory on one host, and "
      "OptimizerAxes::kShard, found ",
      found());
}

// It runs inside the exchange, which the engine owns beside the hook.
std::optional<exchange::ReduceHook> reduce_hook(
    const std::shared_ptr<fsdp::HookReduction>& hook) {
  if (!hook) {
    return std::nullopt;
  }
  return exchange::ReduceHook{
      .name = hook->name(),
      .reduce = [hook](
                    plan::UnitId unit, const std::vector<at::Tensor>& flats,
                    const exchange::HookTransport& transport) {
        hook->reduce(unit, flats, transport);
      }};
}

std::unique_ptr<exchange::Exchange> exchange_for(
    const Mesh& mesh,
    const FullyShardOptions& options,
    bool whole,
    c10::Device device,
    const std::optional<exchange::ReduceHook>& hook,
    std::shared_ptr<const exchange::ShardCoder> coder) {
  const auto kind_for = [&](const std::vector<int>& ranks) {
    return chosen_kind(mesh.world(), ranks, options, device);
  };
  // Ranks shard the models of a world in the same order.
  const auto name = str("fsdp/", mesh.world().next_number());
  if (whole) {
    const auto all = Mesh(mesh.world()).shard_ranks();
    return exchange::make_exchange(
        mesh.world(), name, all,
        hook ? ExchangeKind::kCollective : kind_for(all), device, hook,
        options.memory_from_backend);
  }
  return exchange::make_exchange(
      mesh, name,
      {.within = kind_for(mesh.shard_ranks()),
       .across = exchange::choose_kind_across(
           mesh.world(), mesh.replicate_ranks(), options.exchange,
           process_environment()),
       .both_axes = over_both_axes(mesh, options),
       .hook = hook,
       .gathers =
           {.coder = std::move(coder),
            .secondary_ranks = options.secondary_ranks},
       .device = device,
       .memory_from_backend = options.memory_from_backend});
}

}  // namespace

SummonScope::SummonScope(std::shared_ptr<ShardingEngine> engine)
    : engine_(std::move(engine)) {}
SummonScope::SummonScope(SummonScope&&) noexcept = default;
SummonScope::~SummonScope() {
  const auto status = status_of([this] { close(); }, ErrorCode::kAborted);
  if (!status.ok()) {  // The engine keeps it.
    log_error(status.message());
  }
}

at::Tensor SummonScope::tensor(const std::string& name) const {
  ShardingEngine::check_summon_scope(engine_ != nullptr);
  return engine_->summoned(name);
}

at::Tensor SummonScope::gradient(const std::string& name) const {
  ShardingEngine::check_summon_scope(engine_ != nullptr);
  return engine_->summoned_gradient(name);
}

void SummonScope::close() {
  if (auto engine = std::exchange(engine_, nullptr)) {
    engine->end_summon();
  }
}

UnshardHandle::UnshardHandle(
    std::shared_ptr<ShardingEngine> engine, std::vector<int> units)
    : engine_(std::move(engine)), units_(std::move(units)) {}

bool UnshardHandle::wait() { return engine_->finish_unshard(units_); }

FullPrecisionScope::FullPrecisionScope(std::shared_ptr<ShardingEngine> engine)
    : engine_(std::move(engine)) {}
FullPrecisionScope::FullPrecisionScope(FullPrecisionScope&&) noexcept = default;
FullPrecisionScope::~FullPrecisionScope() {
  if (engine_) {
    engine_->end_full_precision();
  }
}

NoSyncScope::NoSyncScope(
    std::shared_ptr<ShardingEngine> engine, NoSyncAxis axis)
    : engine_(std::move(engine)), axis_(axis) {}
NoSyncScope::NoSyncScope(NoSyncScope&&) noexcept = default;
NoSyncScope::~NoSyncScope() {
  if (engine_) {
    engine_->end_no_sync(axis_);
  }
}

FullyShardedDataParallel::FullyShardedDataParallel(
    std::shared_ptr<ShardingEngine> engine)
    : engine_(std::move(engine)) {}

FullyShardedDataParallel::FullyShardedDataParallel(
    FullyShardedDataParallel&&) noexcept = default;

FullyShardedDataParallel& FullyShardedDataParallel::operator=(
    FullyShardedDataParallel&& other) noexcept {
  if (this != &other) {
    close();
    engine_ = std::move(other.engine_);
  }
  return *this;
}

FullyShardedDataParallel::~FullyShardedDataParallel() { close(); }

std::vector<at::Tensor> FullyShardedDataParallel::parameters() const {
  std::vector<at::Tensor> slices;
  for (auto& item : engine_->named_parameters().items) {
    slices.push_back(std::move(item.slice));
  }
  return slices;
}

NamedParameters FullyShardedDataParallel::named_parameters() const {
  return engine_->named_parameters();
}

double FullyShardedDataParallel::clip_grad_norm(
    double max_norm, const ClipOptions& options) {
  return engine_->clip_grad_norm(max_norm, options);
}

void FullyShardedDataParallel::publish() { engine_->publish(); }

SummonScope FullyShardedDataParallel::summon_full_parameters(
    const SummonOptions& options) {
  engine_->begin_summon(options);
  return SummonScope(engine_.pointer());
}

FullPrecisionScope FullyShardedDataParallel::full_precision() {
  engine_->begin_full_precision();
  return FullPrecisionScope(engine_.pointer());
}

NoSyncScope FullyShardedDataParallel::no_sync(const NoSyncOptions& options) {
  engine_->begin_no_sync(options.axis);
  return NoSyncScope(engine_.pointer(), options.axis);
}

JoinScope FullyShardedDataParallel::join(const JoinOptions& options) {
  return {engine_.pointer(), options};
}

void FullyShardedDataParallel::synchronize() { engine_->synchronize(); }

void FullyShardedDataParallel::unshard() { engine_->unshard(); }
void FullyShardedDataParallel::reshard() { engine_->reshard(); }

UnshardHandle FullyShardedDataParallel::unshard(const std::string& module) {
  return {engine_.pointer(), engine_->begin_unshard(module)};
}
void FullyShardedDataParallel::reshard(const std::string& module) {
  engine_->reshard(module);
}

void FullyShardedDataParallel::set_strategy(Strategy strategy) {
  engine_->set_budget(strategy, std::nullopt);
}
void FullyShardedDataParallel::set_budget_bytes(std::int64_t bytes) {
  engine_->set_budget(Strategy::kFullShard, bytes);
}

ShardReport FullyShardedDataParallel::report() const {
  return engine_->report();
}
std::vector<UnitReport> FullyShardedDataParallel::units() const {
  return engine_->units();
}

void FullyShardedDataParallel::close() {
  if (engine_) {
    engine_->close();
  }
}

FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const Mesh& mesh,
    const FullyShardOptions& options) {
  const auto& world = mesh.world();
  // Shards made in inference mode could never be trained.
  const c10::InferenceMode off(false);
  // What the module shows may be the cast of what the optimizer holds; with one
  // rank on the shard axis there is nothing to gather all the same, and dropping
  // the cast would save half of it at most.
  const bool both = over_both_axes(mesh, options);
  bool whole = options.strategy == Strategy::kNoShard ||
      (mesh.shard_size() == 1 && !both);
  const int ranks = whole || both ? world.size() : mesh.shard_size();
  const auto shards = [&] { return hooked_shards(mesh, options, whole); };
  fsdp::ModelUnits model;
  world::on_all_or_none(world, "[fsdp]", "shard its module", [&] {
    check_options(options);
    check_offload(options);
    check_hook(options.hook, shards());
    model = fsdp::build_units(module, ranks, options);
    if (whole && offloads(options, model.device)) {
      // Shards are elsewhere than units: each rank gathers from itself.
      whole = false;
      model = fsdp::build_units(module, mesh.shard_size(), options);
    }
    check_not_sharded(model);
    check_no_shared_elements(module, model);
    check_on_device(mesh, options, model);
    check_secondary_ranks(mesh, options, model.device);
  });
  check_same_messages(world, options, model.device);
  fsdp::InitialValues values(module, model, world, options);
  if (!has_exchange(world, options, model)) {
    values.check();
    for (std::size_t p = 0; p < model.parameters.size(); ++p) {
      values.initialise_item(p);
    }
    values.finish();
    cast_buffers(model);
    auto engine = std::make_shared<fsdp::SingleRankEngine>(
        std::move(model), memory_limit(options),
        options.gradient_divide_factor.value_or(1.0));
    engine->start();
    engine->cast_forwards(/*full_precision=*/false);
    return FullyShardedDataParallel(std::move(engine));
  }
  const auto hook = options.hook && world.size() > 1
      ? std::make_shared<fsdp::HookReduction>(model, shards(), options.hook)
      : nullptr;
  const bool gathers = !whole && mesh.shard_size() > 1;
  auto coder = coder_of(gathers ? options.gather_hook : nullptr, model);
  const auto device = model.device;
  auto engine = std::make_shared<fsdp::FsdpEngine>(
      std::move(model),
      exchange_for(
          mesh, options, whole, device, reduce_hook(hook), std::move(coder)),
      runtime_options(mesh, options, whole, device, hook));
  if (!whole) {
    check_gradients_shared(mesh, options, *engine);
  }
  values.check();
  engine->start(
      [&](std::size_t parameter) { values.initialise_item(parameter); });
  values.finish();
  cast_buffers(engine->model());
  engine->cast_forwards(/*full_precision=*/false);
  return FullyShardedDataParallel(std::move(engine));
}

FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const World& world,
    const FullyShardOptions& options) {
  return fully_shard(module, Mesh(world), options);
}

std::string suggest(const ShardReport& report) {
  const auto& memory = report.memory;
  if (memory.choices.empty()) {
    return "nothing is measured yet: with memory_bytes, the first five steps "
           "tell what limits cost\n";
  }
  constexpr double kMiB = 1 << 20;
  std::string text =
      "  limit MiB   peak MiB  units MiB  recomputed  s/step   bound\n";
  for (const auto& choice : memory.choices) {
    char line[160];
    std::snprintf(
        line, sizeof(line), "%11.0f%11.0f%11.1f%8d of %-3d%7.3f%8.3f\n",
        static_cast<double>(choice.limit_bytes) / kMiB,
        static_cast<double>(choice.peak_bytes) / kMiB,
        static_cast<double>(choice.budget_bytes) / kMiB, choice.recomputed,
        memory.regions, choice.step_s, choice.lower_bound_s);
    text += line;
  }
  return text;
}

}  // namespace sherd
