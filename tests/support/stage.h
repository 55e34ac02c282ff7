// SPDX-License-Identifier: Apache-2.0
//
// A Sequential that may be nested in another one, unlike LibTorch's own, whose forward is a
// template: a Sequential takes modules of any type that have one forward.
#pragma once

#include <torch/torch.h>

namespace sherd::test {

struct StageImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  torch::Tensor forward(const torch::Tensor& x) {
    return SequentialImpl::forward(x);
  }
};
TORCH_MODULE(Stage);

}  // namespace sherd::test
