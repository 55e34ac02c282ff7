// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.h"

#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <sherd/base/error.h>
#include "base/crc32c.h"

namespace sherd::tools {
namespace {

static_assert(std::endian::native == std::endian::little);

// Fields of a protocol buffer's wire format: a key, number and type of the
// field, and then the value.
constexpr unsigned kVarint = 0;
constexpr unsigned kFixed64 = 1;
constexpr unsigned kBytes = 2;
constexpr unsigned kFixed32 = 5;

// Numbers of fields in event.proto and summary.proto.
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

// CRCs of data that hold CRCs say little, so the format turns and shifts them.
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

std::string scalar(const char* tag, const std::optional<double>& value) {
  return value.has_value() ? scalar(tag, *value) : "";
}

std::string summary(const StepMetrics& record) {
  return scalar("loss", record.loss) + scalar("val_loss", record.val_loss) +
      scalar("lr", record.lr) + scalar("grad_norm", record.grad_norm) +
      scalar("step_s", record.step_s) +
      scalar("tokens_per_s", record.tokens_per_s) + scalar("mfu", record.mfu) +
      scalar("rss_bytes", static_cast<double>(record.rss_bytes)) +
      scalar("tokens", static_cast<double>(record.tokens));
}

// Readers take files in the order of their names, and know them by what is
// between the dots.
std::string next_path(const std::string& folder) {
  std::string path;
  std::error_code ignored;  // What cannot be looked at cannot be opened.
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

EventFile::EventFile(const std::string& folder, std::int64_t first_step) {
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  const std::string path = next_path(folder);
  errno = 0;
  file_.open(path, std::ios::binary);
  const double now_s = std::chrono::duration<double>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count();
  append(event(now_s, 0, bytes_field(kEventFileVersion, "brain.Event:2")));
  append(event(
      now_s, first_step,
      bytes_field(
          kEventSessionLog,
          number_field(kSessionLogStatus, std::uint64_t{kSessionLogStart}))));
  if (!pending_.empty()) {
    throw Error(
        path + ": expected a file that can be written, found " +
            (failure ? failure.message() : std::strerror(errno)),
        ErrorCode::kUnavailable);
  }
}

void EventFile::add(const StepMetrics& record) {
  append(event(
      record.time, record.step, bytes_field(kEventSummary, summary(record))));
}

void EventFile::append(std::string_view event) {
  pending_ += event_record(event);
  file_.clear();
  file_.seekp(size_);  // Behind it there may be a part of a record.
  file_.write(pending_.data(), static_cast<std::streamsize>(pending_.size()));
  file_.flush();
  if (file_) {
    size_ += static_cast<std::int64_t>(pending_.size());
    pending_.clear();
  }
}

}  // namespace sherd::tools
