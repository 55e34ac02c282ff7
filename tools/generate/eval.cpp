// SPDX-License-Identifier: Apache-2.0
//
// sherd-eval, executed by `sherd eval`: how well a model predicts a text, and how often it finds
// the right one of several choices most likely. On several ranks the model is sharded over them.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include <sherd/data/corpus.h>
#include <sherd/data/token_file.h>
#include <sherd/world/world.h>
#include "format_text.h"
#include "generate/load_model.h"
#include "generate/model_flags.h"
#include "generate/model_source.h"
#include "generate/model_tokens.h"
#include "generate/scoring.h"
#include "option_adder.h"
#include "parse_arguments.h"
#include "text_file.h"
#include "tool_main.h"

namespace sherd::tools {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  ModelFlags model;
  std::vector<std::string> data;
  std::string choices;
  std::int64_t seq = 0;  // 0 means the model's.
};

void add_options(CLI::App& app, Arguments& given) {
  add_model_flags(app, given.model);
  const auto add = option_adder(&app);
  add("--data", given.data, "FILE...",
      "Texts, token files of `sherd data prepare` or .bin of uint16 ids:\n"
      "print loss and perplexity of each and of all together");
  add("--choices", given.choices, "FILE.jsonl",
      "Tasks, one a line: {\"prompt\": TEXT, \"choices\": [TEXT, ...],\n"
      "\"answer\": INDEX}. Print how often the right choice has the "
      "highest\n"
      "mean log likelihood of its tokens");
  add("--seq", given.seq, "N [0]",
      "Tokens of --data that the model sees at a time; 0: all it can");
  app.footer(
      "Examples:\n"
      "  sherd eval --from runs/20260102-030405 --data my/test.txt more.txt\n"
      "  sherd eval --from my/Qwen2-0.5B --choices tasks.jsonl\n"
      "  sherd run -n 2 -- sherd eval --from my/Llama-3.2-1B --data test.txt");
}

void check(const Arguments& given, const ModelSource& source) {
  if (given.data.empty() == given.choices.empty()) {
    throw Error(
        std::string("expected --data or --choices, found ") +
        (given.data.empty() ? "neither" : "both"));
  }
  if (given.seq != 0 && given.data.empty()) {
    throw Error(
        "--seq: expected none with --choices, which are read whole, found " +
        std::to_string(given.seq));
  }
  if (given.seq < 0 || given.seq > source.config.seq) {
    throw Error(
        "--seq: expected 0 to " + std::to_string(source.config.seq) +
        ", the positions of the model, found " + std::to_string(given.seq));
  }
}

// The token ids of a token file, or those of a text by the model's tokenizer, which is loaded into
// `tokens` for the first text: a model that was trained on ids has none.
std::vector<std::int64_t> ids_of(
    const std::string& path,
    const ModelSource& source,
    std::optional<ModelTokens>& tokens) {
  std::vector<std::int64_t> ids;
  if (std::filesystem::is_directory(path)) {
    throw Error(
        path +
        ": expected a file, found a folder; name a file in it, such as the "
        "validation.tokens of `sherd data prepare`");
  }
  if (path.ends_with(".bin") || path.ends_with(".tokens")) {
    if (path.ends_with(".tokens")) {
      const data::TokenFile file(path);
      expect_tokenizer_of(source, path, file.tokenizer_digest());
    }
    const data::Corpus corpus(path, {.vocabulary = source.vocabulary});
    ids.resize(static_cast<std::size_t>(corpus.tokens()));
    corpus.copy(0, corpus.tokens(), ids.data());
  } else {
    if (!tokens) {
      tokens.emplace(source);
    }
    ids = tokens->encode_beginning(text_in(path), path);
  }
  if (ids.size() < 2) {
    throw Error(
        path + ": expected at least 2 tokens, found " +
        std::to_string(ids.size()));
  }
  return ids;
}

// A task as tokens.
struct EncodedTask {
  std::vector<std::int64_t> prompt = {};
  std::vector<std::vector<std::int64_t>> choices = {};
  std::size_t answer = 0;
};

EncodedTask encoded(
    const ChoiceTask& task, const ModelSource& source, ModelTokens& tokens) {
  const auto what = "'" + task.prompt.substr(0, 60) + "'";
  EncodedTask result{
      .prompt = tokens.encode_beginning(task.prompt, what),
      .answer = task.answer};
  for (const auto& choice : task.choices) {
    result.choices.push_back(tokens.encode(choice, what));
    const auto size = result.choices.back().size();
    const auto all = static_cast<std::int64_t>(result.prompt.size() + size);
    if (size == 0 || all > source.config.seq) {
      throw Error(
          what + ": expected choices of at least 1 token, and at most " +
          std::to_string(source.config.seq) + " with the prompt, found " +
          std::to_string(size) + " and " + std::to_string(all));
    }
  }
  return result;
}

