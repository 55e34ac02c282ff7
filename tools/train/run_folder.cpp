// SPDX-License-Identifier: Apache-2.0
#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "base/replace_file.h"
#include "refuse.h"
#include "text_file.h"
#include "train/config.h"
#include "train/metric_columns.h"

namespace sherd::tools {
namespace {

constexpr const char* kMetrics = "metrics.jsonl";

// The disk or a file is at fault, not the command line.
[[noreturn]] void refuse_file(
    const std::string& path,
    const std::string& expected,
    const std::string& found) {
  refuse(path, expected, found, ErrorCode::kUnavailable);
}

template <typename T>
void read(const nlohmann::json& found, T& value) {
  value = found.get<T>();
}
// Infinity and NaN are null in JSON.
void read(const nlohmann::json& found, double& value) {
  value = found.is_null() ? std::numeric_limits<double>::quiet_NaN()
                          : found.get<double>();
}
template <typename T>
void read(const nlohmann::json& found, std::optional<T>& value) {
  read(found, value.emplace());
}

std::string made(const std::string& path) {
  std::error_code failure;
  std::filesystem::create_directories(path, failure);
  if (failure) {
    refuse_file(path, "a folder that can be written", failure.message());
  }
  if (std::filesystem::exists(path + "/" + kMetrics, failure)) {
    // A usage error, so that launchers do not repeat the command.
    refuse(
        path, "a new folder for this run, or one with checkpoints to resume",
        "metrics.jsonl of another run; pass another --run, or move that file");
  }
  return path;
}

// Held as long as a run writes its metrics. Not all file systems have locks.
Descriptor metrics_in_use(const std::string& metrics) {
  Descriptor file(::open(metrics.c_str(), O_RDONLY | O_CLOEXEC));
  (void)::flock(file.get(), LOCK_SH | LOCK_NB);
  return file;
}

// Held while they are renamed. Throws Error if a run writes them.
Descriptor metrics_out_of_use(const std::string& metrics) {
  Descriptor file(::open(metrics.c_str(), O_RDONLY | O_CLOEXEC));
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    refuse_file(
        metrics, "metrics of a run that has ended",
        "another process that writes them; pass another --run, or wait for it");
  }
  return file;
}

// What of a config.json must be the same in all starts of a run, as a checkpoint demands it. Its
// data are compared by their hash.
nlohmann::json identity(const std::string& config_json) {
  using Json = nlohmann::json;
  const auto config =
      Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> keys = {
      "batch", "seed", "about/corpus_hash", "about/init_from"};
  for (const auto& row : option_specs()) {
    // about/init_from stands for the option, which older files leave empty.
    if (row.group == std::string_view("Model") &&
        row.name != std::string_view("init-from")) {
      keys.emplace_back(row.name);
    }
  }
  Json found;
  for (const auto& key : keys) {
    found[key] = config.is_object()
        ? config.value(Json::json_pointer("/" + key), Json())
        : Json();
  }
  return found;
}

}  // namespace

std::string make_run_folder(
    const std::string& parent, std::int64_t unix_time_s) {
  namespace fs = std::filesystem;
  const std::time_t time = unix_time_s;
  std::tm local = {};
  ::localtime_r(&time, &local);
  char stamp[32];
  std::strftime(stamp, sizeof(stamp), "%Y%m%d-%H%M%S", &local);
  const std::string first = parent + "/" + stamp;
  std::string path = first;
  // RunFolder reports what is wrong with a folder that cannot be made.
  std::error_code failure;
  fs::create_directories(parent, failure);
  for (int n = 2;
       !fs::create_directory(path, failure) && fs::exists(path, failure); ++n) {
    path = first + "-" + std::to_string(n);
  }
  return path;
}

