// SPDX-License-Identifier: Apache-2.0
// Compares the model with numbers computed by other code: Hugging Face's LlamaForCausalLM
// (llama_reference.py), and a forward written here in elementary operators.
#include <sherd/models/llama.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <torch/torch.h>
#include "models/testing.h"

namespace sherd::models {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::Tensor;

LlamaConfig tiny(std::int64_t kv_heads = 2) {
  return {
      .layers = 2,
      .width = 16,
      .heads = 4,
      .kv_heads = kv_heads,
      .intermediate = 20,
      .sequence = 7,
      .vocabulary = 11};
}

// Value i of parameter number p, in module order. llama_reference.py uses the same formula.
void fill_by_rule(LlamaImpl& model) {
  const torch::NoGradGuard no_grad;
  std::int64_t number = 0;
  for (auto& parameter : model.parameters()) {
    const auto index = torch::arange(parameter.numel(), torch::kDouble);
    const auto angle =
        index.square() * 0.013 + index * 0.7 + static_cast<double>(number++);
    const auto centre = parameter.dim() == 1 ? 1.0 : 0.0;
    parameter.copy_((angle.sin() * 0.3 + centre).view(parameter.sizes()));
  }
}

// What llama_reference.py printed for one configuration.
struct Golden {
  LlamaConfig config;
  std::vector<double> logits;
  double loss = 0;
  struct Gradient {
    std::string parameter;  // Name and shape, "model.norm.weight 16".
    double product;         // With the cosine of the index.
  };
  std::vector<Gradient> gradients;
};

LlamaConfig config_of(std::istream& settings) {
  std::map<std::string, double> values;
  for (std::string setting; settings >> setting;) {
    const auto equals = setting.find('=');
    values[setting.substr(0, equals)] = std::stod(setting.substr(equals + 1));
  }
  const auto size = [&](const char* name) {
    return static_cast<std::int64_t>(values.at(name));
  };
  return {
      .layers = size("layers"),
      .width = size("width"),
      .heads = size("heads"),
      .head_width = size("head_width"),
      .kv_heads = size("kv_heads"),
      .intermediate = size("intermediate"),
      .sequence = size("sequence"),
      .vocabulary = size("vocabulary"),
      .rope_theta = values.at("rope_theta"),
      .rope_scaling =
          {.kind = static_cast<RopeKind>(size("rope_kind")),
           .factor = 4.0,
           .low_freq_factor = 1.0,
           .high_freq_factor = 2.0,
           .original_positions = 14,
           .beta_fast = 2.0,
           .beta_slow = 0.5},
      .norm_epsilon = values.at("norm_epsilon"),
      .qkv_bias = size("qkv_bias") != 0,
      .qk_norm = size("qk_norm") != 0,
      .sliding_window = size("sliding_window"),
      .tied_head = size("tied_head") != 0};
}

std::map<std::string, Golden> read_golden() {
  std::map<std::string, Golden> all;
  Golden* golden = nullptr;
  std::ifstream file(SHERD_LLAMA_GOLDEN);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "case") {
      std::string name;
      words >> name;
      golden = &all[name];
      golden->config = config_of(words);
    } else if (kind == "logits") {
      for (double value = 0; words >> value;) {
        golden->logits.push_back(value);
      }
    } else if (kind == "loss") {
      words >> golden->loss;
    } else if (kind == "gradient") {
      std::string name;
      std::string shape;
      double product = 0;
      words >> name >> shape >> product;
      golden->gradients.push_back({name + " " + shape, product});
    }
  }
  return all;
}

std::string shape_of(const Tensor& tensor) {
  std::ostringstream text;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    text << (dim == 0 ? "" : "x") << tensor.size(dim);
  }
  return text.str();
}

class HuggingFace : public ::testing::TestWithParam<const char*> {};

