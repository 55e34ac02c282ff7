// SPDX-License-Identifier: Apache-2.0
#include "fsdp/model_units.h"

#include <map>
#include <gmock/gmock.h>
#include <sherd/base/error.h>
#include <torch/torch.h>

namespace sherd::fsdp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::nn::Linear;

struct BlockImpl : torch::nn::Module {
  Linear a{nullptr}, b{nullptr};
  BlockImpl() {
    a = register_module("a", Linear(4, 3));
    b = register_module("b", Linear(3, 4));
  }
};
TORCH_MODULE(Block);

// A list of blocks before a head that belongs to the root unit.
struct BlocksAndHeadImpl : torch::nn::Module {
  torch::nn::ModuleList blocks;
  Linear head{nullptr};
  BlocksAndHeadImpl() {
    blocks = register_module("blocks", torch::nn::ModuleList());
    blocks->push_back(Block());
    blocks->push_back(Block());
    head = register_module("head", Linear(4, 2));
  }
};
TORCH_MODULE(BlocksAndHead);

ModelUnits build(
    const torch::nn::Module& module,
    const units::Policy& policy = units::children_of_lists(),
    int ranks = 2,
    const Granularity& granularity = nullptr) {
  return build_units(module, policy, ranks, granularity);
}

std::vector<std::string> unit_names(const ModelUnits& model) {
  std::vector<std::string> names;
  for (const auto& unit : model.units) {
    names.push_back(unit.name);
  }
  return names;
}

