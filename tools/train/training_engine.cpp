// SPDX-License-Identifier: Apache-2.0
#include "train/training_engine.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <sherd/base/error.h>
#include <torch/nn/utils/clip_grad.h>
#include "exchange_kind_flag.h"
#include "generate/model_source.h"
#include "train/model.h"

namespace sherd::tools {
namespace {

Strategy strategy_of(const TrainConfig& config) {
  if (config.strategy == "shard_grad_op") {
    return Strategy::kShardGradOp;
  }
  return config.strategy == "no_shard" ? Strategy::kNoShard
                                       : Strategy::kFullShard;
}

FullyShardOptions shard_options(
    models::LanguageModel& model, const TrainConfig& config) {
  FullyShardOptions options;
  if (config.memory.count > 0) {
    options.memory_bytes = config.memory.count;
    options.checkpointing.emplace(model);
    model.run_layers_with(*options.checkpointing);
  }
  options.initialise = [&](const std::string& name, const at::Tensor& value) {
    model.reset_parameter(name, value);
  };
  options.strategy = strategy_of(config);
  options.exchange = tools::parse_exchange_kind(config.exchange);
  options.prefetch_visits = int_of(config.prefetch);
  options.secondary_ranks = int_of(config.secondary_ranks);
  options.share_gradients =
      config.optimizer == "muon" && config.device == "cpu";
  if (config.dtype != "fp32") {
    options.mixed_precision.param_dtype =
        config.dtype == "bf16" ? at::kBFloat16 : at::kHalf;
  }
  if (config.budget.count > 0) {
    options.budget_bytes = config.budget.count;
  }
  return options;
}

AdamWOptions adamw_options(const TrainConfig& config) {
  AdamWOptions options;
  options.learning_rate = config.lr;
  options.beta1 = config.beta1;
  options.beta2 = config.beta2;
  options.weight_decay = config.weight_decay;
  options.groups = {
      {.names = {"*.bias", "*ln_*", "*norm.weight"}, .weight_decay = 0.0}};
  return options;
}

// It uses the learning rate of AdamW.
MuonOptions muon_options(const TrainConfig& config) {
  MuonOptions options;
  options.learning_rate = config.lr;
  options.weight_decay = config.weight_decay;
  options.scale = MuonScale::kMatchRmsAdamW;
  return options;
}

// Inside the blocks of Gpt and Llama: Muon is not for embeddings and the head.
std::vector<std::string> muon_patterns(const TrainConfig& config) {
  return config.optimizer == "muon"
      ? std::vector<std::string>{"h.*.c_*.weight", "*layers.*_proj.weight"}
      : std::vector<std::string>{};
}

CommHookPtr hook_of(const TrainConfig& config) {
  if (config.hook == "mean") {
    return all_reduce_mean();
  }
  if (config.hook == "power_sgd") {
    return power_sgd({.rank = config.hook_rank});
  }
  return config.hook == "none"
      ? nullptr
      : compress(config.hook == "bf16" ? at::kBFloat16 : at::kHalf);
}

// Muon on the CPU shares gradients among the ranks of a shard axis. Ranks of several hosts are
// refused by fully_shard().
void check_muon(const World& world, const TrainConfig& config) {
  if (config.optimizer != "muon" || config.device != "cpu" ||
      whole_on_each_rank(config) || world.size() == config.replicate) {
    return;
  }
  const auto refuse = [](const std::string& option, const std::string& found) {
    throw Error(
        option +
        " for ranks that shard with --optimizer muon, which needs their "
        "gradients in memory that they share, or --strategy ddp; found " +
        found);
  };
  if (config.exchange == "collective" || config.exchange == "hierarchical") {
    refuse("--exchange: expected auto or shm", config.exchange);
  }
  if (config.hook != "none" && config.replicate == 1) {
    refuse("--hook: expected none", config.hook);
  }
}

Mesh all_replicas(const World& world) {
  return Mesh(world, {.replicate = world.size()});
}

}  // namespace

Mesh mesh_of(const World& world, const TrainConfig& config) {
  if (world.size() % config.replicate != 0) {
    throw Error(
        "--replicate: expected a number that divides the " +
        std::to_string(world.size()) + " ranks, found " +
        std::to_string(config.replicate));
  }
  check_muon(world, config);
  return Mesh(world, {.replicate = static_cast<int>(config.replicate)});
}

TrainingEngine::TrainingEngine(
    models::LanguageModel& model, const Mesh& mesh, const TrainConfig& config)
    : hook_(hook_of(config)),
      hook_mesh_(
          whole_on_each_rank(config) ? all_replicas(mesh.world()) : mesh),
      parameters_(
          split(distribute(model, mesh, config), muon_patterns(config))),
      adamw_(parameters_.rest, adamw_options(config)),
      max_norm_(
          config.clip > 0.0 ? config.clip
                            : std::numeric_limits<double>::infinity()) {
  if (config.optimizer == "muon") {
    muon_.emplace(parameters_.matching, muon_options(config));
  }
  if (config.dtype == "fp16") {
    scaler_.emplace(named_parameters());
  }
  if (config.ema > 0.0) {
    average_.emplace(named_parameters(), config.ema);
  }
}

NamedParameters TrainingEngine::distribute(
    models::LanguageModel& model, const Mesh& mesh, const TrainConfig& config) {
  if (config.strategy == "ddp") {
    ddp_.emplace(replicate(
        model, mesh.world(),
        {.exchange = tools::parse_exchange_kind(config.exchange),
         .hook = hook_}));
    return ddp_->named_parameters();
  }
  auto options = shard_options(model, config);
  options.hook = hook_;
  options.device = device_of(config, mesh.world());
  fsdp_.emplace(fully_shard(model, mesh, options));
  return fsdp_->named_parameters();
}

// Every rank of a replicated model has the whole gradient.
double TrainingEngine::clip() {
  if (fsdp_) {
    return fsdp_->clip_grad_norm(max_norm_);
  }
  std::vector<at::Tensor> parameters;
  for (const auto& item : ddp_->named_parameters().items) {
    parameters.push_back(item.slice);
  }
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm_);
}

