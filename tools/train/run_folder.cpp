// SPDX-License-Identifier: Apache-2.0
#include "train/run_folder.h"

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

constexpr const char* kMetrics = "metrics.jsonl";

[[noreturn]] void refuse(
    const std::string& path,
    const std::string& expected,
    const std::string& found) {
  throw Error(
      path + ": expected " + expected + ", found " + found,
      ErrorCode::kUnavailable);
}

std::string made(const std::string& path) {
  std::error_code failure;
  std::filesystem::create_directories(path, failure);
  if (failure) {
    refuse(path, "a folder that can be written", failure.message());
  }
  if (std::filesystem::exists(path + "/" + kMetrics, failure)) {
    refuse(path, "a new folder for this run", "metrics.jsonl of another run");
  }
  return path;
}

}  // namespace

std::string new_run_path(const std::string& parent, std::int64_t unix_time_s) {
  const std::time_t time = unix_time_s;
  std::tm local = {};
  ::localtime_r(&time, &local);
  char stamp[32];
  std::strftime(stamp, sizeof(stamp), "%Y%m%d-%H%M%S", &local);
  const std::string first = parent + "/" + stamp;
  std::string path = first;
  std::error_code ignored;  // What cannot be looked at is refused when made.
  for (int n = 2; std::filesystem::exists(path, ignored); ++n) {
    path = first + "-" + std::to_string(n);
  }
  return path;
}

std::string metrics_line(const StepRecord& record) {
  nlohmann::ordered_json json = {
      {"step", record.step}, {"loss", record.loss}};
  if (record.val_loss.has_value()) {
    json["val_loss"] = *record.val_loss;
  }
  json["lr"] = record.lr;
  json["grad_norm"] = record.grad_norm;
  json["step_s"] = record.step_s;
  json["tokens_per_s"] = record.tokens_per_s;
  json["rss_bytes"] = record.rss_bytes;
  return json.dump();
}

RunFolder::RunFolder(const std::string& path, const std::string& config_json)
    : path_(made(path)) {
  write("config.json", config_json);
  errno = 0;
  metrics_.open(path_ + "/" + kMetrics, std::ios::binary | std::ios::app);
  if (!metrics_) {
    refuse(
        path_ + "/" + kMetrics, "a file that can be written",
        std::strerror(errno));
  }
}

void RunFolder::add(const StepRecord& record) {
  errno = 0;
  metrics_ << metrics_line(record) << '\n';
  metrics_.flush();
  if (!metrics_) {
    refuse(
        path_ + "/" + kMetrics, "room for one more line",
        std::strerror(errno));
  }
  records_.push_back(record);
}

void RunFolder::write(
    const std::string& name, const std::string& content) const {
  const std::string target = path_ + "/" + name;
  const std::string draft = target + ".new";
  errno = 0;
  std::ofstream file(draft, std::ios::binary | std::ios::trunc);
  file << content;
  file.close();
  if (!file) {
    refuse(path_, "a folder that can be written", std::strerror(errno));
  }
  std::error_code failure;
  std::filesystem::rename(draft, target, failure);
  if (failure) {
    refuse(target, "a file that can be replaced", failure.message());
  }
}

}  // namespace sherd::tools
