// SPDX-License-Identifier: Apache-2.0
// Promises that hold for every decoder, tested for each of them.
#include <sherd/models/language_model.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <sherd/models/gpt.h>
#include <sherd/models/llama.h>
#include <torch/torch.h>
#include "models/testing.h"
#include "support/error_of.h"

namespace sherd::models {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct Family {
  const char* name;
  std::function<std::shared_ptr<LanguageModel>(std::int64_t, std::uint64_t)>
      make;  // With the given layers and seed; vocabulary 11.
};

Family gpt() {
  return {"Gpt", [](std::int64_t layers, std::uint64_t seed) {
            return Gpt(GptConfig{
                           .layers = layers,
                           .width = 12,
                           .heads = 3,
                           .sequence = 7,
                           .vocabulary = 11,
                           .dropout = 0.5,
                           .seed = seed})
                .ptr();
          }};
}
Family llama() {
  return {"Llama", [](std::int64_t layers, std::uint64_t seed) {
            return Llama(LlamaConfig{
                             .layers = layers,
                             .width = 16,
                             .heads = 4,
                             .kv_heads = 2,
                             .intermediate = 20,
                             .sequence = 7,
                             .vocabulary = 11,
                             .seed = seed})
                .ptr();
          }};
}

// Everything that options add to Llama.
Family qwen() {
  return {"Qwen", [](std::int64_t layers, std::uint64_t seed) {
            return Llama(LlamaConfig{
                             .layers = layers,
                             .width = 16,
                             .heads = 4,
                             .head_width = 6,
                             .kv_heads = 2,
                             .intermediate = 20,
                             .sequence = 7,
                             .vocabulary = 11,
                             .rope_scaling =
                                 {.kind = RopeKind::kLinear, .factor = 2.0},
                             .qkv_bias = true,
                             .qk_norm = true,
                             .sliding_window = 3,
                             .tied_head = true,
                             .seed = seed})
                .ptr();
          }};
}

class LanguageModels : public ::testing::TestWithParam<Family> {
 protected:
  std::shared_ptr<LanguageModel> make() const { return GetParam().make(2, 0); }
};

TEST_P(LanguageModels, RunsEachLayerByWhatItIsTold) {
  const auto model = GetParam().make(3, 1);
  model->eval();
  const auto ids = ids_by_rule(2, 7, 11);
  const auto plain = model->forward(ids);
  std::vector<const torch::nn::Module*> layers;
  model->run_layers_with([&layers](
                             const torch::nn::Module& layer,
                             const auto& forward, const torch::Tensor& x) {
    layers.push_back(&layer);
    return forward(x);
  });
  EXPECT_TRUE(torch::equal(model->forward(ids), plain));
  ASSERT_EQ(layers.size(), 3U);
  EXPECT_NE(layers[0], layers[1]);
  for (const auto* layer : layers) {
    EXPECT_FALSE(layer->parameters().empty());
  }
  model->run_layers_with(nullptr);
  EXPECT_TRUE(torch::equal(model->forward(ids), plain));
  EXPECT_EQ(layers.size(), 3U);
}

TEST_P(LanguageModels, GenerateTheSameFromTheSameSeedAndPutTheModeBack) {
  const auto model = make();
  const std::vector<std::int64_t> prompt = {1, 2};

  const auto once = model->generate(prompt, {.tokens = 20, .seed = 4});
  const auto again = model->generate(prompt, {.tokens = 20, .seed = 4});
  const auto other = model->generate(prompt, {.tokens = 20, .seed = 5});

  ASSERT_EQ(once.size(), 22U);  // More than the model's 7 positions.
  EXPECT_EQ(once[0], 1);
  EXPECT_EQ(once[1], 2);
  EXPECT_EQ(once, again);
  EXPECT_NE(once, other);
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(model->parameters()[0].grad().defined());
}

TEST_P(LanguageModels, GeneratePutsBackTheModeOfEachPart) {
  const auto model = make();
  const auto parts = model->modules();
  parts[2]->eval();
  std::vector<bool> before;
  for (const auto& part : parts) {
    before.push_back(part->is_training());
  }
  (void)model->generate({1, 2}, {.tokens = 1});
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i]->is_training(), before[i]) << i;
  }
  EXPECT_TRUE(before.front());
  EXPECT_FALSE(before[2]);
}

