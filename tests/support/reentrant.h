// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint as PyTorch makes it with use_reentrant=True: its backward runs the segment again,
// and then a backward of its own inside the outer one. A parameter of two segments gets its
// gradient in two parts, one after the other. LibTorch has no such checkpoint, but users may write
// one.
#pragma once

#include <functional>
#include <utility>
#include <torch/torch.h>

namespace sherd::test {

using Segment = std::function<torch::Tensor(const torch::Tensor&)>;

class ReentrantCheckpoint
    : public torch::autograd::Function<ReentrantCheckpoint> {
 public:
  static torch::Tensor forward(
      torch::autograd::AutogradContext* context,
      const torch::Tensor& x,
      const Segment& segment) {
    context->save_for_backward({x});
    context->saved_data["segment"] =
        c10::IValue::make_capsule(c10::make_intrusive<Kept>(segment));
    const torch::NoGradGuard no_grad;
    return segment(x);
  }

  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::tensor_list& gradients) {
    const auto kept = c10::static_intrusive_pointer_cast<Kept>(
        context->saved_data["segment"].toCapsule());
    const torch::AutoGradMode grad_mode(true);
    const auto x = context->get_saved_variables()[0].detach().requires_grad_();
    kept->segment(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }

 private:
  struct Kept : torch::CustomClassHolder {
    explicit Kept(Segment fn) : segment(std::move(fn)) {}
    Segment segment;
  };
};

// The input must require a gradient, or backward does not reach the segment.
inline torch::Tensor reentrant_checkpoint(
    const Segment& segment, const torch::Tensor& x) {
  return ReentrantCheckpoint::apply(x, segment);
}

}  // namespace sherd::test
