// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/cast_forward.h>

#include <gmock/gmock.h>
#include <sherd/fsdp/units.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include "fsdp/model_units.h"
#include "fsdp/testing.h"

namespace sherd::fsdp {
namespace {

using ::testing::Eq;
using torch::Tensor;

constexpr auto kHalfDtype = torch::kBFloat16;

struct EveryKindImpl : torch::nn::Module {
  torch::nn::Linear inner{nullptr};
  std::vector<c10::ScalarType> seen;
  EveryKindImpl() { inner = register_module("inner", torch::nn::Linear(2, 2)); }

  std::tuple<Tensor, std::pair<std::vector<Tensor>, std::optional<Tensor>>, int>
  forward(
      Tensor value,
      const Tensor& constant,
      Tensor& written,
      const std::vector<Tensor>& list,
      std::optional<Tensor> maybe,
      int number) {
    for (const auto& tensor : {value, constant, written, list.at(0), *maybe}) {
      seen.push_back(tensor.scalar_type());
    }
    written.add_(1);
    return {value, {list, maybe}, number};
  }
};
using EveryKind = torch::nn::ModuleHolder<CastForward<EveryKindImpl>>;

Tensor ones_of(c10::ScalarType dtype) { return torch::ones({2}, dtype); }

TEST(CastForwardOf, B6CastsTensorsWhereverTheyAre) {
  EveryKind module;
  *module->forward_dtypes() = {.inputs = kHalfDtype, .outputs = torch::kDouble};
  auto written = ones_of(torch::kFloat);
  const auto integers = ones_of(torch::kLong);
  const auto [value, rest, number] = module->forward(
      ones_of(torch::kFloat), ones_of(torch::kFloat), written,
      {ones_of(torch::kFloat), integers, Tensor()}, ones_of(torch::kFloat), 7);
  EXPECT_THAT(
      module->seen,
      ::testing::ElementsAre(
          kHalfDtype, kHalfDtype, torch::kFloat, kHalfDtype, kHalfDtype));
  EXPECT_TRUE(torch::equal(written, torch::full({2}, 2.0F)));
  EXPECT_EQ(value.scalar_type(), torch::kDouble);
  EXPECT_EQ(rest.first.at(0).scalar_type(), torch::kDouble);
  EXPECT_TRUE(rest.first.at(1).is_same(integers));
  EXPECT_FALSE(rest.first.at(2).defined());
  EXPECT_EQ(rest.second->scalar_type(), torch::kDouble);
  EXPECT_EQ(number, 7);
}

TEST(CastForwardOf, B6CastsNothingUnlessSharded) {
  EveryKind module;
  *module->forward_dtypes() = {.inputs = kHalfDtype, .outputs = torch::kDouble};
  EveryKind copy(std::make_shared<CastForward<EveryKindImpl>>(*module));
  auto written = ones_of(torch::kFloat);
  const auto value = ones_of(torch::kFloat);
  const auto found =
      copy->forward(value, value, written, {value}, value, 0);
  EXPECT_TRUE(std::get<0>(found).is_same(value));
}

using Layer = torch::nn::ModuleHolder<CastForward<torch::nn::LinearImpl>>;
using Norm = torch::nn::ModuleHolder<CastForward<torch::nn::BatchNorm1dImpl>>;

ForwardDtypes dtypes_in(const ModelUnits& model, std::size_t module) {
  return model.forward_casts.at(module).dtypes;
}

TEST(CastForwardOf, B6UnitsAndTheModelItselfCastTheirInputs) {
  struct ModelImpl : torch::nn::Module {
    Layer inside{2, 2};
    Layer unit{2, 2};
    Layer apart{2, 2};
    Norm norm{2};
    ModelImpl() {
      register_module("inside", inside);
      register_module("unit", unit);
      register_module("apart", apart);
      register_module("norm", norm);
    }
    Tensor forward(const Tensor& x) { return x; }
  };
  const CastForward<ModelImpl> root;
  const auto model = build_units(
      root, 2,
      {.units = units::any_of(
           {units::with_options(
                units::by_name("unit"), {.output_dtype = torch::kFloat}),
            units::with_options(
                units::by_name("apart"),
                {.mixed_precision =
                     MixedPrecision{
                         .param_dtype = torch::kHalf,
                         .cast_forward_inputs = false},
                 .output_dtype = torch::kHalf}),
            units::by_name("norm")}),
       .mixed_precision = {.param_dtype = kHalfDtype}});
  ASSERT_EQ(model.forward_casts.size(), 5U);
  EXPECT_THAT(dtypes_in(model, 0).inputs, Eq(kHalfDtype));
  EXPECT_THAT(dtypes_in(model, 0).outputs, Eq(std::nullopt));
  EXPECT_THAT(dtypes_in(model, 1).inputs, Eq(std::nullopt));  // No unit.
  EXPECT_THAT(dtypes_in(model, 2).inputs, Eq(kHalfDtype));
  EXPECT_THAT(dtypes_in(model, 2).outputs, Eq(torch::kFloat));
  EXPECT_THAT(dtypes_in(model, 3).inputs, Eq(std::nullopt));
  EXPECT_THAT(dtypes_in(model, 3).outputs, Eq(torch::kHalf));
  EXPECT_THAT(dtypes_in(model, 4).inputs, Eq(std::nullopt));
  // Forwards cast, and so operators need not.
  for (const auto& unit : model.traits) {
    for (const auto& casts : unit.casts) {
      EXPECT_THAT(casts.outputs, Eq(std::nullopt));
    }
  }
}

TEST(CastForwardOf, B6ASequentialMayEndWithOne) {
  torch::nn::Module model;
  model.register_module(
      "tail", torch::nn::Sequential(torch::nn::Linear(2, 2), Layer(2, 2)));
  const auto built = build_units(
      model, 2,
      {.units = units::with_options(
           units::by_name("tail"), {.output_dtype = torch::kFloat})});
  ASSERT_EQ(built.forward_casts.size(), 1U);
  EXPECT_THAT(dtypes_in(built, 0).outputs, Eq(torch::kFloat));
}

}  // namespace
}  // namespace sherd::fsdp
