// SPDX-License-Identifier: Apache-2.0
//
// sherd-generate, executed by `sherd generate`: a model continues a text. On several ranks it is
// sharded over them; all make the same tokens and rank 0 prints.
#include <unistd.h>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include <sherd/world/world.h>
#include "generate/load_model.h"
#include "generate/model_flags.h"
#include "generate/model_source.h"
#include "generate/model_tokens.h"
#include "generate/text_stream.h"
#include "option_adder.h"
#include "parse_arguments.h"
#include "terminal_text.h"
#include "tool_main.h"

namespace sherd::tools {
namespace {

struct Arguments {
  ModelFlags model;
  std::string prompt;
  models::GenerateOptions options{.tokens = 100, .temperature = 0.8};
};

void add_options(CLI::App& app, Arguments& given) {
  auto& options = given.options;
  add_model_flags(app, given.model);
  const auto add = option_adder(&app);
  add("--prompt", given.prompt, "TEXT", "The text to continue")->required();
  add("--tokens", options.tokens, "N [100]",
      "How many to add, fewer where the model ends the text");
  add("--temperature", options.temperature, "X [0.8]",
      "0: always the likeliest token; higher: more variety");
  add("--top-k", options.top_k, "N [0]",
      "Draw from so many of the likeliest tokens; 0: all");
  add("--top-p", options.top_p, "P [1.0]",
      "Draw from the fewest of the likeliest tokens that together have\n"
      "this probability");
  add("--seed", options.seed, "N [0]", "For drawing tokens");
  app.footer(
      "Examples:\n"
      "  sherd generate --from runs/20260102-030405 --prompt 'The sea'\n"
      "  sherd generate --from my/Qwen2-0.5B --prompt 'def add(' "
      "--temperature 0\n"
      "  sherd run -n 2 -- sherd generate --from my/Llama-3.2-1B --prompt Hi");
}

// The tokens of the prompt, checked against the model.
std::vector<std::int64_t> prompt_ids(
    const Arguments& given, const ModelSource& source, ModelTokens& tokens) {
  auto ids = tokens.encode_beginning(given.prompt, "--prompt");
  if (static_cast<std::int64_t>(ids.size()) > source.config.seq) {
    throw Error(
        "--prompt: expected at most " + std::to_string(source.config.seq) +
        " tokens, the positions of the model, found " +
        std::to_string(ids.size()));
  }
  return ids;
}

void print(const std::string& text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  print_at_once(terminal ? printable_on_terminal(text) : text);
}

// The text of the tokens. Rank 0 prints it as it comes or, with --json, at the end.
class Continuation {
 public:
  Continuation(
      const Arguments& given,
      const data::Tokenizer& tokenizer,
      const std::vector<std::int64_t>& prompt,
      int rank)
      : stream_(tokenizer, prompt),
        prompt_(prompt),
        before_(given.prompt),
        json_(given.model.json),
        prints_(rank == 0) {}

  void add(std::int64_t id) { show(stream_.add(id)); }

  void finish(double seconds) {
    show(stream_.finish());
    if (prints_ && json_) {
      print_json(seconds);
    } else if (prints_) {
      print("\n");
    }
  }

 private:
  void show(const std::string& piece) {
    text_ += piece;
    if (prints_ && !json_) {
      print(std::exchange(before_, "") + piece);
    }
  }

  void print_json(double seconds) const {
    const std::vector<std::int64_t> made(
        stream_.ids().begin() + static_cast<std::ptrdiff_t>(prompt_.size()),
        stream_.ids().end());
    using Json = nlohmann::ordered_json;
    const Json json = {
        {"prompt_ids", prompt_},
        {"ids", made},
        {"text", text_},
        {"seconds", seconds},
        {"tokens_per_s", static_cast<double>(made.size()) / seconds}};
    std::puts(
        json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  }

  TextStream stream_;
  const std::vector<std::int64_t> prompt_;
  std::string before_;  // The prompt's text, until it is printed.
  std::string text_;    // The text after the prompt.
  const bool json_;
  const bool prints_;
};

// Rank 0's token is used on every rank, since hosts may round differently.
std::int64_t agreed(const World& world, std::int64_t id) {
  return world.size() == 1 ? id
                           : static_cast<std::int64_t>(world.all_gather(
                                 {static_cast<double>(id)})[0][0]);
}

void generate(const Arguments& given) {
  const auto dtype = dtype_of(given.model);
  const auto source = find_model(given.model.from, given.model.weights);
  ModelTokens tokens(source);
  const auto prompt = prompt_ids(given, source, tokens);
  auto world = World::from_environment();
  auto loaded = load_model(world, source, dtype);
  Continuation made(given, tokens.tokenizer(), prompt, world.rank());
  auto options = given.options;
  options.stop_ids = source.stop_ids;
  if (const auto end = tokens.tokenizer().special().eos) {
    options.stop_ids.push_back(*end);
  }
  options.on_token = [&](std::int64_t id) {
    const auto taken = agreed(world, id);
    made.add(taken);
    return taken;
  };
  const auto begin = std::chrono::steady_clock::now();
  loaded.model->generate(prompt, options);
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  made.finish(took.count());
  if (loaded.fsdp) {
    loaded.fsdp->close();
  }
  world.close();
}

int generate_command(int argc, char** argv) {
  CLI::App app("Continue a text with a trained model", "sherd generate");
  Arguments given;
  add_options(app, given);
  if (parse_arguments(app, words_of(argc, argv))) {
    generate(given);
  }
  return 0;
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  return sherd::tools::tool_main(argc, argv, sherd::tools::generate_command);
}
