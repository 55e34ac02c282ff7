// SPDX-License-Identifier: Apache-2.0
#include "bench/step_log_files.h"

#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>
#include <sherd/base/error.h>

namespace sherd::bench {

double monotonic_s() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

StepLogWriter::StepLogWriter(const std::string& folder, const StepLogName& name)
    : file_(folder + "/" + file_name_of(name), std::ios::trunc) {
  if (!file_) {
    throw Error(
        "[bench] --folder: expected one to write to, found " + folder,
        ErrorCode::kUnavailable);
  }
  add({.kind = StepEventKind::kBegun});
}

void StepLogWriter::add(StepEvent line) {
  line.time_s = monotonic_s();
  // Each line is one write, so a killed process leaves whole lines.
  file_ << line_of(line) + "\n" << std::flush;
}

void StepLogReader::read() {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder_, error)) {
    const auto file = entry.path().filename().string();
    const auto name = parse_file_name(file);
    if (!name) {
      continue;
    }
    const auto [found, is_new] = sources_.try_emplace(file);
    if (is_new) {
      found->second.log = logs_.size();
      logs_.push_back({.name = *name});
    }
    read(file, found->second);
  }
}

void StepLogReader::read(const std::string& name, Source& source) {
  std::ifstream in(folder_ + "/" + name);
  in.seekg(source.offset);
  std::string line;
  while (std::getline(in, line) && !in.eof()) {
    const auto found = parse_step_event(line);
    if (!found) {
      throw Error("[bench] " + name + ": expected a step, found " + line);
    }
    logs_[source.log].lines.push_back(*found);
    source.offset += static_cast<std::int64_t>(line.size()) + 1;
  }
}

}  // namespace sherd::bench
