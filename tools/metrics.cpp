// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include "subcommand.h"
#include "train/run_folder.h"
#include "watch/metrics_csv.h"
#include "watch/run_files.h"

namespace sherd::tools {
namespace {

// Those of the run, or of the replica, in a folder.
std::string csv_lines(const std::string& folder, const std::string& begin) {
  std::string text;
  for (const auto& record : read_metrics(folder + "/metrics.jsonl")) {
    text += begin + csv_line(record);
  }
  return text;
}

void run(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw Error(folder + ": expected the folder of a run, found none");
  }
  auto text = csv_header();
  const auto replicas = replicas_in(folder);
  if (replicas.empty() ||
      std::filesystem::exists(folder + "/metrics.jsonl", ignored)) {
    std::fputs((text + csv_lines(folder, "")).c_str(), stdout);
    return;
  }
  text = "replica," + text;
  for (const int replica : replicas) {
    const auto number = std::to_string(replica);
    const auto own = folder + "/replica-" + number;
    if (std::filesystem::exists(own + "/metrics.jsonl", ignored)) {
      text += csv_lines(own, number + ",");
    }
  }
  std::fputs(text.c_str(), stdout);
}

}  // namespace

void add_metrics(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App* metrics = app.add_subcommand(
      "metrics", "Print the metrics of a run as comma-separated values");
  metrics->footer(
      "Example:\n  sherd metrics runs/20260102-030405 > run.csv\n\n"
      "Those of replicas have their numbers in a first column.");
  metrics
      ->add_option(
          "folder", *folder,
          "The folder of a run, with or without replicas, or of one replica")
      ->type_name("RUN")
      ->required();
  metrics->callback([folder] { run(*folder); });
}

}  // namespace sherd::tools
