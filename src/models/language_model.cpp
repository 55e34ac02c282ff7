// SPDX-License-Identifier: Apache-2.0
// Shapes: B rows, T positions, V vocabulary.
#include <sherd/models/language_model.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <sherd/base/error.h>
#include "models/config_checks.h"
#include "models/precision.h"
#include "models/sampling.h"

namespace sherd::models {
namespace {

// FNV-1a over the name, then the finaliser of SplitMix64, so that similar seeds and names give
// unrelated generators.
std::uint64_t stream_of(const std::string& name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ (seed * 0x9e3779b97f4a7c15ULL);
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27U)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31U);
}

// Restores the training mode of a module and of all modules inside it at the end of the scope, also
// after an exception. A part may have another mode than the whole.
class EvaluationScope {
 public:
  explicit EvaluationScope(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()) {
    for (auto& part : module_.modules(/*include_self=*/false)) {
      const bool was_training = part->is_training();
      parts_.push_back({std::move(part), was_training});
    }
    module_.eval();
  }
  // train() includes all modules inside, and these come after their parents.
  ~EvaluationScope() {
    module_.train(was_training_);
    for (const auto& part : parts_) {
      part.module->train(part.was_training);
    }
  }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  struct Part {
    std::shared_ptr<torch::nn::Module> module;
    bool was_training;
  };

  torch::nn::Module& module_;
  bool was_training_;
  std::vector<Part> parts_;
};

}  // namespace

EmbeddingImpl::EmbeddingImpl(
    std::int64_t rows, std::int64_t width, const at::TensorOptions& options)
    : weight(register_parameter("weight", at::empty({rows, width}, options))) {}

at::Tensor EmbeddingImpl::forward(const at::Tensor& ids) {
  return at::embedding(weight, ids);
}

LanguageModel::LanguageModel(std::uint64_t seed) : seed_(seed) {
  run_layers_with(nullptr);
}

void LanguageModel::run_layers_with(LayerRunner run) {
  run_layer_ = run ? std::move(run)
                   : [](const torch::nn::Module& /*layer*/, const auto& forward,
                        const at::Tensor& x) { return forward(x); };
}

at::Tensor LanguageModel::loss(
    const at::Tensor& inputs, const at::Tensor& targets) {
  const auto logits_BTV = at_least_fp32(forward(inputs));
  return at::cross_entropy_loss(
      logits_BTV.view({-1, logits_BTV.size(-1)}), targets.reshape({-1}));
}

KeyValueCache LanguageModel::make_cache(std::int64_t positions) const {
  expect(
      positions >= 0 && positions <= positions_max(),
      "room for no more positions than the model has", "positions", positions);
  return KeyValueCache(
      static_cast<std::size_t>(layers()), LayerKeyValues(positions));
}

// The logits of the token after `ids`, in fp32 on the CPU: [vocabulary].
at::Tensor LanguageModel::next_logits(
    const std::vector<std::int64_t>& ids, KeyValueCache& cache) {
  const auto device = parameters().front().device();
  const auto row = [&](std::int64_t first, std::int64_t last) {
    const std::vector<std::int64_t> part(
        ids.begin() + first, ids.begin() + last);
    return at::tensor(part, at::kLong).unsqueeze(0).to(device);
  };
  const auto size = static_cast<std::int64_t>(ids.size());
  const auto logits_BV = size <= positions_max()
      ? decode(row(cache.front().positions(), size), cache)
      : forward(row(size - positions_max(), size)).select(1, -1);
  return logits_BV.select(0, 0).to(at::kCPU, at::kFloat);
}

std::vector<std::int64_t> LanguageModel::generate(
    const std::vector<std::int64_t>& prompt, const GenerateOptions& options) {
  expect(!prompt.empty(), "a prompt of at least 1 token", "tokens", 0);
  check_sampling(options);
  const at::NoGradGuard no_grad;
  const EvaluationScope evaluation(*this);
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(options.seed);
  auto ids = prompt;
  const auto given =
      std::min(static_cast<std::int64_t>(prompt.size()), positions_max());
  auto cache =
      make_cache(given + std::min(options.tokens, positions_max() - given));
  for (std::int64_t made = 0; made < options.tokens; ++made) {
    auto next = choose_token(next_logits(ids, cache), options, generator);
    next = options.on_token ? options.on_token(next) : next;
    ids.push_back(next);
    if (std::ranges::find(options.stop_ids, next) != options.stop_ids.end()) {
      break;
    }
  }
  return ids;
}

void LanguageModel::reset_parameter(
    const std::string& name, const at::Tensor& parameter) const {
  const auto all = named_parameters();
  const auto* own = all.find(name);
  expect(own != nullptr, "the name of a parameter", "name", name);
  // A matrix that was passed as 1-D would be taken for a norm.
  expect(
      own->sizes() == parameter.sizes(), "the shape of the parameter", "shape",
      parameter.sizes());
  write_initial_value(name, parameter);
}

void LanguageModel::reset_parameters() {
  for (const auto& item : named_parameters()) {
    write_initial_value(item.key(), item.value());
  }
}

void LanguageModel::write_initial_value(
    const std::string& name, const at::Tensor& parameter) const {
  if (parameter.is_meta()) {
    throw Error(
        "[models] expected memory for the initial value of " + name +
        ", found it on the meta device");
  }
  const at::NoGradGuard no_grad;
  if (parameter.dim() == 1) {
    parameter.fill_(name.ends_with(".weight") ? 1.0 : 0.0);  // Norms; biases.
    return;
  }
  // Drawn in fp32 on the CPU, so that every device gets the same values.
  const bool in_place = parameter.device().is_cpu() &&
      parameter.scalar_type() == at::kFloat && parameter.is_contiguous();
  auto value =
      in_place ? parameter.detach() : at::empty(parameter.sizes(), at::kFloat);
  value.normal_(
      0.0, initial_deviation(name),
      at::make_generator<at::CPUGeneratorImpl>(stream_of(name, seed_)));
  if (!in_place) {
    parameter.copy_(value);
  }
}

}  // namespace sherd::models
