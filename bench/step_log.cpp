// SPDX-License-Identifier: Apache-2.0
#include "bench/step_log.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>

namespace sherd::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEnding = ".steps.jsonl";
constexpr std::array<std::string_view, 5> kKinds = {
    "begun", "computed", "followed", "replayed", "dropped"};

// Throws Json::exception, or Error, for anything else.
StepEvent event_of(const Json& json) {
  const auto* kind =
      std::ranges::find(kKinds, json.at("kind").get<std::string>());
  if (kind == kKinds.end()) {
    throw Error("expected a known kind");
  }
  StepEvent event{
      .kind = static_cast<StepEvent::Kind>(kind - kKinds.begin()),
      .step = json.value("step", std::int64_t{0}),
      .time_s = json.at("time_s").get<double>()};
  if (json.contains("hash")) {
    event.hash = json.at("hash").get<std::uint64_t>();
  }
  return event;
}

}  // namespace

double monotonic_s() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

StepLogWriter::StepLogWriter(const std::string& folder, const StepLog& process)
    : file_(
          folder + "/replica-" + std::to_string(process.replica) + ".rank-" +
              std::to_string(process.rank) + ".life-" +
              std::to_string(process.process) + kEnding,
          std::ios::trunc) {
  if (!file_) {
    throw Error(
        "[bench] --folder: expected one to write to, found " + folder,
        ErrorCode::kUnavailable);
  }
  const Json whose = {
      {"replica", process.replica},
      {"rank", process.rank},
      {"process", process.process}};
  file_ << whose.dump() + "\n";
  add({.kind = StepEvent::Kind::kBegun});
}

void StepLogWriter::add(StepEvent event) {
  Json json = {
      {"kind", kKinds[static_cast<std::size_t>(event.kind)]},
      {"step", event.step},
      {"time_s", monotonic_s()}};
  if (event.hash) {
    json["hash"] = *event.hash;
  }
  // Each line is one write, so a killed process leaves whole lines.
  file_ << json.dump() + "\n" << std::flush;
}

void StepLogReader::read() {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder_, error)) {
    const auto path = entry.path().string();
    if (path.ends_with(kEnding)) {
      read(path, sources_[path]);
    }
  }
}

void StepLogReader::read(const std::string& path, Source& source) {
  std::ifstream in(path);
  in.seekg(source.offset);
  std::string line;
  while (std::getline(in, line) && !in.eof()) {
    try {
      take(line, source);
    } catch (const std::exception&) {
      throw Error("[bench] " + path + ": expected a step, found " + line);
    }
    source.offset += static_cast<std::int64_t>(line.size()) + 1;
  }
}

void StepLogReader::take(const std::string& line, Source& source) {
  const auto json = Json::parse(line);
  if (source.log) {
    logs_[*source.log].lines.push_back(event_of(json));
    return;
  }
  logs_.push_back(
      {.replica = json.at("replica").get<int>(),
       .rank = json.at("rank").get<int>(),
       .process = json.at("process").get<int>()});
  source.log = logs_.size() - 1;
}

}  // namespace sherd::bench
