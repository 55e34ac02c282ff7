// SPDX-License-Identifier: Apache-2.0
// One process with torch::optim::AdamW.
#include "train/engine.h"

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <sherd/base/error.h>
#include <torch/torch.h>

namespace sherd::tools {
namespace {

// As GPT-2's descendants have it: a shorter memory of squares than Adam's.
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.95;

bool decays(const std::string& name) {
  const auto last = name.rfind('.');
  const bool is_norm = name.find("ln_") != std::string::npos;
  return name.substr(last + 1) == "weight" && !is_norm;
}

torch::optim::AdamW make_adamw(
    models::GptImpl& model, const TrainConfig& config) {
  std::vector<torch::Tensor> decayed;
  std::vector<torch::Tensor> kept;
  for (const auto& item : model.named_parameters()) {
    (decays(item.key()) ? decayed : kept).push_back(item.value());
  }
  const auto options = [&](double weight_decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(config.lr)
            .betas({kBeta1, kBeta2})
            .weight_decay(weight_decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::move(decayed), options(config.weight_decay));
  groups.emplace_back(std::move(kept), options(0.0));
  return torch::optim::AdamW(std::move(groups), *options(0.0));
}

class SingleProcess final : public Engine {
 public:
  SingleProcess(models::GptImpl& model, const TrainConfig& config)
      : parameters_(model.parameters()),
        adamw_(make_adamw(model, config)),
        longest_(
            config.clip > 0.0 ? config.clip
                              : std::numeric_limits<double>::infinity()) {}

  double update(double learning_rate) override {
    const double norm =
        torch::nn::utils::clip_grad_norm_(parameters_, longest_);
    for (auto& group : adamw_.param_groups()) {
      group.options().set_lr(learning_rate);
    }
    adamw_.step();
    adamw_.zero_grad();
    return norm;
  }

  std::vector<std::vector<double>> gather(
      const std::vector<double>& mine) override {
    return {mine};
  }

  void close() override {}

 private:
  const std::vector<torch::Tensor> parameters_;
  torch::optim::AdamW adamw_;
  const double longest_;
};

}  // namespace

Place place_from_environment() {
  const char* size = std::getenv("WORLD_SIZE");
  if (size != nullptr && std::string(size) != "1") {
    throw Error(
        std::string("expected WORLD_SIZE 1, found ") + size +
        "; this build trains on one rank");
  }
  return {};
}

std::unique_ptr<Engine> make_engine(
    models::GptImpl& model, const TrainConfig& config) {
  return std::make_unique<SingleProcess>(model, config);
}

}  // namespace sherd::tools