std::optional<LocalGradientsScope> TrainingEngine::accumulate() {
  return ddp_ ? std::optional(ddp_->no_sync()) : std::nullopt;
}

NamedParameters TrainingEngine::named_parameters() const {
  return fsdp_ ? fsdp_->named_parameters() : ddp_->named_parameters();
}

bool TrainingEngine::weights_are_finite() const {
  const at::NoGradGuard no_grad;
  const auto parameters = named_parameters();
  return std::ranges::all_of(parameters.items, [](const NamedParameter& item) {
    const auto [least, largest] = at::aminmax(item.slice);
    return std::isfinite(least.item<double>()) &&
        std::isfinite(largest.item<double>());
  });
}

ShardReport TrainingEngine::report() const {
  return fsdp_ ? fsdp_->report() : ShardReport();
}

TrainingEngine::StateBytes TrainingEngine::state_bytes() const {
  const auto bytes_of = [](const NamedParameters& parameters) {
    std::int64_t bytes = 0;
    for (const auto& item : parameters.items) {
      bytes += static_cast<std::int64_t>(item.slice.nbytes());
    }
    return bytes;
  };
  const auto matrices = muon_ ? bytes_of(parameters_.matching) : 0;
  const auto rest = bytes_of(parameters_.rest);
  // Muon keeps a mean of gradients, AdamW also a mean of their squares.
  return {
      .parameters = matrices + rest,
      .gradients = matrices + rest,
      .optimizer = matrices + 2 * rest + (average_ ? matrices + rest : 0)};
}

void TrainingEngine::reset_average() {
  if (average_) {
    average_->reset();
  }
}

void TrainingEngine::add_to(CheckpointState& state) {
  const auto parameters = named_parameters();
  state.add(parameters);
  state.add("adamw", adamw_, parameters);
  if (muon_) {
    state.add("muon", *muon_, parameters);
  }
  if (average_) {
    state.add(kAveragedWeights, average_->averages());
  }
}

void TrainingEngine::close() {
  if (fsdp_) {
    fsdp_->close();
  } else {
    ddp_->close();
  }
}

at::Tensor TrainingEngine::scaled(const at::Tensor& loss) const {
  return scaler_ ? scaler_->scale(loss) : loss;
}

void TrainingEngine::update(StepMetrics& record) {
  if (scaler_) {
    scaler_->unscale();
  }
  record.grad_norm = clip();
  if (muon_) {
    muon_->set_learning_rate(record.lr);
  }
  adamw_.set_learning_rate(record.lr);
  take_step(record);
  // Also after a skipped step: infinite gradients would make every later one infinite.
  if (muon_) {
    muon_->zero_grad();
  }
  adamw_.zero_grad();
  if (average_ && !record.skipped.value_or(false)) {
    average_->update();
  }
}

void TrainingEngine::take_step(StepMetrics& record) {
  const auto step = [&] {
    if (muon_) {
      muon_->step();
    }
    adamw_.step();
  };
  if (!scaler_) {
    step();
    return;
  }
  record.loss_scale = scaler_->get_scale();
  record.skipped = !scaler_->step_with(step);
  scaler_->update();
}

}  // namespace sherd::tools