TEST_P(LanguageModels, TemperatureZeroTakesTheLikeliest) {
  const auto model = make();
  model->eval();
  const auto ids = model->generate({1, 2}, {.tokens = 1, .temperature = 0.0});
  const auto logits = model->forward(torch::tensor({1, 2}).view({1, 2}));
  EXPECT_EQ(ids[2], logits[0][1].argmax().item<std::int64_t>());
}

TEST_P(LanguageModels, DecodeWithACacheAsForwardWithoutOne) {
  const auto model = make();
  model->eval();
  const auto ids = ids_by_rule(2, 7, 11);
  const auto expected = model->forward(ids);
  for (const std::int64_t first : {1, 3, 6, 7}) {
    auto cache = model->make_cache(7);
    auto logits = model->decode(ids.slice(1, 0, first), cache);
    for (auto at = first; at < 7; ++at) {
      EXPECT_TRUE(
          torch::allclose(logits, expected.select(1, at - 1), 1e-4, 1e-5))
          << "before position " << at << ", " << first << " at first";
      logits = model->decode(ids.slice(1, at, at + 1), cache);
    }
    EXPECT_TRUE(torch::allclose(logits, expected.select(1, 6), 1e-4, 1e-5));
    EXPECT_FALSE(logits.requires_grad());
    EXPECT_EQ(cache.front().positions(), 7);
  }
  // Several tokens after others.
  auto cache = model->make_cache(7);
  (void)model->decode(ids.slice(1, 0, 2), cache);
  EXPECT_TRUE(torch::allclose(
      model->decode(ids.slice(1, 2, 6), cache), expected.select(1, 5), 1e-4,
      1e-5));
}

TEST_P(LanguageModels, BeyondTheirPositionsTheySeeTheLastOnes) {
  const auto model = make();
  model->eval();
  const auto ids = model->generate({3, 1, 4}, {.tokens = 9, .seed = 2});
  const auto again = model->generate(ids, {.tokens = 1, .temperature = 0.0});
  const auto seen = torch::tensor(ids).slice(0, 5).unsqueeze(0);
  EXPECT_EQ(
      again.back(),
      model->forward(seen).select(1, -1).argmax().item<std::int64_t>());
}

TEST_P(LanguageModels, RefuseToDecodeBeyondTheirCache) {
  const auto model = make();
  EXPECT_THROW((void)model->make_cache(8), Error);
  auto cache = model->make_cache(4);
  (void)model->decode(ids_by_rule(1, 3, 11), cache);
  EXPECT_THAT(
      error_of([&] { (void)model->decode(ids_by_rule(1, 2, 11), cache); }),
      HasSubstr("found positions 2"));
  EXPECT_THROW((void)model->decode(ids_by_rule(1, 0, 11), cache), Error);
  EXPECT_THAT(
      error_of([&] { (void)model->decode(ids_by_rule(2, 1, 11), cache); }),
      HasSubstr("found rows 2 and cached rows 1"));
  for (const auto& layer : cache) {
    EXPECT_EQ(layer.positions(), 3);
  }
  auto other = GetParam().make(3, 0)->make_cache(4);
  EXPECT_THROW((void)model->decode(ids_by_rule(1, 1, 11), other), Error);
}

TEST_P(LanguageModels, EndAfterAStopIdAndTakeTheTokenTheyAreGiven) {
  const auto model = make();
  const auto plain = model->generate({1, 2}, {.tokens = 5, .seed = 4});
  std::vector<std::int64_t> heard;
  const auto stopped = model->generate(
      {1, 2},
      {.tokens = 5,
       .seed = 4,
       .stop_ids = {plain[3]},
       .on_token = [&](auto id) {
         heard.push_back(id);
         return id;
       }});
  const auto end = std::find(plain.begin() + 2, plain.end(), plain[3]) + 1;
  EXPECT_EQ(stopped, std::vector<std::int64_t>(plain.begin(), end));
  EXPECT_EQ(heard, std::vector<std::int64_t>(plain.begin() + 2, end));
  // However many more tokens are wanted.
  const auto endless = model->generate(
      {1, 2},
      {.tokens = std::numeric_limits<std::int64_t>::max(),
       .seed = 4,
       .stop_ids = {plain[3]}});
  EXPECT_EQ(endless, stopped);
  const auto told = model->generate(
      {1}, {.tokens = 3, .on_token = [](std::int64_t /*id*/) { return 7; }});
  EXPECT_EQ(told, (std::vector<std::int64_t>{1, 7, 7, 7}));
}

