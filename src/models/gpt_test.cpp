// SPDX-License-Identifier: Apache-2.0
// Compares the model with numbers computed by other code: a forward written here in elementary
// operators, and PyTorch in Python (gpt_reference.py).
#include <sherd/models/gpt.h>

#include <cmath>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <torch/torch.h>
#include "models/testing.h"

namespace sherd::models {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

GptConfig tiny() {
  return {
      .layers = 2, .width = 12, .heads = 3, .sequence = 7, .vocabulary = 11};
}

// Value i of parameter number p, in module order. gpt_reference.py uses the same formula.
void fill_by_rule(GptImpl& model) {
  const torch::NoGradGuard no_grad;
  std::int64_t number = 0;
  for (auto& parameter : model.parameters()) {
    const auto index = torch::arange(parameter.numel(), torch::kDouble) * 0.7 +
        static_cast<double>(number++);
    parameter.copy_((index.sin() * 0.3).view(parameter.sizes()));
  }
}

Tensor norm_by_hand(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto mean = x.mean(-1, true);
  const auto variance = (x - mean).pow(2).mean(-1, true);
  return (x - mean) / (variance + 1e-5).sqrt() * weight + bias;
}

Tensor gelu_by_hand(const Tensor& x) {
  return 0.5 * x *
      (1.0 + (std::sqrt(2.0 / M_PI) * (x + 0.044715 * x.pow(3))).tanh());
}

// GPT-2 written with matmul and exp, head by head and row by row.
Tensor forward_by_hand(GptImpl& model, const Tensor& ids) {
  const auto p = model.named_parameters();
  const auto config = model.config();
  const auto d = config.width / config.heads;
  const auto T = ids.size(1);
  auto x = p["wte.weight"].index({ids}) + p["wpe.weight"].slice(0, 0, T);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string at = "h." + std::to_string(layer) + ".";
    const auto apply = [&](const Tensor& in, const std::string& name) {
      return torch::matmul(in, p[at + name + ".weight"]) +
          p[at + name + ".bias"];
    };
    const auto norm = [&](const Tensor& in, const std::string& name) {
      return norm_by_hand(in, p[at + name + ".weight"], p[at + name + ".bias"]);
    };
    const auto qkv = apply(norm(x, "ln_1"), "attn.c_attn");
    std::vector<Tensor> heads;
    for (std::int64_t head = 0; head < config.heads; ++head) {
      const auto part = [&](std::int64_t which) {
        const auto first = which * config.width + head * d;
        return qkv.slice(-1, first, first + d);
      };
      const auto scores = torch::matmul(part(0), part(1).transpose(-1, -2)) /
          std::sqrt(static_cast<double>(d));
      heads.push_back(
          torch::matmul(softmax_by_hand(scores, future(T)), part(2)));
    }
    x = x + apply(torch::cat(heads, -1), "attn.c_proj");
    const auto hidden = gelu_by_hand(apply(norm(x, "ln_2"), "mlp.c_fc"));
    x = x + apply(hidden, "mlp.c_proj");
  }
  x = norm_by_hand(x, p["ln_f.weight"], p["ln_f.bias"]);
  const auto head = config.tied_head ? p["wte.weight"] : p["lm_head.weight"];
  return torch::matmul(x, head.t());
}

TEST(Gpt, ForwardIsGpt2WrittenOut) {
  Gpt model(tiny());
  fill_by_rule(*model);
  const auto ids = ids_by_rule(3, 7, 11);

  const auto found = model->forward(ids);

  EXPECT_EQ(found.sizes(), (std::vector<std::int64_t>{3, 7, 11}));
  EXPECT_TRUE(torch::allclose(found, forward_by_hand(*model, ids), 1e-5, 1e-5));
}

TEST(Gpt, GradientsOfTheLossAreThoseOfTheFormWrittenOut) {
  Gpt model(tiny());
  model->to(torch::kDouble);
  fill_by_rule(*model);
  const auto ids = ids_by_rule(2, 6, 11);
  const auto targets = (ids * 3 + 1).remainder(11);
  const auto parameters = model->parameters();

  const auto loss = model->loss(ids, targets);
  const auto by_hand = loss_by_hand(forward_by_hand(*model, ids), targets);
  const auto found = torch::autograd::grad({loss}, parameters);
  const auto expected = torch::autograd::grad({by_hand}, parameters);

  EXPECT_NEAR(loss.item<double>(), by_hand.item<double>(), 1e-12);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-9, 1e-11))
        << model->named_parameters().keys()[i];
  }
}

// Printed by src/models/gpt_reference.py: torch 2.13.0, double.
TEST(Gpt, AgreesWithThePythonReference) {
  Gpt model(tiny());
  model->to(torch::kDouble);
  fill_by_rule(*model);
  const auto ids = ids_by_rule(3, 7, 11);

  const auto logits = model->forward(ids);
  const auto loss = model->loss(ids, (ids * 3 + 1).remainder(11));

  EXPECT_NEAR(loss.item<double>(), 2.455755451513, 1e-9);
  EXPECT_NEAR(logits.sum().item<double>(), 8.848350861724, 1e-7);
  EXPECT_NEAR(logits[2][6][10].item<double>(), 0.421766790224, 1e-9);
}