std::string set_aside_metrics(
    const std::string& path, const std::string& config_json) {
  const auto metrics = path + "/" + kMetrics;
  std::error_code failure;
  const auto before = text_of_file(path + "/config.json");
  if (!before || identity(*before) != identity(config_json) ||
      !std::filesystem::exists(metrics, failure)) {
    return "";
  }
  const auto unused = metrics_out_of_use(metrics);
  if (std::filesystem::is_empty(metrics, failure)) {
    std::filesystem::remove(metrics, failure);
    return "";
  }
  std::string aside = metrics + ".1";
  for (int n = 2; std::filesystem::exists(aside, failure); ++n) {
    aside = metrics + "." + std::to_string(n);
  }
  std::filesystem::rename(metrics, aside, failure);
  if (failure) {
    refuse_file(metrics, "a file that can be renamed", failure.message());
  }
  return aside;
}

std::optional<std::string> recorded_init_from(const std::string& path) {
  using Json = nlohmann::json;
  const auto text = text_of_file(path + "/config.json");
  const auto config =
      Json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return std::nullopt;
  }
  const auto found =
      config.value(Json::json_pointer("/about/init_from"), Json());
  return found.is_string() ? std::optional(found.get<std::string>())
                           : std::nullopt;
}

std::string metrics_line(const StepMetrics& record) {
  nlohmann::ordered_json json;
  for (const auto& column : kMetricColumns) {
    std::visit(
        [&](auto member) {
          if (const auto value = std::optional(record.*member)) {
            json[column.name] = *value;
          }
        },
        column.member);
  }
  if (!record.mfu) {
    json["mfu"] = nullptr;  // Unknown, but each line has it.
  }
  json["ranks"] = nlohmann::ordered_json::array();
  for (const auto& rank : record.ranks) {
    json["ranks"].push_back(
        {{"step_s", rank.step_s},
         {"busy_s", rank.busy_s},
         {"rss_bytes", rank.rss_bytes}});
  }
  return json.dump();
}

StepMetrics parse_metrics_line(
    const std::string& line, const std::string& path) {
  try {
    const auto json = nlohmann::json::parse(line);
    StepMetrics record;
    for (const auto& column : kMetricColumns) {
      if (json.contains(column.name) || !column.may_lack) {
        std::visit(
            [&](auto member) { read(json.at(column.name), record.*member); },
            column.member);
      }
    }
    if (record.mfu && std::isnan(*record.mfu)) {
      record.mfu.reset();
    }
    for (const auto& rank : json.value("ranks", nlohmann::json::array())) {
      record.ranks.push_back(
          {.step_s = rank.at("step_s").get<double>(),
           .busy_s = rank.at("busy_s").get<double>(),
           .rss_bytes = rank.at("rss_bytes").get<std::int64_t>()});
    }
    return record;
  } catch (const nlohmann::json::exception&) {
    refuse_file(path, "lines of metrics", "'" + line.substr(0, 60) + "'");
  }
}

namespace {

// Calls visit(line) for each complete line: the last one may be incomplete.
template <typename Visit>
void each_line(std::istream& file, Visit visit) {
  for (std::string line; std::getline(file, line) && !file.eof();) {
    visit(line);
  }
}

void warn_of_damage(const std::string& path, std::int64_t lines) {
  if (lines > 0) {
    std::fprintf(
        stderr,
        "sherd train: warning: %s: expected lines of metrics, found %lld "
        "others, which are left out\n",
        path.c_str(), static_cast<long long>(lines));
  }
}

}  // namespace

std::vector<StepMetrics> read_metrics(
    const std::string& path, std::int64_t bytes_max) {
  errno = 0;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    refuse_file(path, "the metrics of a run", std::strerror(errno));
  }
  const auto size = static_cast<std::int64_t>(file.tellg());
  const auto begin = bytes_max > 0 ? std::max(size - bytes_max, 0L) : 0L;
  file.seekg(begin);
  if (begin > 0) {
    std::string line;
    std::getline(file, line);  // The first line may have begun before.
  }
  std::vector<StepMetrics> records;
  each_line(file, [&](const std::string& line) {
    records.push_back(parse_metrics_line(line, path));
  });
  return records;
}

