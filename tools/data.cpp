// SPDX-License-Identifier: Apache-2.0
//
// sherd-data, executed by `sherd data`: turns text into tokens, and shows the result.
#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include <sherd/data/token_file.h>
#include <sherd/data/tokenizer.h>
#include "base/clock.h"
#include "base/parent_folder.h"
#include "data/prepare.h"
#include "format_text.h"
#include "option_adder.h"
#include "parse_arguments.h"
#include "tool_main.h"

namespace sherd::tools {
namespace {

constexpr std::size_t kReasonsMax = 20;

void print(const PrepareReport& report, const std::string& out, double s) {
  const auto shown = std::min(report.left_out.size(), kReasonsMax);
  for (std::size_t i = 0; i < shown; ++i) {
    std::printf(
        "left out  %s: %s\n", report.left_out[i].path.c_str(),
        report.left_out[i].refused.c_str());
  }
  if (shown < report.left_out.size()) {
    std::printf(
        "left out  %zu more files, all named in %s/prepared.json\n",
        report.left_out.size() - shown, out.c_str());
  }
  if (!report.has_eos) {
    std::printf(
        "note      no end-of-text token is written between documents; --eos "
        "sets one\n");
  }
  std::printf(
      "taken     %s, %s, %.1f MB, in %.1f s\n",
      counted(static_cast<std::int64_t>(report.taken), "file").c_str(),
      counted(report.documents, "document").c_str(),
      static_cast<double>(report.bytes) / 1e6, s);
  std::printf(
      "tokens    %lld, of which %lld in %lld documents for validation; "
      "vocabulary %lld\n",
      static_cast<long long>(report.tokens),
      static_cast<long long>(report.validation_tokens),
      static_cast<long long>(report.validation_documents),
      static_cast<long long>(report.vocabulary));
  std::printf("train     sherd train --data %s\n", shell_quoted(out).c_str());
}

void prepare_and_print(const PrepareOptions& options) {
  const double begin_s = seconds(SteadyClock().now());
  const bool live = ::isatty(STDERR_FILENO) == 1;
  const auto report = prepare(options, [&](std::size_t done, std::size_t all) {
    if (live) {
      std::fprintf(
          stderr, "\r%zu of %zu files%s", done, all, done == all ? "\n" : "");
    }
  });
  print(report, options.out, seconds(SteadyClock().now()) - begin_s);
}

std::string token_file(const std::string& path) {
  return std::filesystem::is_directory(path) ? path + "/train.tokens" : path;
}

// The tokenizer next to a token file, which must be the one that made it.
std::unique_ptr<data::Tokenizer> tokenizer_of(
    const std::string& path, const data::TokenFile& file) {
  const auto folder = parent_folder(path);
  auto tokenizer = data::tokenizer_file(folder).empty()
      ? data::byte_tokenizer()
      : data::load_tokenizer(folder);
  if (tokenizer->digest() != file.tokenizer_digest()) {
    throw Error(
        path + ": expected the tokenizer that made it in " + folder +
        ", found another one or none");
  }
  return tokenizer;
}

struct ShowOptions {
  std::string path;
  std::int64_t first = 0;
  std::int64_t count = 1;
};

void show(const ShowOptions& options) {
  if (options.first < 0 || options.count < 1) {
    throw Error(
        "expected --first of 0 or more and --count of 1 or more, found " +
        std::to_string(options.first) + " and " +
        std::to_string(options.count));
  }
  const auto path = token_file(options.path);
  const data::TokenFile file(path);
  const auto tokenizer = tokenizer_of(path, file);
  const auto left = std::max(file.documents() - options.first, std::int64_t{1});
  for (std::int64_t i = 0; i < std::min(left, options.count); ++i) {
    const auto document = options.first + i;
    const auto ids = file.document(document);
    const nlohmann::ordered_json json = {
        {"document", document}, {"ids", ids}, {"text", tokenizer->decode(ids)}};
    std::puts(json.dump().c_str());
  }
}

void verify_file(const std::string& path) {
  const data::TokenFile tokens(path);
  tokens.verify();
  std::printf(
      "%s: %lld documents, %lld tokens, as they were written\n", path.c_str(),
      static_cast<long long>(tokens.documents()),
      static_cast<long long>(tokens.tokens()));
}

void verify(const std::string& path) {
  const std::filesystem::path folder(path);
  const bool prepared = std::filesystem::is_directory(folder);
  verify_file(prepared ? (folder / "train.tokens").string() : path);
  const auto validation = folder / "validation.tokens";
  if (prepared && std::filesystem::exists(validation)) {
    verify_file(validation.string());
  }
}

void add_prepare(CLI::App& app, PrepareOptions& options) {
  auto* command =
      app.add_subcommand("prepare", "Turn text into a folder of tokens");
  const auto add = option_adder(command);
  add("inputs", options.inputs, "PATH", "Files and folders of text")
      ->required();
  add("--tokenizer", options.tokenizer, "FOLDER",
      "Folder with a tokenizer.json, or 'bytes'")
      ->required();
  add("--out", options.out, "FOLDER", "Folder to make")->required();
  add("--documents", options.documents.format, "KIND [auto]",
      "What a document is: file, line, paragraph, jsonl (a line of JSON), "
      "or auto, which is jsonl for .jsonl and .ndjson and file for others; "
      "of .parquet files it is always a row");
  add("--field,--column", options.documents.field, "NAME [text]",
      "Field of a JSON line, or column of a Parquet file, that is the "
      "text");
  add("--python", options.documents.python, "PROGRAM [python3]",
      "Python with pyarrow, which reads Parquet files");
  add("--eos", options.eos, "TOKEN",
      "Token at the end of each document, instead of the tokenizer's own");
  add("--validation", options.validation, "SHARE [0]",
      "Share of the documents that is kept to validate on");
  command->callback([&options] { prepare_and_print(options); });
}

int data_command(int argc, char** argv) {
  CLI::App app("Turn text into tokens to train on", "sherd data");
  app.require_subcommand(1);
  PrepareOptions prepared;
  add_prepare(app, prepared);
  ShowOptions shown;
  auto* show_command = app.add_subcommand(
      "show", "Print documents of a token file as lines of JSON");
  const auto add_shown = option_adder(show_command);
  show_command->add_option("path", shown.path, "Prepared folder or token file")
      ->required();
  add_shown("--first", shown.first, "N [0]", "Number of the first one");
  add_shown("--count", shown.count, "N [1]", "How many");
  show_command->callback([&] { show(shown); });
  std::string verified;
  auto* verify_command = app.add_subcommand(
      "verify", "Read all tokens and compare them with what was written");
  verify_command->add_option("path", verified, "Prepared folder or token file")
      ->required();
  verify_command->callback([&] { verify(verified); });
  parse_arguments(app, words_of(argc, argv));
  return 0;
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  return sherd::tools::tool_main(argc, argv, sherd::tools::data_command);
}
