// SPDX-License-Identifier: Apache-2.0
#include "net/frame.h"

#include <random>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/crc32c.h"
#include "net/bytes.h"

namespace sherd::net {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Frames = std::vector<Frame>;
constexpr std::size_t kMax = std::size_t{1} << 20U;

std::string bytes_of(const Frames& frames) {
  std::string bytes;
  for (const Frame& frame : frames) {
    bytes += frame_bytes(frame);
  }
  return bytes;
}

Status read(std::string_view bytes, Frames& frames) {
  FrameReader reader(kMax);
  return reader.take(bytes, frames);
}

const Frames& some_frames() {
  static const Frames kFrames = {
      {.type = 1, .payload = "first"},
      {.type = 2, .payload = ""},
      {.type = 65535, .flags = 3, .version_minor = 9, .payload = "x"},
      {.type = 1, .payload = std::string(1000, '\0')}};
  return kFrames;
}

TEST(Frame, IsReadAsItWasWrittenHoweverTheBytesCome) {
  const std::string bytes = bytes_of(some_frames());
  for (std::size_t piece = 1; piece < bytes.size(); piece += 1 + piece / 3) {
    FrameReader reader(kMax);
    Frames frames;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      ASSERT_TRUE(reader.take(bytes.substr(at, piece), frames).ok());
    }
    EXPECT_EQ(frames, some_frames()) << "in pieces of " << piece;
    EXPECT_FALSE(reader.inside_frame());
  }
}

TEST(Frame, HasTheBytesThatTheHeaderFileSays) {
  std::string bytes = "before";
  append_frame(bytes, 0x0102, "123456789");
  EXPECT_EQ(
      bytes.substr(0, 6 + 20),
      std::string("beforeSHRD\1\0\0\0\2\1\0\0\x9\0\0\0\x83\x92\x06\xe3", 26));
  EXPECT_EQ(bytes.substr(6 + kFrameHeaderBytes), "123456789");
}

TEST(Frame, IsRefusedWithAnyByteChanged) {
  const std::string good = frame_bytes({.type = 7, .payload = "some payload"});
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string bytes = good;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      Frames frames;
      const Status status = read(bytes, frames);
      EXPECT_FALSE(status.ok()) << at;
      EXPECT_THAT(frames, IsEmpty());
      EXPECT_THAT(
          status.message(),
          AnyOf(
              HasSubstr("begin with"), HasSubstr("version"),
              HasSubstr("checksum")));
    }
  }
}

TEST(Frame, OfAnotherMajorVersionIsRefusedNamingBoth) {
  std::string bytes = frame_bytes({.type = 1, .payload = "?"});
  bytes[4] = 2;
  bytes[6] = 5;
  Frames frames;
  EXPECT_THAT(
      read(bytes, frames).message(),
      HasSubstr("expected version 1.0 of the messages, found version 2.5"));
}

TEST(Frame, OfStrangersIsRefusedAtTheFirstWrongByte) {
  Frames frames;
  EXPECT_THAT(
      read("G", frames).message(),
      HasSubstr("expected frames of sherd, found bytes that begin with 47"));
  EXPECT_THAT(read("SH ", frames).message(), HasSubstr("53 48 20"));
  EXPECT_THAT(
      read(std::string("\x16\x03\x01\x02\x00", 5), frames).message(),
      HasSubstr("TLS"));
}

TEST(Frame, AboveTheLimitIsRefusedByItsHeader) {
  FrameReader reader(100);
  Frames frames;
  const std::string fits = frame_bytes({.payload = std::string(100, 'a')});
  const std::string over = frame_bytes({.payload = std::string(101, 'a')});
  EXPECT_TRUE(reader.take(fits, frames).ok());
  EXPECT_EQ(
      reader.take(over.substr(0, kFrameHeaderBytes), frames).message(),
      "[net] expected payloads of at most 100 bytes, found 101 in a frame of "
      "type 0");
  EXPECT_EQ(frames.size(), 1U);
}

TEST(FrameReader, HasALimitOfItsOwnForTheFirstFrame) {
  const std::string fits = frame_bytes({.payload = std::string(8, 'a')});
  const std::string over = frame_bytes({.payload = std::string(9, 'a')});
  const auto first_of_8 = [] {
    FrameReader reader(100);
    reader.limit_first(8);
    return reader;
  };
  Frames frames;
  EXPECT_TRUE(first_of_8().take(fits + over, frames).ok());
  EXPECT_EQ(frames.size(), 2U);
  EXPECT_FALSE(first_of_8().take(over, frames).ok());
  EXPECT_EQ(frames.size(), 2U);
}

TEST(FrameReader, GivesFramesBeforeAFailureAndNoneAfterIt) {
  const std::string good = frame_bytes({.type = 1, .payload = "good"});
  FrameReader reader(kMax);
  Frames frames;
  const Status status = reader.take(good + "garbage" + good, frames);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(frames.size(), 1U);
  EXPECT_EQ(reader.take(good, frames).message(), status.message());
  EXPECT_EQ(frames.size(), 1U);
}

TEST(FrameReader, KnowsWhetherItIsInsideAFrame) {
  const std::string bytes = frame_bytes({.type = 1, .payload = "payload"});
  FrameReader reader(kMax);
  Frames frames;
  EXPECT_FALSE(reader.inside_frame());
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    ASSERT_TRUE(reader.take(bytes.substr(at, 1), frames).ok());
    EXPECT_EQ(reader.inside_frame(), at + 1 < bytes.size());
  }
}

TEST(FrameReader, TakesNoMemoryForPromises) {
  FrameReader reader(std::size_t{1} << 31U);
  Frames frames;
  // The header announces 1 GiB, but only 1000 bytes of the payload arrive.
  ByteWriter header;
  header.raw(frame_bytes({}).substr(0, 12));
  header.u32(std::uint32_t{1} << 30U);
  header.u32(0);
  header.u32(crc32c(header.bytes()));
  const std::string bytes = header.take() + std::string(1000, 'x');
  ASSERT_TRUE(reader.take(bytes, frames).ok());
  EXPECT_LT(reader.memory_bytes(), 5000U);
}

TEST(FrameReader, NeverFailsOtherwiseThanByStatusOnRandomBytes) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = bytes_of(some_frames());
    for (std::uint64_t damage = random() % 4; damage > 0; --damage) {
      bytes[random() % bytes.size()] = static_cast<char>(random() & 0xffU);
    }
    Frames whole;
    const Status status = read(bytes, whole);
    FrameReader reader(kMax);
    Frames pieces;
    Status last;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t count = 1 + random() % 50;
      last = reader.take(bytes.substr(at, count), pieces);
      at += count;
    }
    EXPECT_EQ(pieces, whole);
    EXPECT_EQ(last.ok(), status.ok());
  }
}

}  // namespace
}  // namespace sherd::net
