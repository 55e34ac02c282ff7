// SPDX-License-Identifier: Apache-2.0
//
// Fine-tuning with LoRA: the frozen base is gathered once, the losses are those of one process, and
// adapters are files in PEFT's format.
#include <sherd/ckpt/lora_files.h>

#include <fstream>
#include <sstream>
#include <gmock/gmock.h>
#include <sherd/models/llama.h>
#include <sherd/optim/adamw.h>
#include "support/error_of.h"
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

namespace sherd::test {
namespace {

using models::Llama;
using models::LlamaConfig;
using models::LoraConfig;
using sherd::testing::ScratchFolder;
using ::testing::HasSubstr;

LlamaConfig small_config() {
  return {
      .layers = 3,
      .width = 32,
      .heads = 2,
      .intermediate = 64,
      .sequence = 8,
      .vocabulary = 32};
}

LoraConfig lora() { return {.rank = 2, .alpha = 4.0}; }

Llama with_adapters() {
  Llama model(small_config());
  model->add_lora(lora());
  return model;
}

torch::Tensor loss_of(Llama& model, int batch, int rank) {
  const auto ids =
      (torch::arange(2 * 9).view({2, 9}) * (3 + rank) + batch) % 32;
  return model->loss(ids.slice(1, 0, 8), ids.slice(1, 1, 9));
}

struct Trained {
  ShardReport report;
  std::int64_t step_bytes = 0;  // Gathered in each step but the first two.
};

Trained train(const World& world, Llama model, FullyShardOptions options) {
  auto fsdp = fully_shard(*model, world, options);
  AdamW adamw(fsdp.named_parameters(), {.learning_rate = 0.01});
  std::int64_t before = 0;
  Trained trained;
  for (int step = 0; step < 6; ++step) {
    loss_of(model, step, world.rank()).backward();
    adamw.step();
    adamw.zero_grad();
    const auto now = fsdp.report().unsharded_bytes;
    if (step > 1) {
      EXPECT_TRUE(step == 2 || now - before == trained.step_bytes);
      trained.step_bytes = now - before;
    }
    before = now;
  }
  trained.report = fsdp.report();
  return trained;
}

// ---- What is gathered ----

TEST(Lora, TheBaseIsGatheredOnceAndEachStepGathersAdaptersAlone) {
  expect_all_ok(run_ranks(2, [](World world) {
    const auto options = over_messages({.strategy = Strategy::kShardGradOp});
    const auto tuned = train(world, with_adapters(), options);
    int adapters = 0;
    for (const auto& unit : tuned.report.by_unit) {
      if (unit.flats.front().trainable) {
        EXPECT_GE(unit.gathers, 6) << unit.name;
        ++adapters;
      } else {
        EXPECT_EQ(unit.gathers, 1) << unit.name;
      }
    }
    EXPECT_EQ(adapters, 3);
    EXPECT_GT(tuned.step_bytes, 0);
    EXPECT_EQ(tuned.step_bytes, tuned.report.plan.gathered_bytes);
    const auto full = train(world, Llama(small_config()), options);
    EXPECT_EQ(full.step_bytes, full.report.plan.gathered_bytes);
    EXPECT_LE(tuned.step_bytes, full.step_bytes / 20);
  }));
}

// In a budget without room for the base a step gathers no more than full fine-tuning does.
TEST(Lora, APresetHasTheSameBytesWhateverIsFrozen) {
  expect_all_ok(run_ranks(2, [](World world) {
    const auto tuned = train(world, with_adapters(), over_messages());
    const auto full = train(world, Llama(small_config()), over_messages());
    std::int64_t adapters = 0;
    for (const auto& unit : tuned.report.by_unit) {
      adapters += unit.flats.front().trainable ? unit.bytes : 0;
    }
    EXPECT_GE(tuned.report.budget_bytes, full.report.budget_bytes);
    EXPECT_LE(
        tuned.report.budget_bytes, full.report.budget_bytes + 2 * adapters);
    EXPECT_LT(tuned.step_bytes, full.step_bytes);
    EXPECT_EQ(tuned.step_bytes, tuned.report.plan.gathered_bytes);
  }));
}

// ---- What is trained ----

TEST(Lora, LossesOfRanksEqualThoseOfOneProcess) {
  expect_all_ok(run_ranks(2, [](World world) {
    for (const auto exchange :
         {ExchangeKind::kCollective, ExchangeKind::kSharedMemory}) {
      RankParity options;
      options.steps = 5;
      options.tolerance = 1e-6;
      options.step =
          steps_of<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01));
      options.shard.exchange = exchange;
      expect_rank_parity<Llama>(world, with_adapters, loss_of, options);
    }
  }));
}

