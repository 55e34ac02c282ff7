// SPDX-License-Identifier: Apache-2.0
//
// EventFile writes the metrics of a run for TensorBoard: one scalar a metric and step, named as in
// metrics.jsonl. The format is TensorFlow's: records of a length, the payload and a masked CRC32C
// of each (tsl/lib/io/record_writer), the payloads are messages Event of
// tensorflow/core/util/event.proto, encoded by hand. Neither copies nor moves. Thread rule: one
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include "train/appended_file.h"
#include "train/step_metrics.h"

namespace sherd::tools {

class EventFile {
 public:
  // Starts a new file in `folder`, which is created, after those of earlier starts of the run. It
  // tells readers to forget what those say about `first_step` and later steps, which are repeated.
  // Throws Error, naming the path, if nothing can be written there.
  EventFile(const std::string& folder, std::int64_t first_step);
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  // Appends a step. If the disk refuses it, it is kept and written with a later step;
  // metrics.jsonl, on the same disk, reports that.
  void add(const StepMetrics& record);

 private:
  AppendedFile file_;
};

// A payload with its frame, as stored in the file.
std::string event_record(std::string_view payload);

}  // namespace sherd::tools
