// SPDX-License-Identifier: Apache-2.0
#include "fsdp/parameter_integrity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <torch/torch.h>

namespace sherd::fsdp {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const torch::nn::Module& module) {
  const auto model = build_units(module, 2);
  try {
    check_no_shared_elements(module, model);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

struct Tensors : torch::nn::Module {};

TEST(SharedElements, OfATransposedViewAreRefused) {
  Tensors net;
  const auto a = net.register_parameter("a", torch::rand({3, 4}));
  net.register_parameter("b", a.detach().t());
  EXPECT_THAT(refusal_of(net), HasSubstr("[fsdp] a and b share memory"));
}

TEST(SharedElements, OfABufferThatViewsAParameterAreRefused) {
  Tensors net;
  const auto a = net.register_parameter("a", torch::rand({3, 4}));
  net.register_buffer("column", a.detach().select(1, 2));
  EXPECT_THAT(refusal_of(net), HasSubstr("[fsdp] a and column share memory"));
}

TEST(SharedElements, OfFrozenParametersAreAccepted) {
  Tensors net;
  const auto a = net.register_parameter("a", torch::rand({3, 4}), false);
  net.register_parameter("b", a.detach().t(), false);
  EXPECT_EQ(refusal_of(net), "");
}

TEST(SharedElements, OfBuffersAreAccepted) {
  Tensors net;
  net.register_parameter("a", torch::rand({3}));
  const auto b = net.register_buffer("b", torch::rand({3}));
  net.register_buffer("c", b.detach());
  EXPECT_EQ(refusal_of(net), "");
}

TEST(SharedElements, AreNoneInOneTensorUnderTwoNamesNorInAnExpandedOne) {
  Tensors net;
  const auto a = net.register_parameter("a", torch::rand({3}));
  net.register_parameter("b", a);
  net.register_parameter("c", torch::rand({1, 3}).expand({2, 3}));
  EXPECT_EQ(refusal_of(net), "");
}

TEST(SharedElements, AreNoneInColumnsAndRowsOfOneTensor) {
  Tensors net;
  const auto columns = torch::rand({3, 4});
  net.register_parameter("q", columns.narrow(1, 0, 2));
  net.register_parameter("k", columns.narrow(1, 2, 2));
  torch::nn::Linear linear(3, 2);
  torch::nn::utils::vector_to_parameters(
      torch::rand({8}), linear->parameters());
  net.register_module("linear", linear);
  EXPECT_EQ(refusal_of(net), "");
}

}  // namespace
}  // namespace sherd::fsdp
