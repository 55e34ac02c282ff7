// SPDX-License-Identifier: Apache-2.0
#include "watch/run_files.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <system_error>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "train/run_folder.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTailBytes = 256 << 10;
// Fewer would be no mean. Lines of runs with many ranks are long.
constexpr std::size_t kStepsMin = 10;

[[noreturn]] void refuse_unreadable(
    const fs::path& path, const std::error_code& failure) {
  throw Error(
      path.string() + ": expected a run that can be read, found " +
          failure.message(),
      ErrorCode::kUnavailable);
}

bool is_there(const fs::path& path) {
  std::error_code failure;
  const bool found = fs::exists(path, failure);
  if (failure) {
    refuse_unreadable(path, failure);
  }
  return found;
}

// The last steps of a file, and at least kStepsMin of them if it has so many.
std::vector<StepMetrics> last_steps(const fs::path& metrics) {
  const auto size = static_cast<std::int64_t>(fs::file_size(metrics));
  auto bytes = kTailBytes;
  auto records = read_metrics(metrics.string(), bytes);
  while (records.size() < kStepsMin && bytes < size) {
    bytes *= 2;
    records = read_metrics(metrics.string(), bytes);
  }
  return records;
}

// Where training ends, according to config.json; 0 if unknown.
std::int64_t steps_of(const fs::path& folder) {
  std::ifstream file(folder / "config.json");
  const auto config =
      nlohmann::json::parse(file, nullptr, /*exceptions=*/false);
  if (!config.is_object()) {
    return 0;
  }
  const auto number = [&](const char* key) {
    const auto found = config.value(key, nlohmann::json());
    return found.is_number_integer() ? found.get<std::int64_t>() : 0;
  };
  const auto stop = number("stop-at");
  return stop > 0 ? stop : number("steps");
}

double age_s(const fs::path& path) {
  const auto written = fs::last_write_time(path);
  return std::max(
      0.0,
      std::chrono::duration<double>(fs::file_time_type::clock::now() - written)
          .count());
}

RunState read_run(const fs::path& folder, const std::string& ranks) {
  RunState run{.name = folder.string(), .ranks = ranks};
  run.steps = steps_of(folder);
  const auto metrics = folder / "metrics.jsonl";
  if (is_there(metrics)) {
    run.records = last_steps(metrics);
    run.age_s = age_s(metrics);
  }
  return run;
}

}  // namespace

std::set<int> replicas_in(const fs::path& folder) {
  std::set<int> replicas;
  std::error_code failure;
  fs::directory_iterator entry(folder, failure);
  while (!failure && entry != fs::directory_iterator()) {
    int number = 0;
    const auto name = entry->path().filename().string();
    if (std::sscanf(name.c_str(), "replica-%d", &number) == 1) {
      replicas.insert(number);
    }
    entry.increment(failure);
  }
  if (failure) {
    refuse_unreadable(folder, failure);
  }
  return replicas;
}

std::vector<RunState> read_runs(const fs::path& folder) {
  std::vector<RunState> runs;
  if (is_there(folder / "config.json")) {
    runs.push_back(read_run(folder, ""));
  }
  for (const int replica : replicas_in(folder)) {
    const auto number = std::to_string(replica);
    runs.push_back(
        read_run(folder / ("replica-" + number), "r" + number + "."));
  }
  return runs;
}

std::string status_address(const fs::path& folder) {
  std::ifstream file(folder / "coordinator.address");
  std::string line;
  std::getline(file, line);
  std::getline(file, line);
  return file.fail() ? "" : line;
}

}  // namespace sherd::tools