std::string refusal(const torch::nn::Module& module) {
  try {
    build(module);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ModelUnits, UnitsComeInTheOrderOfTheirFirstParameter) {
  const BlocksAndHead net;
  const auto model = build(*net);
  EXPECT_THAT(unit_names(model), ElementsAre("blocks.0", "blocks.1", "(root)"));
  EXPECT_EQ(model.root, 2);
}

TEST(ModelUnits, ParametersComeInModuleOrderUnderTheirNames) {
  const BlocksAndHead net;
  const auto model = build(*net);
  const auto named = net->named_parameters();
  ASSERT_EQ(model.parameters.size(), named.size());
  for (std::size_t i = 0; i < named.size(); ++i) {
    EXPECT_EQ(model.parameters[i].name, named[i].key());
    EXPECT_TRUE(model.parameters[i].tensor.is_same(named[i].value()));
  }
}

TEST(ModelUnits, TheInnermostMatchOwnsAParameter) {
  const BlocksAndHead net;
  const auto model = build(*net, [](const units::Candidate& candidate) {
    return candidate.name == "blocks.1" || candidate.name == "blocks.1.b";
  });
  EXPECT_THAT(
      unit_names(model), ElementsAre("(root)", "blocks.1", "blocks.1.b"));
  EXPECT_EQ(find_parameter(model, "blocks.1.a.bias").unit, 1);
  EXPECT_EQ(find_parameter(model, "blocks.1.b.bias").unit, 2);
  EXPECT_EQ(find_parameter(model, "head.bias").unit, 0);
}

TEST(ModelUnits, ARootThatOwnsNothingIsNoUnit) {
  const torch::nn::Sequential list(Linear(2, 2), Linear(2, 2));
  const auto model = build(*list);
  EXPECT_THAT(unit_names(model), ElementsAre("0", "1"));
  EXPECT_FALSE(model.root.has_value());
}

TEST(ModelUnits, ThePolicyIsToldWhatNoInnerUnitTook) {
  const BlocksAndHead net;
  std::map<std::string, std::int64_t> told;
  build(*net, [&](const units::Candidate& candidate) {
    told[candidate.name] = candidate.numel;
    return candidate.name == "blocks.0.a";
  });
  EXPECT_EQ(told.at("blocks.0.a"), 15);
  EXPECT_EQ(told.at("blocks.0"), 16);  // Only b is left.
  EXPECT_EQ(told.at("blocks.1"), 31);
  EXPECT_EQ(told.at("blocks"), 47);
  EXPECT_FALSE(told.contains(""));  // The model itself is not asked about.
}

struct TiedImpl : torch::nn::Module {
  Linear in{nullptr};
  std::shared_ptr<torch::nn::Module> out =
      std::make_shared<torch::nn::Module>();
  TiedImpl() {
    in = register_module("in", Linear(3, 3));
    register_module("out", out);
    out->register_parameter("weight", in->weight);
    out->register_parameter("bias", torch::zeros({3}));
  }
};

TEST(ModelUnits, ATiedParameterCountsOnceUnderItsFirstName) {
  const TiedImpl tied;
  const auto model = build(tied, [](const units::Candidate& candidate) {
    return candidate.name == "out";
  });
  ASSERT_EQ(model.parameters.size(), 3U);
  EXPECT_EQ(find_parameter(model, "in.weight").unit, 0);
  EXPECT_EQ(find_parameter(model, "out.bias").unit, 1);
  EXPECT_THROW(find_parameter(model, "out.weight"), Error);
}

TEST(ModelUnits, AModuleRegisteredTwiceBelongsToItsFirstPlace) {
  const Linear shared(3, 3);
  torch::nn::ModuleList list;
  list->push_back(shared);
  list->push_back(shared);
  list->push_back(Linear(3, 3));
  const auto model = build(*list);
  EXPECT_THAT(unit_names(model), ElementsAre("0", "2"));
  EXPECT_EQ(model.parameters.size(), 4U);
}

TEST(ModelUnits, FlatsAreSplitByDtypeAndTrainability) {
  const Block block;
  block->a->bias.set_requires_grad(false);
  block->b->weight.set_data(block->b->weight.to(torch::kDouble));
  const auto model = build(*block);
  ASSERT_EQ(model.units.size(), 1U);
  const auto& flats = model.units[0].flats;
  ASSERT_EQ(flats.size(), 3U);
  EXPECT_THAT(flats[0].names, ElementsAre("a.weight", "b.bias"));
  EXPECT_THAT(flats[1].names, ElementsAre("a.bias"));
  EXPECT_FALSE(flats[1].trainable);
  EXPECT_EQ(flats[2].dtype, torch::kDouble);
  EXPECT_EQ(flats[0].shapes[0], "[3, 4]");
  // Numbered flat after flat, frozen ones not at all.
  EXPECT_EQ(find_parameter(model, "a.weight").trainable, 0);
  EXPECT_EQ(find_parameter(model, "b.bias").trainable, 1);
  EXPECT_EQ(find_parameter(model, "b.weight").trainable, 2);
  EXPECT_EQ(find_parameter(model, "a.bias").trainable, -1);
  EXPECT_EQ(find_parameter(model, "b.bias").position, 1);
}

TEST(ModelUnits, GranularityKeepsRowsTogether) {
  const Linear linear(64, 10);
  const auto rows = [](const std::string&, const at::Tensor& tensor) {
    return tensor.dim() == 2 ? tensor.size(1) : 1;
  };
  const auto model = build(*linear, units::none(), 3, rows);
  for (int rank = 0; rank < 3; ++rank) {
    const auto part =
        plan::parameter_slice(model.units[0].flats[0].layout, 0, rank);
    EXPECT_EQ(part.in_parameter.begin % 64, 0);
    EXPECT_EQ(part.in_parameter.end % 64, 0);
  }
}

TEST(ModelUnits, ScalarsAndEmptyParametersAreFine) {
  torch::nn::Module module("m");
  module.register_parameter("scalar", torch::tensor(2.0F));
  module.register_parameter("empty", torch::empty({0, 3}));
  module.register_parameter(
      "steps", torch::zeros({2}, torch::kLong), /*requires_grad=*/false);
  const auto model = build(module);
  EXPECT_EQ(model.units[0].flats.size(), 2U);
  EXPECT_EQ(model.units[0].flats[0].layout.numels[0], 1);
  EXPECT_EQ(model.units[0].flats[0].layout.numels[1], 0);
}

TEST(ModelUnits, WhatCannotBeShardedIsNamed) {
  torch::nn::Module module("m");
  EXPECT_THAT(refusal(module), HasSubstr("no parameters"));

  torch::nn::Module complex("m");
  complex.register_parameter("wave", torch::zeros({2}, torch::kComplexFloat));
  EXPECT_THAT(refusal(complex), HasSubstr("wave is trainable and of type"));

  torch::nn::Module sparse("m");
  sparse.register_parameter("rare", torch::eye(2).to_sparse());
  EXPECT_THAT(refusal(sparse), HasSubstr("rare is on cpu, sparse"));

  torch::nn::Module derived("m");
  derived.register_parameter(
      "result", torch::ones({2}, torch::requires_grad()).mul(2));
  EXPECT_THAT(refusal(derived), HasSubstr("result is the result"));
}

TEST(ModelUnits, AnUnknownNameIsAnErrorThatShowsOne) {
  const Linear linear(2, 2);
  const auto model = build(*linear);
  try {
    find_parameter(model, "wieght");
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'wieght'"));
    EXPECT_THAT(error.what(), HasSubstr("'weight'"));
  }
}

}  // namespace
}  // namespace sherd::fsdp
