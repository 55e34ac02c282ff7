// SPDX-License-Identifier: Apache-2.0
#include "net/bytes.h"

#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::net {
namespace {

using ::testing::HasSubstr;

TEST(ByteWriter, WritesLittleEndianAndLengthsFirst) {
  ByteWriter writer;
  writer.u8(1);
  writer.u16(0x0203);
  writer.u32(0x04050607);
  writer.text("ab");
  writer.boolean(true);
  EXPECT_EQ(
      writer.bytes(),
      std::string("\x01\x03\x02\x07\x06\x05\x04\x02\0\0\0ab\x01", 14));
}

TEST(ByteWriter, BeginsAnewAfterTake) {
  ByteWriter writer;
  writer.raw("ab");
  EXPECT_EQ(writer.take(), "ab");
  writer.raw("c");
  EXPECT_EQ(writer.take(), "c");
}

std::string all_kinds() {
  ByteWriter writer;
  writer.u8(250);
  writer.u16(65000);
  writer.u32(4000000000U);
  writer.u64(std::numeric_limits<std::uint64_t>::max() - 1);
  writer.i64(std::numeric_limits<std::int64_t>::min());
  writer.f64(-0.1);
  writer.boolean(false);
  writer.u8(2);
  writer.text(std::string("a\0b", 3));
  writer.count(3);
  writer.raw("xyz");
  return writer.take();
}

// Like a decoder, reads everything and checks once at the end.
Status read_all_kinds(std::string_view bytes) {
  ByteReader reader(bytes);
  EXPECT_LE(reader.u8("a byte"), 250);
  reader.u16("two");
  reader.u32("four");
  reader.u64("eight");
  reader.i64("a signed one");
  reader.f64("a number");
  reader.boolean("a flag");
  reader.choice("a kind", 2);
  reader.text("a name", 10);
  const auto letters = reader.count("letters", {.elements_max = 5});
  EXPECT_LE(letters, 5U);
  reader.raw("the letters", letters);
  return reader.finish("a test message");
}

TEST(ByteReader, ReadsWhatWasWritten) {
  const std::string bytes = all_kinds();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.u8(""), 250);
  EXPECT_EQ(reader.u16(""), 65000);
  EXPECT_EQ(reader.u32(""), 4000000000U);
  EXPECT_EQ(reader.u64(""), std::numeric_limits<std::uint64_t>::max() - 1);
  EXPECT_EQ(reader.i64(""), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(reader.f64(""), -0.1);
  EXPECT_FALSE(reader.boolean(""));
  EXPECT_EQ(reader.choice("", 2), 2);
  EXPECT_EQ(reader.text("", 3), std::string("a\0b", 3));
  EXPECT_EQ(reader.count("", {.elements_max = 3}), 3U);
  EXPECT_EQ(reader.raw("", 3), "xyz");
  EXPECT_EQ(reader.left(), 0U);
  EXPECT_TRUE(reader.finish("").ok());
}

TEST(ByteReader, RefusesEveryTruncation) {
  const std::string bytes = all_kinds();
  EXPECT_TRUE(read_all_kinds(bytes).ok());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const Status status = read_all_kinds(bytes.substr(0, length));
    EXPECT_FALSE(status.ok()) << length;
    EXPECT_THAT(status.message(), HasSubstr("[net] a test message: expected"));
  }
}

TEST(ByteReader, RefusesBytesAfterTheEnd) {
  const Status status = read_all_kinds(all_kinds() + "?");
  EXPECT_EQ(status.code(), ErrorCode::kPeerMismatch);
  EXPECT_THAT(status.message(), HasSubstr("found 1 bytes more"));
}

TEST(ByteReader, KeepsItsFirstFailureAndReadsZerosAfterIt) {
  ByteReader reader("\x07\x07\x07");
  EXPECT_EQ(reader.u32("a number"), 0U);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.u8("another"), 0);
  EXPECT_EQ(reader.text("a text", 10), "");
  EXPECT_EQ(reader.raw("bytes", 1), "");
  EXPECT_EQ(reader.count("things", {.elements_max = 10}), 0U);
  reader.fail("something else");
  EXPECT_EQ(
      reader.finish("m").message(),
      "[net] m: expected 4 bytes of a number at offset 0, found 3");
}

TEST(ByteReader, RefusesLengthsAboveTheLimitBeforeAnythingElse) {
  ByteWriter writer;
  writer.u32(0xffffffff);
  ByteReader text(writer.bytes());
  text.text("a name", 100);
  EXPECT_EQ(
      text.finish("m").message(),
      "[net] m: expected at most 100 bytes of a name, found 4294967295");
  ByteReader list(writer.bytes());
  EXPECT_EQ(list.count("members", {.elements_max = 100}), 0U);
  EXPECT_EQ(
      list.finish("m").message(),
      "[net] m: expected at most 100 members, found 4294967295");
}

TEST(ByteReader, RefusesMoreElementsThanTheBytesLeftCanHold) {
  ByteWriter writer;
  writer.count(3);
  writer.raw(std::string(23, 'x'));
  ByteReader reader(writer.bytes());
  EXPECT_EQ(
      reader.count("pairs", {.elements_max = 100, .element_bytes = 8}), 0U);
  EXPECT_THAT(
      reader.finish("m").message(),
      HasSubstr("expected 3 pairs of at least 8 bytes each, found 23 bytes"));
}

TEST(ByteReader, RefusesChoicesOutOfRange) {
  ByteReader kind("\x03");
  EXPECT_EQ(kind.choice("a kind", 2), 0);
  EXPECT_THAT(
      kind.finish("m").message(), HasSubstr("at most 2 as a kind, found 3"));
  ByteReader flag("\x02");
  EXPECT_FALSE(flag.boolean("a flag"));
  EXPECT_FALSE(flag.ok());
}

}  // namespace
}  // namespace sherd::net
