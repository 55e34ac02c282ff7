// SPDX-License-Identifier: Apache-2.0
//
// The `sherd` command. A subcommand that starts ranks or watches a run is a line in
// parse_and_run(). Every other one is a program of its own, sherd-NAME next to this one, and a
// line in kPrograms: those that need LibTorch, because loading it takes at least 0.2 s, which a
// job's launcher should not spend before its ranks spend it again; and those that a newcomer's
// first training, which has to wait for the compiler, does not need.
#include <unistd.h>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/base/run_main.h>
#include "exec_program.h"
#include "parse_arguments.h"
#include "subcommand.h"
#include "tool_main.h"
#include "train/train_command.h"

namespace sherd::tools {
namespace {

constexpr int kUsageError = 2;

struct ExternalCommand {
  const char* name;
  const char* description;
  const char* remedy;  // What helps if there is no such program.
};
constexpr const char* kMakeBuild = "'make build' builds it";
constexpr ExternalCommand kPrograms[] = {
    {"train", "Train a model (one rank; `sherd run` starts several)",
     "'sherd train' needs a build with LibTorch"},
    {"checkpoint", "Inspect, verify and merge checkpoints",
     "'make build' builds it, which needs LibTorch"},
    {"data", "Turn text into tokens to train on",
     "'make build' builds it, which needs libpcre2-dev and libutf8proc-dev"},
    {"generate", "Continue a text with a trained model",
     "'make build' builds it, which needs LibTorch, libpcre2-dev and "
     "libutf8proc-dev"},
    {"eval", "Measure how well a trained model predicts a text",
     "'make build' builds it, which needs LibTorch, libpcre2-dev and "
     "libutf8proc-dev"},
    {"coordinate", "Run the coordinator of a fault-tolerant job", kMakeBuild},
    {"trace",
     "Compare what ranks did before a failure; merge profiles into a trace",
     kMakeBuild},
    {"simulate", "Simulate training on many GPUs that fail", kMakeBuild},
};
constexpr ExternalCommand kBench = {
    "bench", "Benchmark against PyTorch's FSDP2 and DDP", kMakeBuild};

std::string program_of(const ExternalCommand& command) {
  return std::string("sherd-") + command.name;
}

// Executes sherd-NAME, whose messages begin with "sherd NAME"; returns only if that fails.
int exec_program(const ExternalCommand& command, char** argv) {
  std::string shown = std::string("sherd ") + command.name;
  argv[1] = shown.data();
  // A rank of a replica need not load LibTorch for sherd-train first.
  const bool replica = std::strcmp(command.name, "train") == 0 && is_replica();
  return replica ? exec_beside(kReplicaProgram, kReplicaProgramRemedy, argv + 1)
                 : exec_beside(program_of(command), command.remedy, argv + 1);
}

// Where the words of the program begin: after "--", or else at the first word that is neither an
// option nor an option's value. Everything from there on belongs to the program, whatever it looks
// like, so CLI11 must not see it.
std::size_t program_begin(
    const CLI::App& subcommand, const std::vector<std::string>& words) {
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--") {
      return i + 1;
    }
    if (word.size() < 2 || word.front() != '-') {
      return i;
    }
    const CLI::Option* option = subcommand.get_option_no_throw(word);
    if (option != nullptr && option->get_items_expected_max() > 0) {
      // Skips its value; -n4 and --port=1 contain theirs and are not found here.
      ++i;
    }
  }
  return words.size();
}

int parse_and_run(CLI::App& app, std::vector<std::string> words) {
  std::vector<std::string> program;
  int status = 0;
  add_run(app, program, status);
  add_replica(app);
  add_top(app);
  add_metrics(app);
  app.add_subcommand(kBench.name, kBench.description);  // For the help.
  if (words.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return kUsageError;
  }
  const bool takes_program = words[0] == "run";
  if (takes_program) {
    const std::size_t begin = program_begin(*app.get_subcommand("run"), words);
    program.assign(
        words.begin() + static_cast<std::ptrdiff_t>(begin), words.end());
    words.resize(begin);
    if (words.back() == "--") {
      words.pop_back();
    }
  }
  parse_arguments(app, std::move(words));
  if (!takes_program) {
    expect_printed();  // Else the result is the program's.
  }
  return status;
}

int run_command(int argc, char** argv) {
  CLI::App app("sherd: sharded, fault-tolerant training on LibTorch", "sherd");
  app.set_version_flag("--version", "sherd " SHERD_VERSION);
  app.require_subcommand(1);
  if (argc > 1 && std::strcmp(argv[1], kBench.name) == 0) {
    return exec_program(kBench, argv);
  }
  std::string more;
  for (const ExternalCommand& program : kPrograms) {
    if (argc > 1 && std::strcmp(argv[1], program.name) == 0) {
      return exec_program(program, argv);
    }
    if (::access(path_beside(program_of(program)).c_str(), X_OK) == 0) {
      app.add_subcommand(program.name, program.description);
      more += std::string("  sherd ") + program.name + " --help\n";
    }
  }
  app.footer(
      "Examples:\n"
      "  sherd run -n 4 ./train --steps 100   four ranks of your own program\n"
      "  sherd run --help                     all about starting ranks\n" +
      more +
      "  sherd replica --help\n"
      "  sherd top --help\n"
      "  sherd metrics --help\n");
  return parse_and_run(app, words_of(argc, argv));
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  return sherd::run_main(
      argc, argv, [&] { return sherd::tools::run_command(argc, argv); });
}
