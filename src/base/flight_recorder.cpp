// SPDX-License-Identifier: Apache-2.0
#include "base/flight_recorder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include "base/log.h"
#include "base/printable.h"
#include "base/replace_file.h"

namespace sherd {
namespace {

constexpr std::array<std::string_view, 14> kEventTexts = {
    "asked",          "started",  "gathered",  "posted",  "reduced",
    "requested",      "agreed",   "waiting",   "resumed", "visited",
    "backward ended", "departed", "published", "failed"};
constexpr std::array<std::string_view, 10> kStepTexts = {
    "",
    "unshard in forward",
    "unshard in backward",
    "begin a step",
    "all-reduce",
    "reduce gradients",
    "end the backward",
    "publish",
    "forward",
    "backward"};

bool is_unshard(FlightStep step) {
  return step == FlightStep::kUnshardInForward ||
      step == FlightStep::kUnshardInBackward;
}

// Unix time beside the monotonic time, for readers of the file.
std::int64_t unix_time_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string json_of(const FlightRecord& record) {
  return str(
      "\n[", record.time_ns, ",\"", text_of(record.event), "\",\"",
      text_of(record.step), "\",", record.group, ",", record.unit, ",",
      record.sequence, ",", record.bytes, "]");
}

}  // namespace

std::string_view text_of(FlightEvent event) {
  return kEventTexts[static_cast<std::size_t>(event)];
}

std::string_view text_of(FlightStep step) {
  return kStepTexts[static_cast<std::size_t>(step)];
}

FlightRecorder::FlightRecorder(FlightOptions options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      records_max_(options_.records_max) {}

std::uint16_t FlightRecorder::add_group(
    std::string name,
    std::vector<int> ranks,
    std::optional<std::uint16_t> whole) {
  const std::lock_guard lock(mu_);
  groups_.push_back(
      {.name = std::move(name), .ranks = std::move(ranks), .whole = whole});
  return static_cast<std::uint16_t>(groups_.size() - 1);
}

void FlightRecorder::name_units(
    std::uint16_t group, std::vector<std::string> names) {
  const std::lock_guard lock(mu_);
  auto& named = groups_.at(group);
  named.times.assign(names.size(), {});
  named.gather_began_ns.assign(names.size(), 0);
  named.reduce_began_ns.assign(names.size(), 0);
  named.units = std::move(names);
}

void FlightRecorder::record(FlightRecord record) {
  const std::lock_guard lock(mu_);
  record.time_ns = clock_.now().count();
  records_.push_back(record);
  if (records_.size() > records_max_) {
    records_.pop_front();
    ++forgotten_;
  }
  auto& group = groups_.at(record.group);
  add_up(group, record);
  if (group.whole) {
    add_up(groups_.at(*group.whole), record);
  }
}

void FlightRecorder::add_up(Group& group, const FlightRecord& record) {
  if (record.event == FlightEvent::kWaiting) {
    group.wait_began_ns = record.time_ns;
  }
  if (record.unit < 0) {
    return;
  }
  const auto unit = static_cast<std::size_t>(record.unit);
  auto& times = group.times.at(unit);
  switch (record.event) {
    case FlightEvent::kAsked:
      ++times.gathers;
      break;
    case FlightEvent::kStarted:
      group.gather_began_ns[unit] = record.time_ns;
      break;
    case FlightEvent::kGathered:
      times.gathering += Duration(record.time_ns - group.gather_began_ns[unit]);
      break;
    case FlightEvent::kPosted:
      ++times.reduces;
      group.reduce_began_ns[unit] = record.time_ns;
      break;
    case FlightEvent::kReduced:
      times.reducing += Duration(record.time_ns - group.reduce_began_ns[unit]);
      break;
    case FlightEvent::kResumed:
      times.waited += Duration(
          is_unshard(record.step) ? record.time_ns - group.wait_began_ns : 0);
      break;
    default:
      break;
  }
}

std::vector<UnitTimes> FlightRecorder::unit_times(std::uint16_t group) const {
  const std::lock_guard lock(mu_);
  return groups_.at(group).times;
}

void FlightRecorder::begin_profile(std::size_t records_max) {
  const std::lock_guard lock(mu_);
  records_max_ = std::max(records_max, options_.records_max);
  forgotten_ += records_.size();
  records_.clear();
  profiling_.store(true, std::memory_order_relaxed);
}

void FlightRecorder::end_profile() {
  const std::lock_guard lock(mu_);
  profiling_.store(false, std::memory_order_relaxed);
  records_max_ = options_.records_max;
  while (records_.size() > records_max_) {
    records_.pop_front();
    ++forgotten_;
  }
}

std::string FlightRecorder::path_in(const std::string& folder) const {
  return str(folder, "/rank-", options_.rank, ".json");
}

void FlightRecorder::set_folder(const std::string& folder) {
  const std::lock_guard lock(mu_);
  folder_ = folder;
}

std::string FlightRecorder::folder() const {
  const std::lock_guard lock(mu_);
  return folder_;
}

void FlightRecorder::fail(std::uint16_t group, const std::string& reason) {
  record({.group = group, .event = FlightEvent::kFailed});
  {
    const std::lock_guard lock(mu_);
    reason_ = reason_.empty() ? reason : reason_;
  }
  if (auto status = write(); !status.ok()) {
    log_warning(status.message());
  }
}

Status FlightRecorder::write() const {
  const auto to = folder();
  if (to.empty()) {
    return {};
  }
  keep_previous(to);
  return write_to(to);
}

void FlightRecorder::keep_previous(const std::string& folder) const {
  const std::lock_guard writing(write_mu_);
  if (std::exchange(kept_previous_in_, folder) == folder) {
    return;
  }
  std::error_code none_there;
  const auto path = path_in(folder);
  std::filesystem::rename(path, path + ".previous", none_there);
}

Status FlightRecorder::write_to(const std::string& folder) const {
  // An older state of the file must not replace a newer one.
  const std::lock_guard writing(write_mu_);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const auto written = error ? Status(ErrorCode::kUnavailable, error.message())
                             : replace_file(path_in(folder), to_json());
  if (!written.ok()) {
    return {
        ErrorCode::kUnavailable,
        str(path_in(folder),
            ": expected a folder in which to write the events of rank ",
            options_.rank, ", found: ", written.message())};
  }
  return {};
}

std::string FlightRecorder::to_json() const {
  const std::lock_guard lock(mu_);
  const auto number = [](int value) { return std::to_string(value); };
  const auto group = [&](const Group& value) {
    return str(
        "\n{\"name\":", json_string(value.name),
        ",\"ranks\":", json_array(value.ranks, number),
        ",\"units\":", json_array(value.units, json_string), "}");
  };
  return str(
      "{\"format\":\"sherd flight record\",\"version\":1,\"rank\":",
      options_.rank, ",\"world_size\":", options_.world_size,
      ",\"host\":", json_string(options_.host),
      ",\"run\":", json_string(options_.run),
      ",\"reason\":", json_string(reason_), ",\"unix_ns\":", unix_time_ns(),
      ",\"monotonic_ns\":", clock_.now().count(), ",\"forgotten\":", forgotten_,
      ",\n\"groups\":", json_array(groups_, group),
      ",\n\"events\":", json_array(records_, json_of), "}\n");
}

}  // namespace sherd
