// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.h"

#include <bit>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include "base/crc32c.h"
#include "train/metric_columns.h"
#include "train/step_meter.h"

namespace sherd::tools {
namespace {

static_assert(std::endian::native == std::endian::little);

// Types of fields in a protocol buffer's wire format: a key, made of number and type, precedes the
// value.
constexpr unsigned kVarint = 0;
constexpr unsigned kFixed64 = 1;
constexpr unsigned kBytes = 2;
constexpr unsigned kFixed32 = 5;

// Field numbers in event.proto and summary.proto.
constexpr unsigned kEventWallTime = 1;
constexpr unsigned kEventStep = 2;
constexpr unsigned kEventFileVersion = 3;
constexpr unsigned kEventSummary = 5;
constexpr unsigned kEventSessionLog = 7;
constexpr unsigned kSessionLogStatus = 1;
constexpr unsigned kSessionLogStart = 1;  // A value of the status.
constexpr unsigned kSummaryValue = 1;
constexpr unsigned kValueTag = 1;
constexpr unsigned kValueSimple = 2;

template <typename Number>
std::string raw(Number value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7U) {
    bytes += static_cast<char>((value & 0x7fU) | 0x80U);
  }
  return bytes + static_cast<char>(value);
}

std::string key(unsigned field, unsigned type) {
  return varint(field << 3U | type);
}

std::string number_field(unsigned field, double value) {
  return key(field, kFixed64) + raw(value);
}

std::string number_field(unsigned field, float value) {
  return key(field, kFixed32) + raw(value);
}

std::string number_field(unsigned field, std::uint64_t value) {
  return key(field, kVarint) + varint(value);
}

std::string bytes_field(unsigned field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

// CRCs of data that contain CRCs are weak, so the format rotates them and adds a constant.
std::uint32_t masked_crc(std::string_view bytes) {
  constexpr std::uint32_t kDelta = 0xa282ead8;
  return std::rotr(crc32c(bytes), 15) + kDelta;
}

std::string event(double time, std::int64_t step, const std::string& what) {
  return number_field(kEventWallTime, time) +
      number_field(kEventStep, static_cast<std::uint64_t>(step)) + what;
}

std::string scalar(const char* tag, double value) {
  return bytes_field(
      kSummaryValue,
      bytes_field(kValueTag, tag) +
          number_field(kValueSimple, static_cast<float>(value)));
}

// Step and time are those of the event.
std::string summary(const StepMetrics& record) {
  std::string values;
  for (const auto& column : kMetricColumns) {
    const std::string_view name = column.name;
    const auto value = column.value(record);
    if (value && name != "step" && name != "time") {
      values += scalar(column.name, *value);
    }
  }
  return values;
}

// Creates the folder. Readers take files in the order of their names, and identify them by the text
// between the dots.
std::string next_path(const std::string& folder) {
  std::string path;
  // What cannot be created or inspected cannot be opened either.
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  int number = 0;
  do {
    char name[64];
    std::snprintf(name, sizeof(name), "/events.out.tfevents.%06d", ++number);
    path = folder + name;
  } while (std::filesystem::exists(path, ignored));
  return path;
}

}  // namespace

std::string event_record(std::string_view payload) {
  const std::string length = raw(static_cast<std::uint64_t>(payload.size()));
  return length + raw(masked_crc(length)) + std::string(payload) +
      raw(masked_crc(payload));
}

EventFile::EventFile(const std::string& folder, std::int64_t first_step)
    : file_(next_path(folder)) {
  const double now_s = unix_time_s();
  const auto header =
      event_record(
          event(now_s, 0, bytes_field(kEventFileVersion, "brain.Event:2"))) +
      event_record(event(
          now_s, first_step,
          bytes_field(
              kEventSessionLog,
              number_field(
                  kSessionLogStatus, std::uint64_t{kSessionLogStart}))));
  // If the disk refuses it now, it is written with the first step.
  file_.append(header);
}

void EventFile::add(const StepMetrics& record) {
  file_.append(event_record(event(
      record.time, record.step, bytes_field(kEventSummary, summary(record)))));
}

}  // namespace sherd::tools
