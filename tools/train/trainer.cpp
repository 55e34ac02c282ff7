// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <algorithm>
#include <ctime>
#include <utility>
#include <sherd/data/tokenizer.h>
#include <sherd/optim/schedule.h>
#include <torch/utils.h>
#include "base/hash.h"
#include "train/model.h"
#include "train/model_flops.h"
#include "train/peak_flops.h"
#include "train/run_folder.h"
#include "train/train_command.h"

namespace sherd::tools {
namespace {

constexpr std::int64_t kPromptTokens = 32;

// The mean of column `column` over the rows of all ranks.
double mean(const std::vector<std::vector<double>>& rows, std::size_t column) {
  double sum = 0;
  for (const auto& row : rows) {
    sum += row[column];
  }
  return sum / static_cast<double>(rows.size());
}

double largest(
    const std::vector<std::vector<double>>& rows, std::size_t column) {
  double result = rows.front()[column];
  for (const auto& row : rows) {
    result = std::max(result, row[column]);
  }
  return result;
}

Decay decay_of(const TrainConfig& config) {
  if (config.lr_decay == "constant") {
    return Decay::kConstant;
  }
  return config.lr_decay == "linear" ? Decay::kLinear : Decay::kCosine;
}

// No two ranks, of one replica or of several, have the same first sample in a step. A run that
// continues draws the same numbers as one that never stopped. Mixed, since a generator uses only
// the low 32 bits.
std::uint64_t dropout_seed(std::int64_t seed, std::int64_t first_sample) {
  return mix64(
      mix64(static_cast<std::uint64_t>(seed)) +
      static_cast<std::uint64_t>(first_sample));
}

// The coordinator decides which samples a replica trains on. What it validates on are batches
// still, which its ranks must divide.
std::int64_t batch_of(const TrainConfig& config, const World& world) {
  const std::int64_t ranks = world.size();
  return is_replica() ? (config.batch + ranks - 1) / ranks * ranks
                      : config.batch;
}

}  // namespace

Trainer::Trainer(
    TrainConfig config,
    std::unique_ptr<data::BlendedCorpus> corpus,
    const World& world)
    : config_(std::move(config)),
      world_(world),
      mesh_(mesh_of(world, config_)),
      corpus_(std::move(corpus)),
      batches_(
          *corpus_,
          {.batch = batch_of(config_, world),
           .sequence = config_.seq,
           .seed = static_cast<std::uint64_t>(config_.seed),
           .rank = world.rank(),
           .world_size = world.size()}),
      device_(device_of(config_, world)),
      model_(make_model(config_, corpus_->vocabulary(), device_)),
      engine_(*model_, mesh_, config_),
      flops_per_token_(
          flops_per_token(config_, multiplied_parameters(*model_))),
      peak_flops_(peak_flops(world_, config_, device_)) {}

std::int64_t Trainer::last_step() const {
  return config_.stop_at > 0 ? config_.stop_at : config_.steps;
}

double Trainer::learning_rate(std::int64_t step) const {
  return learning_rate_at(
      step,
      {.peak = config_.lr,
       .floor = config_.lr * config_.lr_min_ratio,
       .warmup_steps = std::min(config_.warmup, config_.steps),
       .total_steps = config_.steps,
       .decay = decay_of(config_)});
}

std::int64_t Trainer::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& parameter : model_->parameters()) {
    count += parameter.numel();
  }
  return count;
}

std::string Trainer::run_path() const {
  return world_
      .all_gather_texts(
          config_.run.empty() && leads()
              ? make_run_folder("runs", std::time(nullptr))
              : config_.run)
      .front();
}

std::int64_t Trainer::first_sample(std::int64_t step) const {
  const auto rows = config_.batch / world_.size();
  return step * config_.batch + world_.rank() * rows;
}

double Trainer::forward_backward(
    std::int64_t first_sample,
    const data::Batch& batch,
    const std::function<void()>& before_last_backward) {
  if (config_.dropout > 0.0) {
    torch::manual_seed(dropout_seed(config_.seed, first_sample));
  }
  const auto inputs = batch.inputs.to(device_).chunk(config_.micro_batches);
  const auto targets = batch.targets.to(device_).chunk(config_.micro_batches);
  const auto rows = static_cast<double>(batch.inputs.size(0));
  double loss = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const bool last = i + 1 == inputs.size();
    const auto scope = last ? std::nullopt : engine_.accumulate();
    auto part = model_->loss(inputs[i], targets[i]);
    if (inputs.size() > 1) {  // Its share of the mean over all rows.
      part = part * (static_cast<double>(inputs[i].size(0)) / rows);
    }
    if (last) {
      before_last_backward();
    }
    engine_.scaled(part).backward();
    loss += part.item<double>();
  }
  return loss;
}

int Trainer::complete(
    StepMetrics& record,
    const RankMetrics& here,
    std::int64_t sequences,
    int request) {
  const auto all = world_.all_gather(
      {record.loss, static_cast<double>(here.rss_bytes), here.step_s,
       static_cast<double>(request), here.busy_s});
  // Every rank has equally many rows, so the mean of the means is that of the batch.
  record.loss = mean(all, 0);
  record.rss_bytes = static_cast<std::int64_t>(largest(all, 1));
  record.step_s = largest(all, 2);
  for (const auto& row : all) {
    record.ranks.push_back(
        {.step_s = row[2],
         .busy_s = row[4],
         .rss_bytes = static_cast<std::int64_t>(row[1])});
  }
  record.tokens = sequences * config_.seq;
  record.tokens_per_s = static_cast<double>(record.tokens) / record.step_s;
  record.mfu = model_flops_utilisation(
      record.tokens_per_s, flops_per_token_, peak_flops_);
  const bool due =
      config_.eval_every > 0 && record.step % config_.eval_every == 0;
  if (due || record.step == last_step()) {
    record.val_loss = validate();
  }
  return static_cast<int>(largest(all, 3));
}

// The mean over the validation rows of all ranks.
double Trainer::validate() {
  const torch::NoGradGuard no_grad;
  model_->eval();
  const auto count =
      std::min(config_.eval_batches, batches_.validation_batches());
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto batch = batches_.validation(i);
    sum += model_->loss(batch.inputs.to(device_), batch.targets.to(device_))
               .item<double>();
  }
  model_->train();
  return mean(world_.all_gather({sum / static_cast<double>(count)}), 0);
}

// Every rank runs it, since the model is sharded over the ranks, and all make the same tokens.
Sample Trainer::sample() {
  if (config_.sample_tokens == 0) {
    return {};
  }
  std::vector<std::int64_t> prompt(static_cast<std::size_t>(
      std::min(kPromptTokens, batches_.validation_tokens())));
  batches_.copy_validation(
      0, static_cast<std::int64_t>(prompt.size()), prompt.data());
  return {
      .ids = model_->generate(
          prompt,
          {.tokens = config_.sample_tokens,
           .temperature = 0.8,
           .seed = static_cast<std::uint64_t>(config_.seed)}),
      .prompt = prompt.size(),
      .bytes = reads_bytes()};
}

bool Trainer::reads_bytes() const {
  return std::ranges::all_of(corpus_->sources(), [](const auto& source) {
    return source.corpus->tokenizer_digest() == data::bytes_digest();
  });
}

void Trainer::close() {
  engine_.close();
  world_.close();
}

}  // namespace sherd::tools
