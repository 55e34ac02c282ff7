// SPDX-License-Identifier: Apache-2.0
#include "trace/flight_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "text_file.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFormat = "sherd flight record";
constexpr int kRanksMax = 1'000'000;

[[noreturn]] void refuse(const std::string& path, const std::string& found) {
  throw Error(
      path +
      ": expected the events of a rank as `sherd run --flight-dir` or "
      "`sherd train --profile` leaves them, found " +
      found);
}

// The enumerator with that text; `last` is the last one of them.
template <typename Enum>
std::optional<Enum> enumerator(const std::string& text, Enum last) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    if (text_of(static_cast<Enum>(i)) == text) {
      return static_cast<Enum>(i);
    }
  }
  return std::nullopt;
}

// [time_ns, event, step, group, unit, sequence, bytes]
FlightRecord parse_event(
    const Json& row,
    const std::vector<FlightFile::Group>& groups,
    const std::string& path) {
  const auto event =
      enumerator(row.at(1).get<std::string>(), FlightEvent::kFailed);
  const auto step =
      enumerator(row.at(2).get<std::string>(), FlightStep::kBackward);
  const auto group = row.at(3).get<std::int64_t>();
  const auto unit = row.at(4).get<std::int64_t>();
  if (!event || !step) {
    refuse(path, "the event " + row.dump());
  }
  const bool known = group >= 0 &&
      group < static_cast<std::int64_t>(groups.size()) && unit >= -1 &&
      unit < static_cast<std::int64_t>(
                 groups[static_cast<std::size_t>(group)].units.size());
  if (!known) {
    refuse(path, "an event of no known exchange or unit: " + row.dump());
  }
  return {
      .time_ns = row.at(0).get<std::int64_t>(),
      .sequence = row.at(5).get<std::uint64_t>(),
      .bytes = row.at(6).get<std::int64_t>(),
      .unit = static_cast<std::int32_t>(unit),
      .group = static_cast<std::uint16_t>(group),
      .event = *event,
      .step = *step};
}

FlightFile parse(const Json& json, const std::string& path) {
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    refuse(path, "another format");
  }
  if (json.at("version") != 1) {
    refuse(path, "version " + json.at("version").dump() + " instead of 1");
  }
  FlightFile file;
  file.rank = json.at("rank").get<int>();
  file.world_size = json.at("world_size").get<int>();
  file.host = json.at("host").get<std::string>();
  file.run = json.value("run", "");
  file.reason = json.at("reason").get<std::string>();
  file.unix_ns = json.at("unix_ns").get<std::int64_t>();
  file.monotonic_ns = json.at("monotonic_ns").get<std::int64_t>();
  file.forgotten = json.at("forgotten").get<std::uint64_t>();
  for (const auto& group : json.at("groups")) {
    file.groups.push_back(
        {.name = group.at("name").get<std::string>(),
         .ranks = group.at("ranks").get<std::vector<int>>(),
         .units = group.at("units").get<std::vector<std::string>>()});
  }
  for (const auto& row : json.at("events")) {
    file.events.push_back(parse_event(row, file.groups, path));
  }
  if (file.rank < 0 || file.rank >= file.world_size ||
      file.world_size > kRanksMax) {
    refuse(
        path,
        "rank " + std::to_string(file.rank) + " of " +
            std::to_string(file.world_size));
  }
  return file;
}

// When the ranks of this host ended each step of all ranks, according to the first of them that
// recorded it.
using StepEnds = std::map<std::pair<std::string, std::uint64_t>, std::int64_t>;
StepEnds step_ends(std::span<const FlightFile> files, const std::string& host) {
  StepEnds ends;
  for (const auto& file : files) {
    for (const auto& event : file.events) {
      if (file.host == host && event.event == FlightEvent::kAgreed) {
        ends.try_emplace(
            {file.groups[event.group].name, event.sequence}, event.time_ns);
      }
    }
  }
  return ends;
}

