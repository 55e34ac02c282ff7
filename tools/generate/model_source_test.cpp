// SPDX-License-Identifier: Apache-2.0
#include "generate/model_source.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <sherd/ckpt/checkpoint.h>
#include <torch/types.h>
#include "generate/load_model.h"
#include "generate/model_tokens.h"
#include "support/error_of.h"
#include "support/scratch_folder.h"
#include "text_file.h"

namespace sherd::tools {
namespace {

using sherd::testing::ScratchFolder;
using test::error_of;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr const char* kGpt2 =
    R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2,
        "n_positions": 16, "vocab_size": 256, "eos_token_id": 7})";

std::string refusal(const std::string& from) {
  return error_of([&] { find_model(from); });
}

TEST(ModelSource, SaysWhatAFolderHasInsteadOfAModel) {
  const ScratchFolder scratch;
  const auto& folder = scratch.path();
  EXPECT_EQ(
      refusal(folder + "/none"),
      folder +
          "/none: expected a run or checkpoint of sherd train, or a folder "
          "with config.json and model.safetensors of a Hugging Face model, "
          "found no such folder");
  EXPECT_THAT(refusal(scratch.file("text", "x")), EndsWith("found a file"));
  EXPECT_THAT(
      refusal(folder),
      EndsWith("found a folder without checkpoints and without config.json"));
  scratch.file("config.json", R"({"model": "gpt"})");
  EXPECT_THAT(refusal(folder), HasSubstr("found a run without checkpoints"));
  scratch.file("config.json", "");
  EXPECT_EQ(
      refusal(folder),
      folder +
          "/config.json: expected a JSON object, found 0 bytes that are no "
          "JSON");
  scratch.file("config.json", "[1]");
  EXPECT_THAT(refusal(folder), EndsWith("found array"));
  scratch.file("config.json", R"({"model_type": "mixtral"})");
  scratch.file("model.safetensors", "");
  EXPECT_THAT(refusal(folder), EndsWith("found mixtral"));
}

TEST(ModelSource, ReadsAFolderOfHuggingFace) {
  const ScratchFolder scratch;
  const auto& folder = scratch.path();
  scratch.file("config.json", kGpt2);
  EXPECT_EQ(
      refusal(folder), folder + ": expected model.safetensors, found none");
  scratch.file("pytorch_model.bin", "");
  EXPECT_THAT(refusal(folder), HasSubstr("found pytorch_model.bin alone"));
  const auto weights = scratch.file("model.safetensors", "");
  const auto source = find_model(folder);
  EXPECT_THAT(source.files, ElementsAre(weights));
  EXPECT_EQ(source.config.layers, 1);
  EXPECT_EQ(source.vocabulary, 256);
  EXPECT_THAT(source.stop_ids, ElementsAre(7));
  scratch.file("generation_config.json", R"({"eos_token_id": [8, 9]})");
  EXPECT_THAT(find_model(folder).stop_ids, ElementsAre(7, 8, 9));
}

TEST(ModelSource, KeepsTheTokensThatEndATextBesideTheOtherSettings) {
  const ScratchFolder scratch;
  const auto& folder = scratch.path();
  keep_stop_ids(folder, {});
  EXPECT_FALSE(std::filesystem::exists(folder + "/generation_config.json"));
  keep_stop_ids(folder, {7});
  EXPECT_THAT(text_in(folder + "/generation_config.json"), HasSubstr("7\n"));
  scratch.file("generation_config.json", R"({"eos_token_id": 8, "top_k": 5})");
  keep_stop_ids(folder, {7, 8});
  scratch.file("config.json", R"({"model_type": "gpt2", "n_embd": 8,
      "n_layer": 1, "n_head": 1, "n_positions": 16, "vocab_size": 256})");
  scratch.file("model.safetensors", "");
  EXPECT_THAT(find_model(folder).stop_ids, ElementsAre(8, 7));
  EXPECT_THAT(
      text_in(folder + "/generation_config.json"), HasSubstr("\"top_k\": 5"));
}

TEST(ModelSource, TakesTheFilesThatAnIndexLists) {
  const ScratchFolder scratch;
  const auto& folder = scratch.path();
  scratch.file("config.json", kGpt2);
  const auto index = scratch.file(
      "model.safetensors.index.json",
      R"({"weight_map": {"a": "2.safetensors", "b": "../1.safetensors",
                         "c": "2.safetensors"}})");
  EXPECT_THAT(
      find_model(folder).files,
      ElementsAre(folder + "/1.safetensors", folder + "/2.safetensors"));
  scratch.file("model.safetensors.index.json", "{}");
  EXPECT_EQ(
      refusal(folder),
      index + ": expected a weight_map of file names, found none");
}

TEST(ModelSource, HuggingFaceHasOneSetOfWeights) {
  const ScratchFolder scratch;
  scratch.file("config.json", kGpt2);
  scratch.file("model.safetensors", "");
  EXPECT_EQ(
      error_of([&] { find_model(scratch.path(), "ema"); }),
      scratch.path() +
          ": expected a run or checkpoint with --weights ema, found a Hugging "
          "Face model, which has one set of weights");
  EXPECT_EQ(
      error_of([&] { find_model(scratch.path(), "adamw"); }),
      "--weights: expected model or ema, found 'adamw'");
}

