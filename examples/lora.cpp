// SPDX-License-Identifier: Apache-2.0
//
// Fine-tunes adapters (LoRA) beside the frozen weights of a Llama, saves them in PEFT's format, and
// loads them again:
//   sherd run -n 2 --no-prefix -- build/release/examples/example_lora [HUGGING_FACE_FOLDER]
// The folder is that of a LlamaForCausalLM with all weights in model.safetensors; without one, a
// small Llama begins with random weights. The task is to repeat a sequence of token ids.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <sherd/sherd.h>
#include <torch/torch.h>

namespace {

constexpr const char* kAdapters = "runs/lora";
constexpr std::int64_t kHalf = 8;  // Ids to repeat.

// The value of a field as written in JSON text; empty if there is none, or if it is null. Your own
// program would use a JSON library.
std::string value_of(const std::string& json, const std::string& field) {
  const auto name = json.find("\"" + field + "\"");
  if (name == std::string::npos) {
    return "";
  }
  const auto begin =
      json.find_first_not_of(": \t\r\n", name + field.size() + 2);
  if (begin == std::string::npos) {
    return "";
  }
  const auto end = json.find_first_of(", }\t\r\n", begin);
  const auto value = json.substr(begin, end - begin);
  return value == "null" ? "" : value;
}

// Throws if the config.json asks for more than this example supports.
void check_readable(const std::string& json) {
  const std::pair<const char*, const char*> expected[] = {
      {"model_type", "\"llama\""}, {"hidden_act", "\"silu\""},
      {"rope_scaling", "null"},    {"rope_type", "\"default\""},
      {"attention_bias", "false"}, {"mlp_bias", "false"}};
  for (const auto& [field, value] : expected) {
    const auto found = value_of(json, field);
    if (!found.empty() && found != value) {
      throw sherd::Error(
          std::string("config.json: expected ") + field + " " + value +
          ", found " + found);
    }
  }
}

// Reads the shape of a Llama from the folder's config.json.
sherd::models::LlamaConfig config_of(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  std::ostringstream text;
  text << file.rdbuf();
  if (!file.good()) {
    throw sherd::Error("cannot read " + folder + "/config.json");
  }
  const auto json = text.str();
  check_readable(json);
  const auto number = [&](const std::string& field, double otherwise) {
    const auto found = value_of(json, field);
    return found.empty() ? otherwise : std::stod(found);
  };
  const auto integer = [&](const std::string& field) {
    return static_cast<std::int64_t>(number(field, 0.0));
  };
  return {
      .layers = integer("num_hidden_layers"),
      .width = integer("hidden_size"),
      .heads = integer("num_attention_heads"),
      .head_width = integer("head_dim"),
      .kv_heads = integer("num_key_value_heads"),
      .intermediate = integer("intermediate_size"),
      .sequence = 2 * kHalf,
      .vocabulary = integer("vocab_size"),
      .rope_theta = number("rope_theta", 10000.0),
      .norm_epsilon = number("rms_norm_eps", 1e-6),
      .tied_head = value_of(json, "tie_word_embeddings") == "true"};
}

// A Llama of which this rank holds a part, and the objects that train it.
struct Tuned {
  sherd::models::Llama model;
  sherd::FullyShardedDataParallel fsdp;
};

// Nothing has memory before it is sharded, and then each rank only has its shards.
Tuned shard(
    const sherd::World& world,
    const std::string& folder,
    const sherd::models::LoraConfig& lora) {
  auto config = folder.empty()
      ? sherd::models::
            LlamaConfig{.layers = 4, .width = 128, .sequence = 2 * kHalf, .vocabulary = 64}
      : config_of(folder);
  config.device = at::kMeta;
  sherd::models::Llama model(config);
  model->add_lora(lora);
  sherd::FullyShardOptions options;
  options.strategy = sherd::Strategy::kShardGradOp;  // Room for the whole base.
  options.exchange = sherd::ExchangeKind::kCollective;
  options.initialise = [&](const std::string& name, const at::Tensor& value) {
    model->reset_parameter(name, value);
  };
  auto fsdp = sherd::fully_shard(*model, world, options);
  if (!folder.empty()) {
    sherd::CheckpointState base;
    base.add(sherd::split(fsdp.named_parameters(), {"*.lora_*"}).rest);
    sherd::load_tensor_files(world, {folder + "/model.safetensors"}, base);
  }
  return {model, std::move(fsdp)};
}

// The loss on rows that contain the same ids twice.
at::Tensor loss_of(sherd::models::Llama& model, std::uint64_t seed) {
  torch::manual_seed(seed);
  const auto once = torch::randint(1, 32, {16, kHalf}, torch::kLong);
  const auto row = torch::cat({once, once}, 1);
  return model->loss(
      row.narrow(1, 0, 2 * kHalf - 1), row.narrow(1, 1, 2 * kHalf - 1));
}

// What each step gathers, in percent of all parameters.
double percent_gathered(const sherd::ShardReport& report) {
  std::int64_t all = 0;
  for (const auto& unit : report.by_unit) {
    all += unit.bytes;
  }
  return 100.0 * static_cast<double>(report.plan.gathered_bytes) /
      static_cast<double>(all);
}

double evaluate(sherd::models::Llama& model) {
  const torch::NoGradGuard no_grad;
  return loss_of(model, 1'000'000).item<double>();
}

int tune(const std::string& folder) {
  auto world = sherd::World::from_environment();
  const sherd::models::LoraConfig lora = {
      .rank = 8,
      .alpha = 16,
      .target_modules = {"q_proj", "k_proj", "v_proj", "o_proj"},
      .base_model = folder};
  double before = 0;
  double after = 0;
  {
    auto [model, fsdp] = shard(world, folder, lora);
    sherd::AdamW adamw(fsdp.named_parameters(), {.learning_rate = 1e-2});
    before = evaluate(model);
    for (int step = 0; step < 30; ++step) {
      const auto row = step * world.size() + world.rank();
      loss_of(model, static_cast<std::uint64_t>(row)).backward();
      adamw.step();
      adamw.zero_grad();
    }
    after = evaluate(model);
    sherd::save_lora(world, kAdapters, fsdp.named_parameters(), lora);
    const auto percent = percent_gathered(fsdp.report());
    if (world.rank() == 0) {
      std::printf(
          "loss %.2f -> %.2f; a step gathers %.1f %% of the model\n", before,
          after, percent);
    }
    fsdp.close();
  }
  auto [model, fsdp] = shard(world, folder, sherd::read_lora_config(kAdapters));
  sherd::load_lora(world, kAdapters, fsdp.named_parameters());
  const auto loaded = evaluate(model);
  if (world.rank() == 0) {
    std::printf(
        "%s: %s after loading\n", kAdapters,
        loaded == after ? "the same" : "another loss");
  }
  fsdp.close();
  world.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return sherd::run_main(
      argc, argv, [&] { return tune(argc > 1 ? argv[1] : ""); });
}