std::int64_t offset_between(
    std::span<const FlightFile> files,
    const FlightFile& reference,
    const FlightFile& other) {
  const auto theirs = step_ends(files, other.host);
  std::vector<std::int64_t> offsets;
  for (const auto& [step, time_ns] : step_ends(files, reference.host)) {
    if (const auto found = theirs.find(step); found != theirs.end()) {
      offsets.push_back(time_ns - found->second);
    }
  }
  if (offsets.empty()) {
    return (reference.monotonic_ns - reference.unix_ns) -
        (other.monotonic_ns - other.unix_ns);
  }
  const auto middle =
      offsets.begin() + static_cast<std::ptrdiff_t>(offsets.size() / 2);
  std::nth_element(offsets.begin(), middle, offsets.end());
  return *middle;
}

// Drops what other runs than the last one to write have left.
void keep_last_run(std::vector<FlightFile>& files) {
  const auto newest = std::ranges::max_element(files, {}, &FlightFile::unix_ns);
  const std::string run = newest == files.end() ? "" : newest->run;
  std::erase_if(files, [&](const FlightFile& file) { return file.run != run; });
}

// ", but replica-0 and ..." for a folder with those of the replicas of a run; "" for another one.
std::string replicas_text(const std::string& folder) {
  std::set<std::string> replicas;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("replica-") && entry.is_directory(error)) {
      replicas.insert(name);
    }
  }
  std::string text;
  for (const auto& name : replicas) {
    text += (text.empty() ? ", but folders of replicas: " : ", ") + name;
  }
  return text.empty() ? "" : text + "; name one of them";
}

}  // namespace

FlightFile parse_flight_file(const std::string& text, const std::string& path) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    refuse(
        path,
        text.empty() ? "an empty file"
                     : "a text that is no JSON, or half of one");
  }
  try {
    return parse(json, path);
  } catch (const Json::exception& error) {
    refuse(path, error.what());
  }
}

std::vector<FlightFile> read_flight_folder(const std::string& folder) {
  std::vector<FlightFile> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto path = entry.path();
    const auto name = path.filename().string();
    if (!name.starts_with("rank-") || !name.ends_with(".json")) {
      continue;
    }
    auto file = parse_flight_file(text_in(path.string()), path.string());
    if (name != "rank-" + std::to_string(file.rank) + ".json") {
      refuse(path.string(), "those of rank " + std::to_string(file.rank));
    }
    files.push_back(std::move(file));
  }
  if (files.empty()) {
    throw Error(
        folder + ": expected a folder with rank-0.json and so on, found " +
        (error ? error.message() : "none in it" + replicas_text(folder)));
  }
  keep_last_run(files);
  std::ranges::sort(files, {}, &FlightFile::rank);
  for (const auto& file : files) {
    if (file.world_size != files.front().world_size) {
      refuse(
          folder + "/rank-" + std::to_string(file.rank) + ".json",
          "those of one of " + std::to_string(file.world_size) +
              " ranks beside one of " +
              std::to_string(files.front().world_size));
    }
  }
  return files;
}

void align_clocks(std::span<FlightFile> files) {
  std::map<std::string, std::int64_t> offsets;
  for (const auto& file : files) {
    if (!offsets.contains(file.host)) {
      offsets[file.host] = file.host == files.front().host
          ? 0
          : offset_between(files, files.front(), file);
    }
  }
  for (auto& file : files) {
    const auto offset = offsets.at(file.host);
    file.monotonic_ns += offset;
    for (auto& event : file.events) {
      event.time_ns += offset;
    }
  }
}

std::string subject_of(const FlightFile& file, const FlightRecord& event) {
  const std::string step(text_of(event.step));
  if (event.unit < 0) {
    return step;
  }
  const auto& unit =
      file.groups[event.group].units[static_cast<std::size_t>(event.unit)];
  const auto space = step.find(' ');  // "unshard in forward"
  return step.empty() ? unit
                      : step.substr(0, space) + " " + unit +
          (space == std::string::npos ? "" : step.substr(space));
}

}  // namespace sherd::tools
