// SPDX-License-Identifier: Apache-2.0
//
// EventFile writes the metrics of a run for TensorBoard: one scalar a metric and
// step, named as in metrics.jsonl. The format is TensorFlow's: records of a
// length, the payload and a masked CRC32C of each (tsl/lib/io/record_writer),
// payloads being messages Event of tensorflow/core/util/event.proto, which are
// encoded by hand. Neither copies nor moves. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include "train/appended_file.h"
#include "train/step_metrics.h"

namespace sherd::tools {

class EventFile {
 public:
  // Starts a new file in `folder`, which is made, behind those of earlier starts
  // of the run. It tells readers to forget what those say of `first_step` and
  // later steps, which are taken again. Throws Error, naming the path, when
  // nothing can be written there.
  EventFile(const std::string& folder, std::int64_t first_step);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Appends a step. What the disk refuses is kept and written with a later step:
  // metrics.jsonl, on the same disk, is what reports it.
  void add(const StepMetrics& record);

 private:
  AppendedFile file_;
};

// A payload with its frame, as it is in the file.
std::string event_record(std::string_view payload);

}  // namespace sherd::tools