TEST_P(HuggingFace, ComputesTheSameNumbers) {
  const auto golden = read_golden().at(GetParam());
  Llama model(golden.config);
  fill_by_rule(*model);
  const auto ids = ids_by_rule(2, 7, 11);

  const auto logits = model->forward(ids);
  const auto loss = model->loss(
      ids.slice(1, 0, 6).contiguous(), ids.slice(1, 1, 7).contiguous());
  loss.backward();

  ASSERT_EQ(golden.logits.size(), 2U * 7U * 11U);
  const auto expected =
      torch::tensor(golden.logits, torch::kDouble).view({2, 7, 11});
  EXPECT_LE((logits - expected).abs().max().item<double>(), 1e-5);
  EXPECT_NEAR(loss.item<double>(), golden.loss, 1e-5);
  const auto parameters = model->named_parameters();
  ASSERT_EQ(parameters.size(), golden.gradients.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, product] = golden.gradients[i];
    const auto& value = parameters[i].value();
    EXPECT_EQ(parameters[i].key() + " " + shape_of(value), name);
    const auto gradient = value.grad().to(torch::kDouble).flatten();
    const auto probe = torch::arange(value.numel(), torch::kDouble).cos();
    EXPECT_NEAR((gradient * probe).sum().item<double>(), product, 1e-5) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Golden,
    HuggingFace,
    ::testing::Values(
        "grouped_query",
        "multi_head",
        "multi_query",
        "rope_linear",
        "rope_llama3",
        "rope_yarn",
        "qwen2",
        "qwen3",
        "mistral"),
    [](const auto& name) { return std::string(name.param); });

Tensor norm_by_hand(const Tensor& x, const Tensor& weight, double epsilon) {
  return x / (x * x).mean(-1, true).add(epsilon).sqrt() * weight;
}

// One head [B, T, D] rotated position by position, with complex numbers.
Tensor turned_by_hand(const Tensor& x, double theta) {
  const auto half = x.size(-1) / 2;
  const auto wavelength = torch::pow(
      theta, -torch::arange(half, torch::kDouble) / static_cast<double>(half));
  const auto angle =
      torch::outer(torch::arange(x.size(-2), torch::kDouble), wavelength);
  const auto turned = torch::complex(x.slice(-1, 0, half), x.slice(-1, half)) *
      torch::polar(torch::ones_like(angle), angle);
  return torch::cat({torch::real(turned), torch::imag(turned)}, -1);
}

// Llama written with matmul and exp, head by head, in fp64.
Tensor forward_by_hand(LlamaImpl& model, const Tensor& ids) {
  const auto p = model.named_parameters();
  const auto config = model.config();
  const auto d = config.width / config.heads;
  const auto shared = config.heads / config.kv_heads;
  auto x = p["model.embed_tokens.weight"].index({ids});
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const auto apply = [&](const Tensor& in, const std::string& name) {
      return torch::matmul(in, p[at + name + ".weight"].t());
    };
    const auto norm = [&](const std::string& name) {
      return norm_by_hand(x, p[at + name + ".weight"], config.norm_epsilon);
    };
    const auto normed = norm("input_layernorm");
    std::vector<Tensor> heads;
    for (std::int64_t head = 0; head < config.heads; ++head) {
      const auto part = [&](const std::string& name, std::int64_t which) {
        return apply(normed, "self_attn." + name)
            .slice(-1, which * d, (which + 1) * d);
      };
      const auto q = turned_by_hand(part("q_proj", head), config.rope_theta);
      const auto k =
          turned_by_hand(part("k_proj", head / shared), config.rope_theta);
      const auto scores = torch::matmul(q, k.transpose(-1, -2)) /
          std::sqrt(static_cast<double>(d));
      heads.push_back(torch::matmul(
          softmax_by_hand(scores, future(ids.size(1))),
          part("v_proj", head / shared)));
    }
    x = x + apply(torch::cat(heads, -1), "self_attn.o_proj");
    const auto second = norm("post_attention_layernorm");
    const auto gate = apply(second, "mlp.gate_proj");
    x = x +
        apply(
            gate * torch::sigmoid(gate) * apply(second, "mlp.up_proj"),
            "mlp.down_proj");
  }
  x = norm_by_hand(x, p["model.norm.weight"], config.norm_epsilon);
  return torch::matmul(
      x,
      p[config.tied_head ? "model.embed_tokens.weight" : "lm_head.weight"].t());
}

