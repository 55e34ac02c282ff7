// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <random>
#include <string>
#include <gtest/gtest.h>

namespace sherd {
namespace {

std::string random_bytes(std::size_t count, std::mt19937_64& random) {
  std::string bytes(count, '\0');
  for (char& byte : bytes) {
    byte = static_cast<char>(random() & 0xffU);
  }
  return bytes;
}

// The checksum bit by bit, by its definition.
std::uint32_t by_definition(const std::string& bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 1U) != 0 ? (crc >> 1U) ^ 0x82f63b78U : crc >> 1U;
    }
  }
  return ~crc;
}

TEST(Crc32c, GivesThePublishedValues) {
  // RFC 3720, B.4.
  std::string rising;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
  }
  const std::string falling(rising.rbegin(), rising.rend());
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c(rising), 0x46dd794eU);
  EXPECT_EQ(crc32c(falling), 0x113fdb5cU);
}

TEST(Crc32c, IsTheDefinitionAtEveryLengthAndAlignment) {
  std::mt19937_64 random(1);
  for (std::size_t count = 0; count < 70; ++count) {
    for (std::size_t begin = 0; begin < 9; ++begin) {
      const std::string bytes = random_bytes(begin + count, random);
      const auto expected = by_definition(bytes.substr(begin));
      EXPECT_EQ(crc32c(bytes.data() + begin, count), expected);
      EXPECT_EQ(crc32c_by_table(bytes.data() + begin, count), expected);
    }
  }
  for (const std::size_t count : {3071U, 3072U, 3073U, 6144U, 9999U, 65536U}) {
    const std::string bytes = random_bytes(count, random);
    EXPECT_EQ(crc32c(bytes), by_definition(bytes)) << count;
    EXPECT_EQ(crc32c_by_table(bytes.data(), count), by_definition(bytes));
  }
}

TEST(Crc32c, IsTheSameInPieces) {
  std::mt19937_64 random(2);
  const std::string bytes = random_bytes(10000, random);
  const auto whole = crc32c(bytes);
  for (int i = 0; i < 200; ++i) {
    const std::size_t cut = random() % (bytes.size() + 1);
    const auto first = crc32c(bytes.data(), cut);
    EXPECT_EQ(crc32c(bytes.data() + cut, bytes.size() - cut, first), whole);
    EXPECT_EQ(
        crc32c_by_table(bytes.data() + cut, bytes.size() - cut, first), whole);
  }
}

TEST(Crc32c, NoticesEachChangedBit) {
  std::mt19937_64 random(3);
  std::string bytes = random_bytes(100, random);
  const auto right = crc32c(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto flip = static_cast<char>(1U << (bit % 8));
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ flip);
    EXPECT_NE(crc32c(bytes), right) << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ flip);
  }
}

}  // namespace
}  // namespace sherd