TEST(Gpt, AnUntiedHeadIsItsOwnParameter) {
  auto config = tiny();
  config.tied_head = false;
  Gpt model(config);
  fill_by_rule(*model);
  const auto ids = ids_by_rule(2, 5, 11);

  EXPECT_TRUE(model->named_parameters().contains("lm_head.weight"));
  EXPECT_TRUE(torch::allclose(
      model->forward(ids), forward_by_hand(*model, ids), 1e-5, 1e-5));
}

TEST(Gpt, NamesAndShapesAreGpt2s) {
  Gpt model(GptConfig{
      .layers = 1, .width = 4, .heads = 2, .sequence = 3, .vocabulary = 5});
  std::vector<std::string> found;
  for (const auto& item : model->named_parameters()) {
    found.push_back(item.key() + c10::str(item.value().sizes()));
  }
  EXPECT_THAT(
      found,
      ::testing::ElementsAre(
          "wte.weight[5, 4]", "wpe.weight[3, 4]", "h.0.ln_1.weight[4]",
          "h.0.ln_1.bias[4]", "h.0.attn.c_attn.weight[4, 12]",
          "h.0.attn.c_attn.bias[12]", "h.0.attn.c_proj.weight[4, 4]",
          "h.0.attn.c_proj.bias[4]", "h.0.ln_2.weight[4]", "h.0.ln_2.bias[4]",
          "h.0.mlp.c_fc.weight[4, 16]", "h.0.mlp.c_fc.bias[16]",
          "h.0.mlp.c_proj.weight[16, 4]", "h.0.mlp.c_proj.bias[4]",
          "ln_f.weight[4]", "ln_f.bias[4]"));
}

TEST(Gpt, TheDefaultHasSixPointFourMillionParameters) {
  std::int64_t count = 0;
  for (const auto& parameter : Gpt(GptConfig{})->parameters()) {
    count += parameter.numel();
  }
  EXPECT_EQ(count, 6'416'896);
}

TEST(Gpt, InitialValuesAreGpt2s) {
  Gpt model(GptConfig{});
  const auto p = model->named_parameters();
  const auto deviation = [&](const char* name) {
    return p[name].std().item<double>();
  };
  EXPECT_NEAR(deviation("wte.weight"), 0.02, 5e-4);
  EXPECT_NEAR(deviation("wpe.weight"), 0.02, 5e-4);
  EXPECT_NEAR(deviation("h.3.attn.c_attn.weight"), 0.02, 5e-4);
  EXPECT_NEAR(deviation("h.3.attn.c_proj.weight"), 0.005, 2e-4);
  EXPECT_NEAR(deviation("h.3.mlp.c_fc.weight"), 0.02, 5e-4);
  EXPECT_NEAR(deviation("h.3.mlp.c_proj.weight"), 0.005, 2e-4);
  EXPECT_TRUE(p["h.3.mlp.c_fc.bias"].eq(0).all().item<bool>());
  EXPECT_TRUE(p["ln_f.weight"].eq(1).all().item<bool>());
  EXPECT_TRUE(p["ln_f.bias"].eq(0).all().item<bool>());
}

TEST(Gpt, DropoutActsInTrainingOnly) {
  auto config = tiny();
  config.dropout = 0.5;
  Gpt model(config);
  fill_by_rule(*model);
  const auto ids = ids_by_rule(2, 7, 11);
  EXPECT_FALSE(torch::equal(model->forward(ids), model->forward(ids)));
  model->eval();
  EXPECT_TRUE(torch::equal(model->forward(ids), model->forward(ids)));
}

TEST(Gpt, RefusesWhatMakesNoModelNamingExpectedAndFound) {
  auto config = tiny();
  config.heads = 5;
  EXPECT_EQ(
      refusal<Gpt>(config),
      "[models] expected a width that heads divide, found width 12 and heads "
      "5");
  config = tiny();
  config.heads = 0;
  EXPECT_THAT(
      refusal<Gpt>(config), HasSubstr("at least 1 head, found heads 0"));
  config = tiny();
  config.layers = -1;
  EXPECT_THAT(refusal<Gpt>(config), HasSubstr("layers -1"));
  config = tiny();
  config.width = 0;
  EXPECT_THAT(refusal<Gpt>(config), HasSubstr("width 0"));
  config = tiny();
  config.sequence = 0;
  EXPECT_THAT(refusal<Gpt>(config), HasSubstr("sequence 0"));
  config = tiny();
  config.vocabulary = 0;
  EXPECT_THAT(refusal<Gpt>(config), HasSubstr("vocabulary 0"));
  config = tiny();
  config.dropout = 1.0;
  EXPECT_THAT(refusal<Gpt>(config), HasSubstr("dropout 1"));
}

TEST(Gpt, OnMetaItHasShapesAndNoMemory) {
  auto config = tiny();
  config.tied_head = false;
  const Gpt real(config);
  config.device = torch::kMeta;
  torch::manual_seed(1);
  const auto expected = torch::rand(4);
  torch::manual_seed(1);
  const Gpt ghost(config);
  expect_shapes_without_memory(*ghost, *real);
  // No value was drawn elsewhere first.
  EXPECT_TRUE(torch::equal(torch::rand(4), expected));
}

}  // namespace
}  // namespace sherd::models