TEST(Llama, ForwardAndGradientsAreThoseOfTheFormWrittenOut) {
  for (const bool tied : {false, true}) {
    auto config = tiny();
    config.tied_head = tied;
    Llama model(config);
    model->to(torch::kDouble);
    fill_by_rule(*model);
    const auto ids = ids_by_rule(2, 6, 11);
    const auto targets = (ids * 3 + 1).remainder(11);
    const auto parameters = model->parameters();

    const auto by_hand = forward_by_hand(*model, ids);
    const auto found =
        torch::autograd::grad({model->loss(ids, targets)}, parameters);
    const auto expected =
        torch::autograd::grad({loss_by_hand(by_hand, targets)}, parameters);

    // Not 1e-12, because the model's angles are fp32.
    EXPECT_TRUE(torch::allclose(model->forward(ids), by_hand, 1e-6, 1e-6));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-6, 1e-6))
          << model->named_parameters().keys()[i];
    }
  }
}

// Copies the parameters, with each head of keys and values repeated for every query head that
// shares it.
void copy_with_heads_repeated(LlamaImpl& grouped, LlamaImpl& full) {
  const torch::NoGradGuard no_grad;
  const auto config = grouped.config();
  const auto d = config.width / config.heads;
  const auto from = grouped.named_parameters();
  for (auto& item : full.named_parameters()) {
    auto value = from[item.key()];
    if (value.sizes() != item.value().sizes()) {
      value = value.view({config.kv_heads, d, config.width})
                  .repeat_interleave(config.heads / config.kv_heads, 0)
                  .view({config.width, config.width});
    }
    item.value().copy_(value);
  }
}

TEST(Llama, GroupedQueriesAreMultiHeadAttentionWithRepeatedKeysAndValues) {
  for (const std::int64_t kv_heads : {1, 2, 4}) {
    Llama grouped(tiny(kv_heads));
    Llama full(tiny(4));
    fill_by_rule(*grouped);
    copy_with_heads_repeated(*grouped, *full);
    const auto ids = ids_by_rule(3, 7, 11);
    EXPECT_TRUE(
        torch::allclose(grouped->forward(ids), full->forward(ids), 1e-5, 1e-6))
        << "kv_heads " << kv_heads;
  }
}

TEST(Llama, ZeroKvHeadsAreAsManyAsHeads) {
  const Llama model(tiny(0));
  EXPECT_EQ(model->config().kv_heads, 4);
  EXPECT_THAT(
      model->named_parameters()["model.layers.1.self_attn.k_proj.weight"]
          .sizes(),
      ElementsAre(16, 16));
}

TEST(Llama, TheIntermediateWidthIsTheOneOfTheReleasedModels) {
  EXPECT_EQ(llama_intermediate(4096), 11008);  // 7B
  EXPECT_EQ(llama_intermediate(5120), 13824);  // 13B
  EXPECT_EQ(llama_intermediate(8192), 22016);  // 65B
  EXPECT_EQ(llama_intermediate(2048), 5632);   // TinyLlama 1.1B
  EXPECT_EQ(llama_intermediate(256), 768);
  auto config = tiny();
  config.intermediate = 0;
  EXPECT_EQ(Llama(config)->config().intermediate, 256);
}

