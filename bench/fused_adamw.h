// SPDX-License-Identifier: Apache-2.0
//
// FusedAdamW is the optimizer of plain LibTorch: one call of its fused kernel for all parameters,
// with sherd's presets. Thread rule: one thread.
#pragma once

#include <utility>
#include <vector>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <sherd/optim/adamw.h>

namespace sherd::bench {

class FusedAdamW {
 public:
  FusedAdamW(std::vector<at::Tensor> parameters, double learning_rate)
      : parameters_(std::move(parameters)), learning_rate_(learning_rate) {
    for (const auto& parameter : parameters_) {
      exp_avgs_.push_back(at::zeros_like(parameter));
      exp_avg_sqs_.push_back(at::zeros_like(parameter));
      steps_.push_back(
          at::zeros({}, at::dtype(at::kFloat).device(parameter.device())));
    }
  }

  // `gradients` are in the order of the parameters.
  void step(const std::vector<at::Tensor>& gradients) {
    for (auto& steps : steps_) {
      steps.add_(1);
    }
    const AdamWOptions preset;
    at::_fused_adamw_(
        parameters_, gradients, exp_avgs_, exp_avg_sqs_, /*max_exp_avg_sqs=*/{},
        steps_, learning_rate_, preset.beta1, preset.beta2, preset.weight_decay,
        preset.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }

 private:
  std::vector<at::Tensor> parameters_;
  const double learning_rate_;
  std::vector<at::Tensor> exp_avgs_;
  std::vector<at::Tensor> exp_avg_sqs_;
  std::vector<at::Tensor> steps_;
};

}  // namespace sherd::bench