RunFolder::RunFolder(const std::string& path, const std::string& config_json)
    : path_(made(path)), config_json_(config_json) {
  open(1);
}

RunFolder::RunFolder(
    const std::string& path, const std::string& config_json, std::int64_t step)
    : path_(path), config_json_(config_json) {
  const auto metrics = metrics_path();
  std::ifstream file(metrics, std::ios::binary);
  const bool found = file.is_open();
  std::uintmax_t kept_bytes = 0;
  // Lines to keep behind a dropped one: a replica that went back has made some steps twice.
  std::string kept_later;
  bool dropped = false;
  std::int64_t damaged = 0;  // By a power loss, for example.
  each_line(file, [&](const std::string& line) {
    try {
      auto record = parse_metrics_line(line, metrics);
      if (record.step > step) {
        dropped = true;
        return;
      }
      keep(std::move(record));
    } catch (const Error&) {
      dropped = true;
      ++damaged;
      return;
    }
    if (dropped) {
      kept_later += line + "\n";
    } else {
      kept_bytes += line.size() + 1;
    }
  });
  file.close();
  warn_of_damage(metrics, damaged);
  std::error_code failure;
  if (found) {
    std::filesystem::resize_file(metrics, kept_bytes, failure);
  }
  if (failure) {
    refuse_file(metrics, "a file that can be written", failure.message());
  }
  open(step + 1);
  appended_ = records_.size();
  if (!kept_later.empty()) {
    (void)metrics_->append(kept_later);
  }
}

void RunFolder::open(std::int64_t first_step) {
  replace("config.json", config_json_);
  events_ = std::make_unique<EventFile>(path_ + "/tensorboard", first_step);
  metrics_ = std::make_unique<AppendedFile>(metrics_path());
  in_use_ = metrics_in_use(metrics_path());
}

void RunFolder::add(const StepMetrics& record) {
  keep(record);
  unless_disk_fails([&] {
    if (!metrics_->in_place()) {
      make_again();
    }
    std::string lines;
    for (; appended_ + 1 < records_.size(); ++appended_) {
      lines += metrics_line(records_[appended_]) + "\n";
    }
    ++appended_;
    append(lines + metrics_line(record) + "\n");
  });
  events_->add(record);
}

// The last record is about to be added.
void RunFolder::make_again() {
  std::filesystem::create_directories(path_);
  const bool replaced = std::filesystem::exists(metrics_path());
  const auto unwritten = metrics_->unwritten();
  open(replaced ? records_.back().step : records_.front().step);
  if (replaced) {  // Somebody has edited it.
    append(unwritten);
    return;
  }
  appended_ = 0;
  for (std::size_t i = 0; i + 1 < records_.size(); ++i) {
    events_->add(records_[i]);
  }
}

void RunFolder::append(const std::string& lines) {
  const auto reason = metrics_->append(lines);
  if (!reason.empty()) {
    refuse_file(metrics_path(), "room for one more line", reason);
  }
}

void RunFolder::keep(StepMetrics record) {
  record.ranks = {};  // They would be most of the memory of a long run.
  records_.push_back(std::move(record));
}

void RunFolder::write(const std::string& name, const std::string& content) {
  unless_disk_fails([&] { replace(name, content); });
}

void RunFolder::unless_disk_fails(const std::function<void()>& action) {
  try {
    action();
    disk_failed_ = false;
  } catch (const std::exception& error) {
    if (!std::exchange(disk_failed_, true)) {
      std::fprintf(
          stderr,
          "sherd train: warning: training goes on, and what is missing here is "
          "written when that is possible again: %s\n",
          error.what());
    }
  }
}

void RunFolder::replace(
    const std::string& name, const std::string& content) const {
  replace_file(path_ + "/" + name, content).throw_if_failed();
}

std::string RunFolder::metrics_path() const { return path_ + "/" + kMetrics; }

}  // namespace sherd::tools