TEST(Llama, TinyLlamaHasOnePointOneBillionParameters) {
  const Llama model(LlamaConfig{
      .layers = 22,
      .width = 2048,
      .heads = 32,
      .kv_heads = 4,
      .sequence = 2048,
      .vocabulary = 32000,
      .device = torch::kMeta});
  std::int64_t count = 0;
  for (const auto& parameter : model->parameters()) {
    count += parameter.numel();
  }
  EXPECT_EQ(count, 1'100'048'384);
}

TEST(Llama, InitialValuesAreHuggingFaces) {
  const Llama model(LlamaConfig{.layers = 2, .kv_heads = 2});
  for (const auto& item : model->named_parameters()) {
    const auto& value = item.value();
    if (value.dim() == 1) {
      EXPECT_TRUE(value.eq(1).all().item<bool>()) << item.key();
      continue;
    }
    EXPECT_NEAR(value.std().item<double>(), 0.02, 5e-4) << item.key();
    EXPECT_NEAR(value.mean().item<double>(), 0.0, 5e-4) << item.key();
  }
}

TEST(Llama, NormsOfBf16AreTakenInFp32) {
  const auto config = tiny();
  LlamaRmsNorm norm(config.width, config);
  {
    const torch::NoGradGuard no_grad;
    norm->weight.fill_(1.0);
  }
  norm->to(torch::kBFloat16);
  const auto x = (torch::arange(32, torch::kFloat) * 0.7)
                     .sin()
                     .mul(100.0)
                     .view({2, 16})
                     .to(torch::kBFloat16);
  const auto expected =
      norm_by_hand(x.to(torch::kFloat), torch::ones({16}), 1e-6)
          .to(torch::kBFloat16);
  EXPECT_TRUE(torch::equal(norm->forward(x), expected));
}

TEST(Llama, OnMetaItHasShapesAndNoMemory) {
  auto config = tiny();
  config.device = torch::kMeta;
  const Llama ghost(config);
  config.device = torch::kCPU;
  const Llama real(config);
  expect_shapes_without_memory(*ghost, *real);
}

// Gives memory to a parameter on the meta device, which stays the same object. set_data() refuses
// another kind of device, so this does what it does inside.
void give_memory(const Tensor& parameter) {
  parameter.unsafeGetTensorImpl()->shallow_copy_from(
      torch::empty(parameter.sizes()).getIntrusivePtr());
}

TEST(Llama, ValuesGivenModuleByModuleAreThoseOfTheConstructor) {
  auto config = tiny();
  config.seed = 9;
  Llama expected(config);
  config.device = torch::kMeta;
  Llama model(config);
  // The last module first, because the order must not matter.
  auto modules = model->named_modules().pairs();
  std::reverse(modules.begin(), modules.end());
  for (auto& [name, module] : modules) {
    for (auto& item : module->named_parameters(/*recurse=*/false)) {
      give_memory(item.value());
      model->reset_parameter(name + "." + item.key(), item.value());
    }
  }
  const auto values = expected->named_parameters();
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), values[item.key()])) << item.key();
  }
  const auto ids = ids_by_rule(2, 7, 11);
  const auto loss = model->loss(ids, ids);
  EXPECT_TRUE(torch::equal(loss, expected->loss(ids, ids)));
  loss.backward();
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(item.value().grad().defined()) << item.key();
  }
}

TEST(Llama, RefusesWhatMakesNoModelNamingExpectedAndFound) {
  auto config = tiny(3);
  EXPECT_EQ(
      refusal<Llama>(config),
      "[models] expected heads that kv_heads divide, found heads 4 and "
      "kv_heads 3");
  config = tiny(8);
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("kv_heads 8"));
  config = tiny(-1);
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("kv_heads -1"));
  config = tiny();
  config.heads = 16;
  EXPECT_THAT(
      refusal<Llama>(config),
      HasSubstr("even width of each head, found head_width 1"));
  config = tiny();
  config.head_width = 3;
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("found head_width 3"));
  config = tiny();
  config.sliding_window = -1;
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("sliding_window -1"));
  config = tiny();
  config.rope_scaling = {.kind = RopeKind::kLinear, .factor = 0.5};
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("rope_scaling.factor 0.5"));
  config.rope_scaling = {
      .kind = RopeKind::kLlama3, .factor = 8.0, .low_freq_factor = 4.0};
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("low_freq_factor 4"));
  config.rope_scaling = {.kind = RopeKind::kYarn, .beta_fast = 1.0};
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("beta_slow 1"));
  config.rope_scaling = {.kind = RopeKind::kYarn, .attention_factor = -1.0};
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("attention_factor -1"));
  config = tiny();
  config.heads = 5;
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("width 16 and heads 5"));
  config = tiny();
  config.layers = 0;
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("layers 0"));
  config = tiny();
  config.intermediate = -4;
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("intermediate -4"));
  config = tiny();
  config.rope_theta = 0.0;
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("rope_theta 0"));
  config = tiny();
  config.norm_epsilon = 0.0;
  EXPECT_THAT(refusal<Llama>(config), HasSubstr("norm_epsilon 0"));
}

}  // namespace
}  // namespace sherd::models
