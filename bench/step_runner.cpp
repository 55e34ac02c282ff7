// SPDX-License-Identifier: Apache-2.0
#include "bench/step_runner.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>
#include <sherd/base/error.h>
#include <sherd/ddp/replicate.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/adamw.h>
#include <torch/torch.h>
#include "base/hash.h"
#include "bench/fused_adamw.h"
#include "bench/step_barrier.h"
#include "exchange_kind_flag.h"

namespace sherd::bench {

models::GptConfig model_config(const Workload& work) {
  models::GptConfig config;
  config.layers = work.layers;
  config.width = work.width;
  config.heads = work.heads;
  config.sequence = work.sequence;
  config.vocabulary = kVocabulary;
  config.tied_head = false;
  return config;
}

namespace {

// The part of a parameter that a rank of the bound updates.
struct ParameterRange {
  at::Tensor
      parameter;  // The module's whole parameter, which holds the gradient.
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// Elements [rank / ranks, (rank + 1) / ranks) of all parameters taken as one sequence.
std::vector<ParameterRange> ranges_of(
    const std::vector<at::Tensor>& parameters, int rank, int ranks) {
  std::int64_t total = 0;
  for (const auto& parameter : parameters) {
    total += parameter.numel();
  }
  const auto first = total * rank / ranks;
  const auto last = total * (rank + 1) / ranks;
  std::vector<ParameterRange> pieces;
  std::int64_t offset = 0;
  for (const auto& parameter : parameters) {
    const auto begin = std::max(first - offset, std::int64_t{0});
    const auto end = std::min(last - offset, parameter.numel());
    if (begin < end) {
      pieces.push_back(
          {.parameter = parameter, .begin = begin, .count = end - begin});
    }
    offset += parameter.numel();
  }
  return pieces;
}

// The elements of `piece` in its parameter, or in a gradient of it.
at::Tensor elements_of(const ParameterRange& piece, const at::Tensor& whole) {
  return whole.detach().view({-1}).narrow(0, piece.begin, piece.count);
}

class LowerBound {
 public:
  LowerBound(const World& world, const StepRunnerOptions& options)
      : model_(model_config(options.work)),
        parameters_(model_->parameters()),
        ranges_(
            options.mode == "ddp"
                ? ranges_of(parameters_, 0, 1)
                : ranges_of(parameters_, world.rank(), world.size())) {
    if (options.dtype == "bf16") {
      for (const auto& piece : ranges_) {
        masters_.push_back(elements_of(piece, piece.parameter).clone());
      }
      model_->to(torch::kBFloat16);
    }
    if (world.size() > 1) {
      barrier_.emplace(options.barrier, world.size());
    }
  }

  double step(const at::Tensor& inputs, const at::Tensor& targets) {
    const auto loss = model_->loss(inputs, targets);
    loss.backward();
    update();
    const auto value = loss.item<double>();
    if (barrier_) {
      barrier_->wait();
    }
    return value;
  }

 private:
  // What it updates: the ranges themselves, or their fp32 copies.
  std::vector<at::Tensor> slices() const {
    if (!masters_.empty()) {
      return masters_;
    }
    std::vector<at::Tensor> slices;
    for (const auto& piece : ranges_) {
      slices.push_back(elements_of(piece, piece.parameter));
    }
    return slices;
  }

  void update() {
    const torch::NoGradGuard no_grad;
    if (!adamw_) {
      adamw_.emplace(slices(), kLearningRate);
    }
    std::vector<at::Tensor> gradients;
    gradients.reserve(ranges_.size());
    for (const auto& piece : ranges_) {
      gradients.push_back(
          elements_of(piece, piece.parameter.grad()).to(torch::kFloat32));
    }
    adamw_->step(gradients);
    for (std::size_t i = 0; i < masters_.size(); ++i) {
      elements_of(ranges_[i], ranges_[i].parameter).copy_(masters_[i]);
    }
    for (auto& parameter : parameters_) {
      parameter.mutable_grad().reset();
    }
  }

  models::Gpt model_;
  std::vector<at::Tensor> parameters_;
  std::vector<ParameterRange> ranges_;
  std::vector<at::Tensor>
      masters_;  // fp32 copies of the ranges; empty in fp32.
  std::optional<StepBarrier> barrier_;  // Only with several ranks.
  // Made at the first update, as LibTorch's optimizers do: where state lies between gradients in
  // the heap decides how many pages each later step faults in.
  std::optional<FusedAdamW> adamw_;
};

// `handle` distributes the model.
template <typename Handle>
StepRunner sherd_runner(
    const StepRunnerOptions& options, models::Gpt model, Handle distributed) {
  const auto handle = std::make_shared<Handle>(std::move(distributed));
  const auto adamw = std::make_shared<AdamW>(
      handle->named_parameters(),
      AdamWOptions{
          .learning_rate = kLearningRate,
          .groups = {},
          .in_backward = options.update == "backward"});
  return {
      .step =
          [model, handle, adamw](
              const at::Tensor& inputs, const at::Tensor& targets) mutable {
            const auto loss = model->loss(inputs, targets);
            loss.backward();
            adamw->step();
            adamw->zero_grad();
            return loss.template item<double>();
          },
      .close = [handle] { handle->close(); }};
}

}  // namespace

FullyShardOptions shard_options(const StepRunnerOptions& options) {
  FullyShardOptions shard;
  shard.units = units::of_type<models::BlockImpl>();
  shard.exchange = tools::parse_exchange_kind(options.exchange);
  if (options.strategy == "shard_grad_op") {
    shard.strategy = Strategy::kShardGradOp;
  } else if (options.strategy == "no_shard") {
    shard.strategy = Strategy::kNoShard;
  }
  if (options.dtype == "bf16") {
    shard.mixed_precision.param_dtype = at::kBFloat16;
  }
  if (options.budget_bytes > 0) {
    shard.budget_bytes = options.budget_bytes;
  }
  return shard;
}

at::Tensor random_rows(
    const std::vector<std::int64_t>& numbers, std::int64_t length) {
  auto bytes = torch::empty(
      {static_cast<std::int64_t>(numbers.size()), length}, torch::kLong);
  auto* out = bytes.data_ptr<std::int64_t>();
  for (const auto number : numbers) {
    for (std::int64_t i = 0; i < length; ++i) {
      // As in bench/peer_rank.py.
      const auto byte = static_cast<std::uint64_t>(number * length + i);
      *out++ = static_cast<std::int64_t>(mix64(byte) >> 56U);
    }
  }
  return bytes;
}

StepRunner make_step_runner(
    const World& world, const StepRunnerOptions& options) {
  if (options.contender == "bound") {
    const auto bound = std::make_shared<LowerBound>(world, options);
    return {.step = [bound](const auto& inputs, const auto& targets) {
      return bound->step(inputs, targets);
    }};
  }
  if (options.contender != "sherd") {
    throw Error(
        "[bench] --contender: expected bound or sherd, found " +
        options.contender);
  }
  models::Gpt model(model_config(options.work));
  if (options.mode == "ddp") {
    return sherd_runner(
        options, model,
        replicate(
            *model, world,
            {.exchange = tools::parse_exchange_kind(options.exchange)}));
  }
  return sherd_runner(
      options, model,
      fully_shard(
          *model, Mesh(world, {.replicate = options.replicate}),
          shard_options(options)));
}

}  // namespace sherd::bench