TEST(Lora, AnAdapterChangesNothingAtFirst) {
  expect_all_ok(run_processes(1, [](int, Rank&) {
    Llama base(small_config());
    auto model = with_adapters();
    EXPECT_TRUE(torch::equal(loss_of(base, 0, 0), loss_of(model, 0, 0)));
    for (const auto& item : model->named_parameters()) {
      EXPECT_EQ(
          item.value().requires_grad(), models::is_lora_parameter(item.key()));
    }
    EXPECT_THAT(
        error_of([&] { model->add_lora(lora()); }),
        HasSubstr("expected a model without adapters"));
    EXPECT_THAT(
        error_of([&] { base->add_lora({.target_modules = {"c_attn"}}); }),
        HasSubstr("found target c_attn"));
    EXPECT_THAT(
        error_of([&] { base->add_lora({.target_modules = {}}); }),
        HasSubstr("at least one projection, found target_modules []"));
    EXPECT_TRUE(base->parameters().front().requires_grad());
  }));
}

TEST(Lora, AdaptersHaveTheDtypeOfTheBase) {
  expect_all_ok(run_processes(1, [](int, Rank&) {
    Llama model(small_config());
    model->to(at::kBFloat16);
    model->add_lora(lora());
    for (const auto& item : model->named_parameters()) {
      EXPECT_EQ(item.value().scalar_type(), at::kBFloat16) << item.key();
    }
  }));
}

// ---- Files ----

constexpr const char* kPeftConfig = R"({
  "alpha_pattern": {},
  "auto_mapping": null,
  "base_model_name_or_path": "some/llama",
  "bias": "none",
  "fan_in_fan_out": false,
  "inference_mode": true,
  "init_lora_weights": true,
  "layers_to_transform": null,
  "lora_alpha": 16,
  "lora_dropout": 0.05,
  "modules_to_save": null,
  "peft_type": "LORA",
  "r": 2,
  "rank_pattern": {},
  "target_modules": ["o_proj"],
  "task_type": "CAUSAL_LM",
  "use_dora": false,
  "use_rslora": false
})";
LlamaConfig tiny_config() {
  return {
      .layers = 1,
      .width = 4,
      .heads = 2,
      .intermediate = 4,
      .sequence = 4,
      .vocabulary = 4};
}
constexpr const char* kA =
    "base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight";
constexpr const char* kB =
    "base_model.model.model.layers.0.self_attn.o_proj.lora_B.weight";

