// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.h"

#include <sys/resource.h>
#include <csignal>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "base/crc32c.h"
#include "support/scratch_folder.h"

namespace sherd::tools {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kFirst = "/events.out.tfevents.000001";
constexpr const char* kSecond = "/events.out.tfevents.000002";

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

template <typename Number>
Number number_at(const std::string& bytes, std::size_t at) {
  Number value{};
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

// Like TensorFlow's crc32c::Unmask.
std::uint32_t unmasked(std::uint32_t masked) {
  const std::uint32_t turned = masked - 0xa282ead8U;
  return turned >> 17U | turned << 15U;
}

// The payloads of a file; stops with a failure at an invalid frame.
std::vector<std::string> payloads_of(const std::string& path) {
  const std::string bytes = content_of(path);
  std::vector<std::string> payloads;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = number_at<std::uint64_t>(bytes, at);
    EXPECT_EQ(
        unmasked(number_at<std::uint32_t>(bytes, at + 8)),
        crc32c(bytes.data() + at, 8));
    if (at + 16 + length > bytes.size()) {
      ADD_FAILURE() << "a record ends behind its file, at " << at;
      break;
    }
    payloads.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(
        unmasked(number_at<std::uint32_t>(bytes, at + 12 + length)),
        crc32c(payloads.back()));
    at += 16 + length;
  }
  return payloads;
}

// The field `step` of an Event: key 0x10 after the nine bytes of the time.
int step_of(const std::string& payload) { return payload[10]; }

TEST(EventFile, BeginsWithItsVersionAndTheStepFromWhichEarlierFilesAreVoid) {
  const ScratchFolder scratch;
  {
    const EventFile file(scratch.path() + "/a/b", 7);
  }
  const auto payloads = payloads_of(scratch.path() + "/a/b" + kFirst);
  ASSERT_EQ(payloads.size(), 2U);
  EXPECT_THAT(
      payloads[0],
      HasSubstr("\x1a\x0d"
                "brain.Event:2"));
  EXPECT_EQ(step_of(payloads[1]), 7);
  // Field 7, session_log, of two bytes: field 1, status, is 1, START.
  EXPECT_EQ(payloads[1].substr(11), std::string("\x3a\x02\x08\x01"));
}

TEST(EventFile, AStepIsThereAtOnceWithEachMetricThatItHas) {
  const ScratchFolder scratch;
  EventFile file(scratch.path(), 1);
  file.add({.step = 1, .loss = 2.5});
  const auto payloads = payloads_of(scratch.path() + kFirst);
  ASSERT_EQ(payloads.size(), 3U);
  EXPECT_EQ(step_of(payloads[2]), 1);
  // Value: tag "loss" (1) and simple_value (2), a float.
  EXPECT_THAT(
      payloads[2],
      HasSubstr(
          std::string("\x0a\x0b\x0a\x04loss\x15", 9) +
          std::string("\0\0\x20\x40", 4)));
  EXPECT_THAT(payloads[2], ::testing::Not(HasSubstr("val_loss")));
  EXPECT_THAT(payloads[2], ::testing::Not(HasSubstr("mfu")));
  file.add({.step = 2, .loss = 2, .val_loss = 3, .mfu = 0.5});
  EXPECT_THAT(
      payloads_of(scratch.path() + kFirst).back(),
      AllOf(HasSubstr("val_loss"), HasSubstr("mfu"), HasSubstr("grad_norm")));
}

TEST(EventFile, AnotherStartWritesAFileBehindTheOthers) {
  const ScratchFolder scratch;
  {
    EventFile file(scratch.path(), 1);
    file.add({.step = 1});
  }
  const auto before = content_of(scratch.path() + kFirst);
  EventFile file(scratch.path(), 2);
  file.add({.step = 2});
  EXPECT_EQ(content_of(scratch.path() + kFirst), before);
  EXPECT_EQ(payloads_of(scratch.path() + kSecond).size(), 3U);
}

TEST(EventFile, WhatAFullDiskRefusesIsWrittenWhenThereIsRoomAgain) {
  const ScratchFolder scratch;
  EventFile file(scratch.path(), 1);
  file.add({.step = 1});
  const auto whole = content_of(scratch.path() + kFirst).size();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit full{.rlim_cur = whole + 10, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
  file.add({.step = 2});
  EXPECT_EQ(content_of(scratch.path() + kFirst).size(), whole);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  file.add({.step = 3});
  std::vector<int> steps;
  for (const auto& payload : payloads_of(scratch.path() + kFirst)) {
    steps.push_back(step_of(payload));
  }
  EXPECT_THAT(steps, ElementsAre(0, 1, 1, 2, 3));
}

TEST(EventFile, AFolderThatCannotBeMadeIsNamed) {
  const ScratchFolder scratch;
  const auto file = scratch.file("file", "");
  try {
    const EventFile events(file + "/tensorboard", 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr(file), HasSubstr("expected a file that can be"),
            HasSubstr("ot a directory")));
  }
}

}  // namespace
}  // namespace sherd::tools
