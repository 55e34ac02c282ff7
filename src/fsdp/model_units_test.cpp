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
    const units::Policy& policy = FullyShardOptions().units,
    int ranks = 2,
    const Granularity& granularity = nullptr) {
  return build_units(
      module, ranks, {.units = policy, .granularity = granularity});
}

std::vector<std::string> unit_names(const ModelUnits& model) {
  std::vector<std::string> names;
  for (const auto& unit : model.units) {
    names.push_back(unit.name);
  }
  return names;
}

std::string refusal(
    const torch::nn::Module& module, const FullyShardOptions& options = {}) {
  try {
    build_units(module, 2, options);
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

TEST(ModelUnits, KnowTheFurtherNamesOfTiedParametersAndModules) {
  Block model;
  model->register_module("c", model->a.ptr());
  model->register_parameter("d", model->b->weight);
  EXPECT_THAT(
      build(*model).tied_names,
      ElementsAre(
          std::pair("b.weight", "d"), std::pair("c.bias", "a.bias"),
          std::pair("c.weight", "a.weight")));
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

TEST(ModelUnits, ModulesOfOneNameAreOneUnit) {
  const BlocksAndHead net;
  const auto model = build(
      *net,
      units::any_of(
          {units::together({"blocks.1", "head"}, {.keep_whole = true}),
           units::children_of_lists()}));
  EXPECT_THAT(unit_names(model), ElementsAre("blocks.0", "blocks.1+head"));
  EXPECT_EQ(find_parameter(model, "blocks.1.a.bias").unit, 1);
  EXPECT_EQ(find_parameter(model, "head.bias").unit, 1);
  ASSERT_EQ(model.units[1].flats.size(), 1U);
  EXPECT_FALSE(model.traits[0].keep_whole);
  EXPECT_TRUE(model.traits[1].keep_whole);
}

TEST(ModelUnits, UnitsHaveTheirOwnPrecisionAndGranularity) {
  const BlocksAndHead net;
  const auto whole = [](const std::string&, const at::Tensor& tensor) {
    return tensor.numel();
  };
  const auto model = build_units(
      *net, 4,
      {.units = units::any_of(
           {units::with_options(
                units::by_name("head"),
                {.mixed_precision = MixedPrecision(), .granularity = whole}),
            units::inside(
                units::by_name("blocks.?.b"),
                {.mixed_precision =
                     MixedPrecision{.reduce_dtype = torch::kBFloat16}}),
            units::children_of_lists()}),
       .mixed_precision = {.param_dtype = torch::kBFloat16}});
  EXPECT_THAT(unit_names(model), ElementsAre("blocks.0", "blocks.1", "head"));
  const auto listed = list_units(model);
  ASSERT_EQ(listed[0].flats.size(), 2U);
  const auto& inherited = listed[0].flats[0];
  EXPECT_THAT(
      inherited.parameters,
      ElementsAre("blocks.0.a.weight", "blocks.0.a.bias"));
  EXPECT_EQ(inherited.dtype, torch::kFloat);
  EXPECT_EQ(inherited.param_dtype, torch::kBFloat16);
  const auto& inner = listed[0].flats[1];
  EXPECT_THAT(
      inner.parameters, ElementsAre("blocks.0.b.weight", "blocks.0.b.bias"));
  EXPECT_EQ(inner.param_dtype, torch::kFloat);
  EXPECT_EQ(inner.reduce_dtype, torch::kBFloat16);
  ASSERT_EQ(listed[2].flats.size(), 1U);
  EXPECT_EQ(listed[2].flats[0].param_dtype, torch::kFloat);
  EXPECT_EQ(listed[2].bytes, exchange::unit_bytes(model.units[2]));
  // What meets the head must be cast to fp32, since blocks compute in bf16.
  EXPECT_TRUE(model.traits[2].casts[0].inputs);
  const auto& head = find_parameter(model, "head.weight");
  for (int rank = 0; rank < 4; ++rank) {
    const auto part =
        plan::parameter_slice(model.flat_of(head).layout, head.position, rank);
    EXPECT_EQ(part.in_parameter.numel() % 8, 0);
  }
}

TEST(ModelUnits, PoliciesThatTakeNoModuleAreNamed) {
  const BlocksAndHead net;
  const auto refused = [&](const units::Policy& policy) {
    return refusal(*net, {.units = policy});
  };
  EXPECT_THAT(
      refused(units::by_name("haed")),
      HasSubstr(
          "by_name(\"haed\") takes none of the module's 8 modules (blocks.0.a, "
          "blocks.0.b, blocks.0, blocks.1.a, "));
  EXPECT_THAT(
      refused(units::any_of({units::children_of_lists(), units::by_size(99)})),
      HasSubstr("by_size(99) takes none"));
  EXPECT_THAT(
      refused(units::together({"head", "norm"})),
      HasSubstr("by_name(\"norm\") takes none"));
  EXPECT_THAT(
      refused([](const units::Candidate&) { return false; }),
      HasSubstr("the policy takes none"));
  EXPECT_EQ(refused(units::none()), "accepted");
  EXPECT_EQ(refused(units::optional(units::by_name("haed"))), "accepted");
  EXPECT_EQ(refusal(*Linear(2, 2)), "accepted");  // By default.
}

TEST(ModelUnits, OptionsThatContradictEachOtherAreRefused) {
  const BlocksAndHead net;
  EXPECT_THAT(
      refusal(
          *net,
          {.units = [](const units::Candidate& candidate) -> units::Answer {
            if (candidate.name == "blocks.0" || candidate.name == "head") {
              return units::UnitOptions{
                  .name = "both", .keep_whole = candidate.name == "head"};
            }
            return false;
          }}),
      HasSubstr(
          "modules blocks.0 and head are one unit, both, but only head has "
          "keep_whole"));
  EXPECT_THAT(
      refusal(
          *net,
          {.units =
               units::inside(units::by_name("head"), {.keep_whole = true})}),
      HasSubstr("module head is no unit of its own"));
}

TEST(ModelUnits, WhatIsIgnoredIsInNoUnit) {
  const BlocksAndHead net;
  std::vector<std::string> asked;
  const auto model = build_units(
      *net, 2,
      {.units =
           [&](const units::Candidate& candidate) {
             asked.push_back(candidate.name);
             return candidate.name == "blocks.0";
           },
       .ignored = {"blocks.1", "*.?.b.bias", "head.weight"}});
  std::vector<std::string> names;
  for (const auto& parameter : model.parameters) {
    names.push_back(parameter.name);
  }
  EXPECT_THAT(
      names,
      ElementsAre(
          "blocks.0.a.weight", "blocks.0.a.bias", "blocks.0.b.weight",
          "head.bias"));
  EXPECT_THAT(asked, ::testing::Not(::testing::Contains("blocks.1")));
  EXPECT_THAT(asked, ::testing::Not(::testing::Contains("blocks.1.a")));
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

TEST(ModelUnits, ATiedParameterCountsOnceAndIsFoundByBothNames) {
  const TiedImpl tied;
  const auto model = build(tied, [](const units::Candidate& candidate) {
    return candidate.name == "out";
  });
  ASSERT_EQ(model.parameters.size(), 3U);
  EXPECT_EQ(find_parameter(model, "in.weight").unit, 0);
  EXPECT_EQ(find_parameter(model, "out.bias").unit, 1);
  EXPECT_EQ(find_parameter(model, "out.weight").name, "in.weight");
  EXPECT_THROW(find_parameter(model, "out.weights"), Error);
}

TEST(ModelUnits, IgnoredNamesMustBeThereAndNotTied) {
  const TiedImpl tied;
  EXPECT_THAT(
      refusal(tied, {.ignored = {"uot"}}),
      HasSubstr("options.ignored: \"uot\" names no parameter or buffer"));
  EXPECT_THAT(
      refusal(tied, {.ignored = {"out"}}),
      HasSubstr(
          "parameter out.weight is the same as in.weight, but only out.weight "
          "is in options.ignored"));
  EXPECT_THAT(
      refusal(tied, {.ignored = {"in"}}),
      HasSubstr("but only in.weight is in options.ignored"));
  EXPECT_EQ(refusal(tied, {.ignored = {"*.weight"}}), "accepted");
  EXPECT_THAT(
      refusal(tied, {.ignored = {"in", "out"}}),
      HasSubstr("no parameters; expected at least one that options.ignored"));
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

TEST(ModelUnits, FrozenParametersAreAUnitBesideTheTrainedOnesOfTheirModule) {
  const Block block;
  block->a->bias.set_requires_grad(false);
  block->b->weight.set_data(block->b->weight.to(torch::kDouble));
  const auto model = build(*block);
  EXPECT_THAT(unit_names(model), ElementsAre("(root)", "(root) (frozen)"));
  const auto& flats = model.units[0].flats;
  ASSERT_EQ(flats.size(), 2U);
  EXPECT_THAT(flats[0].names, ElementsAre("a.weight", "b.bias"));
  EXPECT_EQ(flats[1].dtype, torch::kDouble);
  EXPECT_EQ(flats[0].shapes[0], "[3, 4]");
  ASSERT_EQ(model.units[1].flats.size(), 1U);
  EXPECT_THAT(model.units[1].flats[0].names, ElementsAre("a.bias"));
  EXPECT_TRUE(starts_frozen(model.units[1]));
  // Presets of budgets do not depend on what is frozen.
  const auto sizes = policy_unit_sizes(model);
  EXPECT_THAT(
      sizes.bytes,
      ElementsAre(
          exchange::unit_bytes(model.units[0]) +
          exchange::unit_bytes(model.units[1])));
  EXPECT_EQ(sizes.root, 0);
  // Whoever names the unit means both.
  EXPECT_THAT(units_of(model, "(root)"), ElementsAre(0, 1));
  // Numbered flat after flat, in each unit.
  EXPECT_EQ(find_parameter(model, "a.weight").trainable, 0);
  EXPECT_EQ(find_parameter(model, "b.bias").trainable, 1);
  EXPECT_EQ(find_parameter(model, "b.weight").trainable, 2);
  EXPECT_EQ(find_parameter(model, "a.bias").trainable, 0);
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
  EXPECT_THAT(unit_names(model), ElementsAre("(root)", "(root) (frozen)"));
  EXPECT_FALSE(model.units[1].flats[0].trainable);  // Nor ever.
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

TEST(ModelUnits, ATiedParameterTakesTheOptionsOfBothModulesOrNone) {
  BlocksAndHead model;
  auto& first = *model->blocks[0]->as<BlockImpl>()->b;
  auto& second = *model->blocks[1]->as<BlockImpl>()->b;
  second.register_parameter("again", first.weight);
  const auto in_fp32 = [](const std::string& name) {
    return units::inside(
        units::by_name(name), {.mixed_precision = MixedPrecision()});
  };
  FullyShardOptions options;
  options.mixed_precision.param_dtype = at::kBFloat16;
  EXPECT_EQ(refusal(*model, options), "accepted");
  options.units = in_fp32("blocks.1.b");
  EXPECT_THAT(
      refusal(*model, options),
      HasSubstr(
          "parameter blocks.0.b.weight is the same as blocks.1.b.again, but "
          "module blocks.0.b has param_dtype BFloat16"));
  options.units = units::any_of({in_fp32("blocks.0.b"), in_fp32("blocks.1.b")});
  EXPECT_EQ(refusal(*model, options), "accepted");
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