TEST(ModelSource, TokensOfAnotherTokenizerAreAnErrorThatNamesBoth) {
  const ScratchFolder scratch;
  const auto& folder = scratch.path();
  const auto bytes = data::tokenizer_digest(folder);
  ModelSource source{.weights = "x", .folder = folder, .vocabulary = 256};
  const auto expect = [&](std::uint64_t digest) {
    return error_of([&] { expect_tokenizer_of(source, "a.tokens", digest); });
  };
  EXPECT_EQ(expect(bytes), "no error");
  EXPECT_EQ(
      expect(7),
      "a.tokens: expected bytes, which the model in x reads, found tokens of "
      "another tokenizer (digest 7)");
  EXPECT_EQ(expect(0), "no error");  // A .bin file does not tell.
  source.vocabulary = 300;           // This model does not tell either.
  EXPECT_EQ(expect(7), "no error");
  const auto file = scratch.file("tokenizer.json", "{}");
  const auto own = data::tokenizer_digest(folder);
  EXPECT_NE(own, bytes);
  EXPECT_EQ(expect(own), "no error");
  EXPECT_EQ(
      expect(bytes),
      "a.tokens: expected tokens of " + file + " (digest " +
          std::to_string(own) + "), which the model in x reads, found bytes");
}

TEST(ModelTokens, AreBytesForASmallVocabularyOnly) {
  const ScratchFolder scratch;
  ModelSource source{.folder = scratch.path(), .vocabulary = 100};
  ModelTokens tokens(source);
  EXPECT_THAT(tokens.encode("AZ", "x"), ElementsAre(65, 90));
  EXPECT_THAT(tokens.encode("", "x"), ElementsAre());
  EXPECT_EQ(
      error_of([&] { tokens.encode("Az", "--prompt"); }),
      "--prompt: expected token ids below 100, the vocabulary of the model, "
      "found 122");
  EXPECT_EQ(
      error_of([&] { tokens.encode_beginning("", "--prompt"); }),
      "--prompt: expected a text of at least 1 token, found none");
  source.vocabulary = 257;
  EXPECT_EQ(
      error_of([&] { const ModelTokens none(source); }),
      scratch.path() +
          "/tokenizer.json: expected the tokenizer of a model with a "
          "vocabulary of 257, found no such file");
  source.trained_on_bytes = true;
  EXPECT_THAT(ModelTokens(source).encode("AZ", "x"), ElementsAre(65, 90));
}

// As --keep demands while a run goes on.
TEST(ModelSource, ACheckpointThatItsRunRemovesIsReplacedByTheNewerOne) {
  const ScratchFolder scratch;
  const auto run = scratch.path();
  const auto first = run + "/checkpoints/step-1";
  const auto second = run + "/checkpoints/step-2";
  const auto make = [&](const std::string& checkpoint) {
    std::filesystem::create_directories(checkpoint);
    std::ofstream(checkpoint + "/checkpoint.json") << "{}";
  };
  make(first);
  std::vector<std::string> read;
  const auto run_goes_on = [&](const std::string& checkpoint) {
    read.push_back(checkpoint);
    if (checkpoint == first) {
      make(second);
      std::filesystem::remove_all(first);
      throw Error("no such file");
    }
  };
  read_checkpoint(run, run_goes_on);
  EXPECT_THAT(read, ElementsAre(first, second));
  EXPECT_EQ(replacement_of(first, run), second);
  EXPECT_EQ(replacement_of(first, first), std::nullopt) << "it was named";
  EXPECT_EQ(replacement_of(second, run), std::nullopt) << "it is damaged";
}

TEST(ModelSource, WeightsThatItsRunRemovesAreThoseOfTheNewerCheckpoint) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() + "/checkpoints";
  const auto weight = torch::zeros({2});
  NamedParameters parameters;
  parameters.items.push_back({.name = "weight", .slice = weight});
  CheckpointState state;
  state.add(parameters);
  CheckpointSaver saver(World::single(), folder, {.keep_last = 1});
  for (const std::int64_t step : {1, 2}) {
    weight.fill_(static_cast<double>(step));
    saver.save(step, state);
  }
  weight.zero_();
  const auto removed = folder + "/step-1";
  load_weights(
      World::single(), {.from = scratch.path(), .weights = removed},
      parameters);
  EXPECT_EQ(weight[0].item<float>(), 2);
  EXPECT_THAT(
      error_of([&] {
        load_weights(
            World::single(), {.from = removed, .weights = removed}, parameters);
      }),
      HasSubstr(removed));
}

TEST(ModelTokens, ADamagedTokenizerIsAnErrorThatNamesIt) {
  const ScratchFolder scratch;
  const ModelSource source{.folder = scratch.path(), .vocabulary = 100};
  for (const char* text : {"", "{", "{\"model\": 1}", "\x80\x01"}) {
    const auto path = scratch.file("tokenizer.json", text);
    EXPECT_THAT(
        error_of([&] { const ModelTokens none(source); }), HasSubstr(path))
        << text;
  }
}

}  // namespace
}  // namespace sherd::tools
