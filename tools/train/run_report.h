// SPDX-License-Identifier: Apache-2.0
//
// RunReport is what a run reports to people: lines and a bar on the terminal, and in the run's
// folder config.json, metrics and the curve. Rank 0 of a job reports; on other ranks every call
// does nothing. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include "train/progress_display.h"
#include "train/run_folder.h"
#include "train/step_metrics.h"
#include "train/trainer.h"

namespace sherd::tools {

class RunReport {
 public:
  // `batch` says how many sequences a step has: "batch 12". `subfolder` is the report's folder inside
  // the run's; empty if it is the run's. The trainer must outlive this object.
  RunReport(
      const Trainer& trainer, std::string batch, std::string subfolder = {});

  // Called before the first step. `made` is how many steps the run in this folder has made before;
  // nothing: it is a new one, whose folder must have no other. Collective. Throws Error as RunFolder
  // does, and on every rank if the run began with other weights than --init-from names.
  void open(const std::string& run, std::optional<std::int64_t> made);
  bool is_open() const { return start_s_ > 0; }

  // Prints a line of its own.
  void say(const std::string& line);

  // Adds a step to folder and terminal. `record` has the tokens of this step only; its time is now.
  // REQUIRES: open() was called.
  void add(StepMetrics record);

  // Called after the last step, with its number: a replica does not add those that others made.
  // `sample` may be empty, and so may `saved`, the run's last checkpoint.
  void finish(
      std::int64_t step, const Sample& sample, const std::string& saved);

 private:
  std::string init_from_of(const std::string& path) const;
  std::map<std::string, std::string> about(const std::string& init_from) const;
  void copy_tokenizer() const;
  std::string batch_text() const;
  double tokens_per_s() const;
  void write_curve_if_due(const StepMetrics& record);
  void say_how_to_go_on();

  const Trainer& trainer_;
  const std::string batch_;
  const std::string subfolder_;
  std::string run_;  // The run's folder.
  ProgressDisplay progress_;
  std::unique_ptr<RunFolder> folder_;  // Rank 0 only.
  std::optional<double> val_loss_;
  std::int64_t first_ = 0;
  double start_s_ = 0;
  double curve_s_ = 0;  // When the curve was written.
  double trained_s_ = 0;
  double trained_tokens_ = 0;
};

}  // namespace sherd::tools
