// SPDX-License-Identifier: Apache-2.0
//
// A model of `sherd train`, from its checkpoint or, by plain LibTorch, from an
// archive of `sherd checkpoint merge --torch`: logits for a row of tokens, and
// how it goes on greedily.
//
//   print_logits CHECKPOINT|model.pt gpt|llama LAYERS WIDTH HEADS KV_HEADS SEQUENCE TOKENS
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/models/gpt.h>
#include <sherd/models/llama.h>
#include <torch/torch.h>

namespace {

constexpr std::int64_t kVocabulary = 256;

std::shared_ptr<sherd::models::LanguageModel> model_of(char** words) {
  const auto number = [&](int i) { return std::atoll(words[i]); };
  if (std::string(words[0]) == "llama") {
    return std::make_shared<sherd::models::LlamaImpl>(
        sherd::models::LlamaConfig{
            .layers = number(1),
            .width = number(2),
            .heads = number(3),
            .kv_heads = number(4),
            .sequence = number(5),
            .vocabulary = kVocabulary,
            .seed = 9});
  }
  return std::make_shared<sherd::models::GptImpl>(sherd::models::GptConfig{
      .layers = number(1),
      .width = number(2),
      .heads = number(3),
      .sequence = number(5),
      .vocabulary = kVocabulary,
      .seed = 9});
}

void load(sherd::models::LanguageModel& model, const std::string& path) {
  if (path.ends_with(".pt")) {
    torch::serialize::InputArchive archive;
    archive.load_from(path);
    model.load(archive);
    return;
  }
  sherd::CheckpointState state;
  for (const auto& parameter : model.named_parameters()) {
    state.add(
        "model",
        {.name = parameter.key(),
         .shape = parameter.value().sizes().vec(),
         .elements = parameter.value()});
  }
  sherd::load_checkpoint(
      sherd::World::single(), path, state, {.strict = false});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 9) {
    return 2;
  }
  const torch::NoGradGuard no_grad;
  const auto model = model_of(argv + 2);
  load(*model, argv[1]);
  model->eval();
  const auto count = std::atoll(argv[8]);
  std::vector<std::int64_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back((37 * i + 65) % kVocabulary);
  }
  const auto logits =
      model->forward(torch::tensor(tokens).unsqueeze(0)).reshape({-1});
  for (std::int64_t i = 0; i < logits.numel(); ++i) {
    std::printf("%.9g\n", logits[i].item<double>());
  }
  for (const auto token :
       model->generate(tokens, {.tokens = 12, .temperature = 0.0})) {
    std::printf("token %lld\n", static_cast<long long>(token));
  }
  return 0;
}