// As PEFT writes it: 8 numbers of A, [2, 4], then 8 of B, [4, 2].
std::string peft_file() {
  const auto entry = [](const char* name, const char* shape, int begin) {
    return "\"" + std::string(name) +
        "\":{\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":[" +
        std::to_string(begin) + "," + std::to_string(begin + 32) + "]}";
  };
  const auto header = "{\"__metadata__\":{\"format\":\"pt\"}," +
      entry(kA, "[2,4]", 0) + "," + entry(kB, "[4,2]", 32) + "}";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size() & 0xffU);
  file[1] = static_cast<char>(header.size() >> 8U);
  file += header;
  for (int i = 0; i < 16; ++i) {
    const float value = 0.5F * static_cast<float>(i) - 1.0F;
    file.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return file;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Lora, FilesOfPeftAreReadAndWritten) {
  const ScratchFolder folder;
  folder.file("peft/adapter_config.json", kPeftConfig);
  folder.file("peft/adapter_model.safetensors", peft_file());
  const auto peft = folder.path() + "/peft";
  const auto again = folder.path() + "/new/again";
  expect_all_ok(run_ranks(2, [&](World world) {
    const auto config = read_lora_config(peft);
    EXPECT_EQ(config.rank, 2);
    EXPECT_EQ(config.alpha, 16.0);
    EXPECT_EQ(config.target_modules, std::vector<std::string>{"o_proj"});
    EXPECT_EQ(config.base_model, "some/llama");
    Llama model(tiny_config());
    model->add_lora(config);
    auto fsdp = fully_shard(*model, world);
    load_lora(world, peft, fsdp.named_parameters());
    const auto all = full_parameters(*model, fsdp);
    const auto numbers = torch::arange(16, torch::kFloat) * 0.5 - 1.0;
    const std::string module = "model.layers.0.self_attn.o_proj.";
    EXPECT_TRUE(torch::equal(
        all[module + "lora_A.weight"], numbers.slice(0, 0, 8).view({2, 4})));
    EXPECT_TRUE(torch::equal(
        all[module + "lora_B.weight"], numbers.slice(0, 8, 16).view({4, 2})));
    save_lora(world, again, fsdp.named_parameters(), config);
    world.barrier();
    const auto saved = read_lora_config(again);
    EXPECT_EQ(saved.rank, config.rank);
    EXPECT_EQ(saved.alpha, config.alpha);
    EXPECT_EQ(saved.target_modules, config.target_modules);
    EXPECT_EQ(saved.base_model, config.base_model);
  }));
  const auto saved = text_of(again + "/adapter_model.safetensors");
  EXPECT_THAT(saved, HasSubstr(std::string("\"") + kA + "\""));
  EXPECT_THAT(saved, HasSubstr(std::string("\"") + kB + "\""));
  EXPECT_EQ(
      saved.substr(saved.size() - 64),
      peft_file().substr(peft_file().size() - 64));
  const auto json = text_of(again + "/adapter_config.json");
  EXPECT_THAT(json, HasSubstr("\"peft_type\": \"LORA\""));
  EXPECT_THAT(json, HasSubstr("\"task_type\": \"CAUSAL_LM\""));
}

TEST(Lora, WhatPeftCanAndSherdCannotIsAnErrorOnEveryRank) {
  const ScratchFolder folder;
  const std::string good = kPeftConfig;
  const auto with = [&](const std::string& from, const std::string& to) {
    auto text = good;
    text.replace(text.find(from), from.size(), to);
    folder.file("adapter_config.json", text);
    return error_of([&] { (void)read_lora_config(folder.path()); });
  };
  EXPECT_THAT(
      with("\"use_dora\": false", "\"use_dora\": true"),
      HasSubstr("expected use_dora to be null, false or empty, found true"));
  EXPECT_THAT(
      with("\"LORA\"", "\"IA3\""),
      HasSubstr("expected peft_type \"LORA\", found \"IA3\""));
  EXPECT_THAT(
      with("\"r\": 2,", ""),
      HasSubstr("expected r to be an integer of at least 1, found none"));
  EXPECT_THAT(
      with("\"r\": 2,", "\"r\": 2.5,"),
      HasSubstr("expected r to be an integer of at least 1, found 2.5"));
  EXPECT_THAT(
      with("[\"o_proj\"]", "\"all-linear\""),
      HasSubstr("expected target_modules to be a list of names, found "
                "\"all-linear\""));
  EXPECT_THAT(
      with("\"init_lora_weights\": true", "\"init_lora_weights\": \"pissa\""),
      HasSubstr("expected init_lora_weights to be a boolean or \"gaussian\", "
                "found \"pissa\""));
  EXPECT_THAT(
      with("\"r\": 2", "\"layer_replication\": [[0, 4]], \"r\": 2"),
      HasSubstr("expected layer_replication to be null, false or empty, found "
                "[[0,4]]"));
  EXPECT_THAT(
      with("\"r\": 2", "\"of_next_year\": 0.5, \"r\": 2"),
      HasSubstr("expected of_next_year to be null, false or empty, found 0.5"));
  EXPECT_EQ(with("\"r\": 2", "\"of_next_year\": {}, \"r\": 2"), "no error");
  EXPECT_THAT(
      error_of([&] { (void)read_lora_config(folder.path() + "/none"); }),
      HasSubstr("cannot read"));
  folder.file("adapter_model.safetensors", peft_file());
  expect_all_ok(run_ranks(2, [&](World world) {
    Llama model(tiny_config());
    const auto plain = fully_shard(*Llama(tiny_config()), world);
    EXPECT_THAT(
        error_of([&] {
          save_lora(world, folder.path(), plain.named_parameters(), lora());
        }),
        HasSubstr("expected adapters among the parameters, found none"));
    model->add_lora({.rank = 3, .target_modules = {"o_proj"}});
    const auto fsdp = fully_shard(*model, world);
    EXPECT_THAT(
        error_of([&] {
          save_lora(world, folder.path(), fsdp.named_parameters(), lora());
        }),
        HasSubstr("config's rank 2, found "
                  "model.layers.0.self_attn.o_proj.lora_A.weight of rank 3"));
    EXPECT_THAT(
        error_of(
            [&] { load_lora(world, folder.path(), fsdp.named_parameters()); }),
        HasSubstr("o_proj.lora_A.weight"));
  }));
}

}  // namespace
}  // namespace sherd::test
