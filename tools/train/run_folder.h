// SPDX-License-Identifier: Apache-2.0
//
// RunFolder is where one run stores its results: config.json, metrics.jsonl (one object per step,
// written at once, so that a killed run keeps its steps), the same for TensorBoard, and curve.html.
// It owns the open files and neither copies nor moves. One rank of a job has one. Thread rule: one
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "base/descriptor.h"
#include "train/appended_file.h"
#include "train/event_file.h"
#include "train/step_metrics.h"

namespace sherd::tools {

// Makes the folder "runs/20260102-030405", or with "-2" and so on appended if that exists, so that no
// other run takes it. Returns the path also if the folder cannot be made.
std::string make_run_folder(
    const std::string& parent, std::int64_t unix_time_s);

// If the folder has the metrics of the run that this config.json describes (its model, data, batch
// and seed; it may have other ranks and paths), renames them, so that the run can begin again
// there, and returns their new path; else returns "". Throws Error if they cannot be renamed, or if
// a RunFolder of another process still writes them.
// REQUIRES: the folder has no checkpoint of a step.
std::string set_aside_metrics(
    const std::string& path, const std::string& config_json);

// With whose weights the run in a folder began, according to its config.json: an absolute path, or
// "" for its own. Nothing if there is no such file.
std::optional<std::string> recorded_init_from(const std::string& path);

// One line of JSON, without the newline.
std::string metrics_line(const StepMetrics& record);
// The content of a line. Throws Error, naming the path, for an invalid one.
StepMetrics parse_metrics_line(
    const std::string& line, const std::string& path);

// The records in the last `bytes_max` bytes of a metrics.jsonl, or in all of it for 0. An
// incomplete line at the end, where a run was killed, is left out. Throws Error, naming the path,
// if the file cannot be read, and for invalid lines.
std::vector<StepMetrics> read_metrics(
    const std::string& path, std::int64_t bytes_max = 0);

class RunFolder {
 public:
  // Creates the folder and those above it, and writes config.json. Throws Error naming the path if
  // that fails, or if another run's metrics are already there.
  RunFolder(const std::string& path, const std::string& config_json);
  // For a run that continues after `step`: metrics of later steps, which will be repeated, are
  // dropped, and so are damaged lines, with a warning on stderr. Throws Error like the other
  // constructor.
  RunFolder(
      const std::string& path,
      const std::string& config_json,
      std::int64_t step);
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::string& path() const { return path_; }

  // Appends a line to metrics.jsonl. If the disk refuses it, a warning is printed on stderr, once
  // until it works again; the line is then written before the next one. If the folder was moved or
  // removed, it is made again, with the lines of all steps, but without their ranks.
  void add(const StepMetrics& record);

  // All records added so far, without their ranks.
  const std::vector<StepMetrics>& records() const { return records_; }

  // Writes a whole file, replacing it in one move: readers see either the old or the new file.
  // Warns like add().
  void write(const std::string& name, const std::string& content);

 private:
  void open(std::int64_t first_step);
  void make_again();
  void append(const std::string& lines);
  void keep(StepMetrics record);
  void unless_disk_fails(const std::function<void()>& action);
  void replace(const std::string& name, const std::string& content) const;
  std::string metrics_path() const;

  const std::string path_;
  const std::string config_json_;
  std::unique_ptr<AppendedFile> metrics_;
  Descriptor in_use_;         // Of the same file.
  std::size_t appended_ = 0;  // How many records metrics_ was given.
  bool disk_failed_ = false;
  std::unique_ptr<EventFile> events_;
  std::vector<StepMetrics> records_;
};

}  // namespace sherd::tools
