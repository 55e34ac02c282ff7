// SPDX-License-Identifier: Apache-2.0
#include "train/command_line.h"

#include <CLI/CLI.hpp>
#include "train/config.h"

namespace sherd::tools {
namespace {

constexpr const char* kDescription =
    "Train a language model on text and watch it learn.\n"
    "\n"
    "Without options: 200 steps of a GPT of 6.4 million parameters on the\n"
    "header files of LibTorch, which are on every machine that has sherd.\n"
    "Started by `sherd run -n N`, torchrun, srun or mpirun, the ranks train\n"
    "one model together; alone it trains on this process.";

constexpr const char* kExamples =
    "Examples:\n"
    "  sherd train\n"
    "  sherd train --data my/texts --steps 1000\n"
    "  sherd train --model llama --kv-heads 2\n"
    "  sherd train --plan --layers 24 --width 1024\n"
    "  sherd run -n 2 -- sherd train --strategy full_shard --budget 16MiB\n"
    "  sherd train --config runs/20260102-030405/config.json --lr 1e-3\n"
    "\n"
    "The run's folder then has config.json, metrics.jsonl (one line a step)\n"
    "and curve.html, which opens in any browser.";

}  // namespace

void add_train_options(CLI::App& app, CommandLine& line) {
  app.description(kDescription);
  app.footer(kExamples);
  app.add_option(
         "--config", line.config_path,
         "JSON file with these options; flags win over it")
      ->type_name("FILE");
  app.add_flag(
      "--plan", line.plan,
      "Say what would be trained, with memory and time a step measured in a "
      "few\n"
      "steps, and end; nothing is written");
  for (const auto& row : option_specs()) {
    const std::string name = row.name;
    const std::string flag = "--" + name;
    if (*row.value == '\0') {
      // --quiet=false counts as -1, and wins over a file that says true.
      app.add_flag_function(
             flag,
             [&line, name](std::int64_t count) {
               line.flags[name] = count > 0 ? "true" : "false";
             },
             row.help)
          ->group(row.group);
      continue;
    }
    const auto preset = text_of(row, {});
    app.add_option_function<std::string>(
           flag,
           [&line, name](const std::string& text) { line.flags[name] = text; },
           row.help)
        ->group(row.group)
        ->type_name(
            preset.empty() ? row.value : row.value + (" [" + preset + "]"));
  }
}

}  // namespace sherd::tools