std::vector<EncodedTask> tasks_of(
    const std::string& path, const ModelSource& source) {
  std::vector<EncodedTask> tasks;
  const auto parsed = parse_choice_tasks(text_in(path), path);
  ModelTokens tokens(source);
  for (const auto& task : parsed) {
    tasks.push_back(encoded(task, source, tokens));
  }
  return tasks;
}

// The token ids of each file, in order.
std::vector<std::vector<std::int64_t>> texts_of(
    const std::vector<std::string>& paths, const ModelSource& source) {
  std::vector<std::vector<std::int64_t>> texts;
  std::optional<ModelTokens> tokens;
  for (const auto& path : paths) {
    texts.push_back(ids_of(path, source, tokens));
  }
  return texts;
}

Json json_of(const TextScore& score) {
  return {
      {"tokens", score.tokens},
      {"loss", score.loss},
      {"perplexity", score.perplexity()}};
}

Json evaluate_texts(
    const World& world,
    models::LanguageModel& model,
    const std::vector<std::string>& paths,
    const std::vector<std::vector<std::int64_t>>& texts,
    std::int64_t seq) {
  TextScore all;
  auto files = Json::array();
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto score = score_text(
        world, model, texts[i], seq > 0 ? seq : model.positions_max());
    files.push_back(json_of(score));
    files.back()["path"] = paths[i];
    all += score;
  }
  auto found = json_of(all);
  found["files"] = files;
  return found;
}

Json evaluate_choices(
    models::LanguageModel& model, const std::vector<EncodedTask>& tasks) {
  std::size_t right = 0;
  auto chosen = Json::array();
  for (const auto& task : tasks) {
    std::vector<double> scores;
    for (const auto& choice : task.choices) {
      scores.push_back(score_choice(model, task.prompt, choice));
    }
    if (std::any_of(scores.begin(), scores.end(), [](double score) {
          return std::isnan(score);
        })) {
      throw Error(
          "--choices: expected log likelihoods, found NaN for a choice of "
          "task " +
              std::to_string(chosen.size() + 1) +
              "; are all weights of the model finite?",
          ErrorCode::kAborted);
    }
    const auto best = static_cast<std::size_t>(
        std::max_element(scores.begin(), scores.end()) - scores.begin());
    right += best == task.answer ? 1U : 0U;
    chosen.push_back(best);
  }
  return {
      {"tasks", tasks.size()},
      {"right", right},
      {"accuracy",
       static_cast<double>(right) / static_cast<double>(tasks.size())},
      {"chosen", chosen}};
}

std::string score_line(const Json& score) {
  return format(
      "%lld tokens, loss %.4f, perplexity %.3f",
      score["tokens"].get<long long>(), score["loss"].get<double>(),
      score["perplexity"].get<double>());
}

void print_scores(const Json& found) {
  const auto& files = found["files"];
  for (const auto& file : files) {
    if (files.size() > 1) {
      std::printf(
          "%s: %s\n", file["path"].get<std::string>().c_str(),
          score_line(file).c_str());
    }
  }
  std::printf(
      "%s%s; %.2f s\n", files.size() > 1 ? "all: " : "",
      score_line(found).c_str(), found["seconds"].get<double>());
}

void print(const Json& found, bool json) {
  if (json) {
    // Names of files may be invalid UTF-8.
    std::puts(
        found.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)
            .c_str());
  } else if (found.contains("files")) {
    print_scores(found);
  } else {
    std::printf(
        "%lld of %lld right, accuracy %.4f; %.2f s\n",
        found["right"].get<long long>(), found["tasks"].get<long long>(),
        found["accuracy"].get<double>(), found["seconds"].get<double>());
  }
}

void evaluate(const Arguments& given) {
  const auto dtype = dtype_of(given.model);
  const auto source = find_model(given.model.from, given.model.weights);
  check(given, source);
  const auto texts = texts_of(given.data, source);
  const auto tasks = given.choices.empty() ? std::vector<EncodedTask>()
                                           : tasks_of(given.choices, source);
  auto world = World::from_environment();
  auto loaded = load_model(world, source, dtype);
  const auto begin = std::chrono::steady_clock::now();
  auto found = tasks.empty()
      ? evaluate_texts(world, *loaded.model, given.data, texts, given.seq)
      : evaluate_choices(*loaded.model, tasks);
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  found["seconds"] = took.count();
  if (world.rank() == 0) {
    print(found, given.model.json);
  }
  if (loaded.fsdp) {
    loaded.fsdp->close();
  }
  world.close();
}

int eval_command(int argc, char** argv) {
  CLI::App app(
      "Measure how well a model predicts a text, or chooses", "sherd eval");
  Arguments given;
  add_options(app, given);
  if (parse_arguments(app, words_of(argc, argv))) {
    evaluate(given);
  }
  return 0;
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  return sherd::tools::tool_main(argc, argv, sherd::tools::eval_command);
}