TEST_P(LanguageModels, RefuseToGenerateFromNothing) {
  EXPECT_THROW((void)make()->generate({}, {.tokens = 1}), Error);
  EXPECT_THROW((void)make()->generate({1}, {.temperature = -1.0}), Error);
}

TEST_P(LanguageModels, NeverSeeLaterTokens) {
  const auto model = make();
  model->eval();
  auto ids = ids_by_rule(1, 7, 11);
  const auto before = model->forward(ids);
  ids[0][6] = 9 - ids[0][6];
  const auto after = model->forward(ids);
  EXPECT_TRUE(torch::equal(before.slice(1, 0, 6), after.slice(1, 0, 6)));
  EXPECT_FALSE(torch::equal(before.slice(1, 6), after.slice(1, 6)));
}

TEST_P(LanguageModels, RefuseInputsLongerThanTheirPositions) {
  const auto model = make();
  EXPECT_EQ(model->positions_max(), 7);
  EXPECT_THAT(
      error_of([&] { (void)model->forward(ids_by_rule(1, 8, 11)); }),
      HasSubstr("found positions 8"));
  EXPECT_THAT(
      error_of([&] { (void)model->forward(torch::arange(7)); }),
      HasSubstr("found dimensions 1"));
}

TEST_P(LanguageModels, InitialValuesFollowSeedAndNameOnly) {
  torch::manual_seed(1);
  const auto model = make();
  torch::manual_seed(2);
  // Another order of construction, but the same first names.
  const auto deeper = GetParam().make(3, 0);
  const auto reseeded = GetParam().make(3, 1);

  const auto values = deeper->named_parameters();
  const auto others = reseeded->named_parameters();
  const torch::Tensor* before = nullptr;
  const auto here = model->named_parameters();
  for (const auto& item : here) {
    const auto& name = item.key();
    const auto& value = item.value();
    if (value.dim() == 1) {
      continue;
    }
    // GPT-2's deviations depend on the number of layers; the draw does not.
    const auto scale = value.norm() / values[name].norm();
    EXPECT_TRUE(torch::allclose(value, values[name] * scale, 1e-4)) << name;
    EXPECT_FALSE(torch::allclose(value, others[name] * scale, 1e-1)) << name;
    if (before != nullptr && before->sizes() == value.sizes()) {
      EXPECT_FALSE(torch::equal(*before, value)) << name;
    }
    before = &value;
  }
}

TEST_P(LanguageModels, AreMadeWithoutTheGlobalGenerator) {
  torch::manual_seed(1);
  const auto expected = torch::rand(4);
  torch::manual_seed(1);
  (void)make();
  EXPECT_TRUE(torch::equal(torch::rand(4), expected));
}

TEST_P(LanguageModels, ResetPutsBackWhatTheConstructorMade) {
  const auto fresh = make();
  const auto model = make();
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) {
      parameter.fill_(7.0);
    }
  }
  model->reset_parameters();
  const auto expected = fresh->named_parameters();
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
    EXPECT_TRUE(item.value().requires_grad());
  }
}

TEST_P(LanguageModels, ValuesNeedAKnownNameItsShapeAndMemory) {
  const auto model = make();
  const auto refused = [&](const std::string& name, const torch::Tensor& into) {
    return error_of([&] { model->reset_parameter(name, into); });
  };
  EXPECT_EQ(
      refused("typo.weight", torch::empty({4})),
      "[models] expected the name of a parameter, found name typo.weight");
  const auto first = model->named_parameters()[0];
  EXPECT_EQ(
      refused(first.key(), torch::empty({4})),
      "[models] expected the shape of the parameter, found shape [4]");
  EXPECT_THAT(
      refused(first.key(), first.value().to(torch::kMeta)),
      AllOf(HasSubstr(first.key()), HasSubstr("on the meta device")));
}

TEST_P(LanguageModels, TheLossOfBf16LogitsIsTakenInFp32) {
  const auto model = make();
  model->eval();
  model->to(torch::kBFloat16);
  const auto ids = ids_by_rule(2, 6, 11);
  const auto targets = (ids * 3 + 1).remainder(11);

  const auto logits = model->forward(ids);
  const auto loss = model->loss(ids, targets);

  EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat);
  EXPECT_NEAR(
      loss.item<double>(),
      loss_by_hand(logits.to(torch::kDouble), targets).item<double>(), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    LanguageModels,
    ::testing::Values(gpt(), llama(), qwen()),
    [](const auto& family) { return std::string(family.param.name); });

}  // namespace
}  // namespace sherd::models
