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

namespace sherd::tools {
namespace {

void run(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw Error(folder + ": expected the folder of a run, found none");
  }
  if (!std::filesystem::exists(folder + "/metrics.jsonl", ignored)) {
    const auto replica = folder + "/replica-0";
    if (std::filesystem::is_directory(replica, ignored)) {
      throw Error(
          folder +
          ": expected the metrics of a run, found a run of replicas; "
          "name one of them, such as " +
          replica);
    }
  }
  auto text = csv_header();
  for (const auto& record : read_metrics(folder + "/metrics.jsonl")) {
    text += csv_line(record);
  }
  std::fputs(text.c_str(), stdout);
}

}  // namespace

void add_metrics(CLI::App& app) {
  auto folder = std::make_shared<std::string>();
  CLI::App* metrics = app.add_subcommand(
      "metrics", "Print the metrics of a run as comma-separated values");
  metrics->footer("Example:\n  sherd metrics runs/20260102-030405 > run.csv");
  metrics
      ->add_option(
          "folder", *folder, "The folder of a run, or of one replica of it")
      ->type_name("RUN")
      ->required();
  metrics->callback([folder] { run(*folder); });
}

}  // namespace sherd::tools
