// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/frame.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/ring/block_digest.h"
#include "ft/ring/frame_testing.h"
#include "ft/ring/kernels.h"

namespace sherd::ft::ring {
namespace {

using ::testing::HasSubstr;

FrameHeader some_header() {
  FrameHeader header;
  header.epoch = {3, 14};
  header.step = 1592;
  header.slice = 65;
  header.bucket = 3;
  header.segment = 5;
  header.ring_step = 8;
  header.first_element = std::int64_t{1} << 40U;
  header.payload_bytes = 4096;
  header.payload_checksum = 0xdeadbeef;
  header.place = 1618;
  header.lease = 33;
  header.factor = 0.25F;
  return header;
}

TEST(Frame, AHeaderComesBackAsItWas) {
  const auto back = parse_header(bytes_of(some_header()));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back.value(), some_header());
}

TEST(Frame, AHeaderWithAnyByteChangedIsRefused) {
  for (std::size_t i = 0; i < kHeaderBytes; ++i) {
    HeaderBytes bytes = bytes_of(some_header());
    bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
    EXPECT_FALSE(parse_header(bytes).ok()) << "byte " << i;
  }
}

TEST(Frame, AFactorIsANumberOfAtLeastZero) {
  using Limits = std::numeric_limits<float>;
  for (const float wrong : {-1.0F, Limits::quiet_NaN(), Limits::infinity()}) {
    FrameHeader header = some_header();
    header.factor = wrong;
    EXPECT_THAT(
        parse_header(bytes_of(header)).status().message(),
        HasSubstr("expected a factor of 0 or more"));
  }
}

TEST(Frame, RandomBytesAreRefused) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 10000; ++i) {
    HeaderBytes bytes = {};
    for (auto& byte : bytes) {
      byte = static_cast<char>(random());
    }
    EXPECT_FALSE(parse_header(bytes).ok());
  }
}

std::string payload_of(const std::string& frame) {
  return frame.substr(kHeaderBytes);
}

TEST(Frame, AnyValuesComeBackAsTheyWere) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    test::RandomMessages random(seed);
    const FrameHeader header = random_header(random);
    EXPECT_EQ(parse_header(bytes_of(header)).value(), header);
    const Handshake handshake = random_handshake(random);
    EXPECT_EQ(
        parse_handshake(payload_of(frame_of(Epoch{}, handshake))).value(),
        handshake);
    const RingEnding ending = random_ending(random);
    EXPECT_EQ(
        parse_ending(payload_of(frame_of(Epoch{}, ending))).value(), ending);
  }
}

TEST(Frame, AHelloComesBackAsItWasAndNotCutShort) {
  Handshake handshake{1,  2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, {13, 14, 15},
                      16, 17};
  handshake.proof.fill(18);
  const std::string frame = frame_of(Epoch{1, 2}, handshake);
  HeaderBytes bytes = {};
  std::memcpy(bytes.data(), frame.data(), kHeaderBytes);
  const auto header = parse_header(bytes);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header.value().kind, FrameKind::kHandshake);
  EXPECT_EQ(header.value().epoch, (Epoch{1, 2}));
  const std::string payload = payload_of(frame);
  EXPECT_EQ(header.value().payload_bytes, payload.size());
  const auto back = parse_handshake(payload);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back.value(), handshake);
  for (std::size_t n = 0; n < payload.size(); ++n) {
    EXPECT_FALSE(parse_handshake(payload.substr(0, n)).ok());
  }
  EXPECT_FALSE(parse_handshake(payload + '\0').ok());
}

TEST(Frame, AChallengeComesBackAsItWasAndNotCutShort) {
  const std::string payload = payload_of(challenge_frame(17));
  EXPECT_EQ(parse_challenge(payload).value(), 17U);
  EXPECT_FALSE(parse_challenge(payload.substr(1)).ok());
  EXPECT_FALSE(parse_challenge(payload + '\0').ok());
}

// Without the key, nothing can be changed or taken from another connection.
TEST(Frame, AProofRestsOnTheKeyTheChallengeTheEpochAndEveryWord) {
  test::RandomMessages random(1);
  const Epoch epoch{1, 2};
  const Handshake handshake = random_handshake(random);
  const RingKey key{3, 4};
  const auto proof = proof_of(epoch, handshake, key, 5);
  EXPECT_EQ(proof, proof_of(epoch, handshake, key, 5));
  EXPECT_NE(proof, proof_of({1, 3}, handshake, key, 5));
  EXPECT_NE(proof, proof_of({2, 2}, handshake, key, 5));
  EXPECT_NE(proof, proof_of(epoch, handshake, {3, 5}, 5));
  EXPECT_NE(proof, proof_of(epoch, handshake, {2, 4}, 5));
  EXPECT_NE(proof, proof_of(epoch, handshake, key, 6));
  const std::string payload = payload_of(frame_of(epoch, handshake));
  for (std::size_t i = 0; i + handshake.proof.size() < payload.size(); ++i) {
    std::string changed = payload;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_NE(proof, proof_of(epoch, parse_handshake(changed).value(), key, 5))
        << "byte " << i;
  }
}

TEST(Frame, AnEndingKeepsItsWordsWithinBoundsAndReadable) {
  RingEnding ending{RingFault::kChecksum, 3, 4, 17, "it broke\n\x1b[2J"};
  const auto back = parse_ending(payload_of(frame_of(Epoch{}, ending)));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back.value().reason, "it broke??[2J");
  EXPECT_EQ(back.value().accused, 4U);
  EXPECT_EQ(back.value().finished_step, 17);
  ending.reason = std::string(10000, 'x');
  const auto cut = parse_ending(payload_of(frame_of(Epoch{}, ending)));
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut.value().reason, std::string(400, 'x'));
  EXPECT_FALSE(parse_ending("\x09").ok());
}

// ---- arithmetic ----

TEST(Kernels, RoundEachOperationAsOneFloatAtATimeDoes) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<float> any(-1e3F, 1e3F);
  for (const std::int64_t count : {0, 1, 3, 7, 8, 31, 1000}) {
    const auto n = static_cast<std::size_t>(count);
    std::vector<float> sum(n);
    std::vector<float> in(n);
    for (std::size_t i = 0; i < n; ++i) {
      sum[i] = any(random);
      in[i] = any(random);
    }
    const float factor = 1.0F / 3.0F;
    std::vector<float> out(n);
    add_two_scaled(out.data(), sum.data(), 1, in.data(), factor, count);
    std::vector<float> added = sum;
    add_scaled_to(added.data(), in.data(), factor, count);
    for (std::size_t i = 0; i < n; ++i) {
      volatile float product = factor * in[i];
      volatile float expected = sum[i] + product;
      EXPECT_EQ(out[i], expected);
      EXPECT_EQ(added[i], expected);
    }
    scale(out.data(), in.data(), factor, count);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(out[i], factor * in[i]);
    }
  }
}

TEST(Kernels, ZerosChangeTheSignOfZeroAlone) {
  const std::vector<float> sum = {
      -0.0F, 1.5F, -std::numeric_limits<float>::infinity()};
  std::vector<float> out(3, 9.0F);
  scale_and_add_zeros(out.data(), sum.data(), 1, 3);
  EXPECT_FALSE(std::signbit(out[0]));
  EXPECT_EQ(out[1], sum[1]);
  EXPECT_EQ(out[2], sum[2]);
}

// ---- digests ----

TEST(BlockDigest, IsTheSameHoweverThePartsCome) {
  std::mt19937_64 random(13);
  const std::vector<std::int64_t> layout = {
      0, 1, kDigestBlockElements, kDigestBlockElements * 2 + 5, 7};
  std::vector<std::size_t> begins;
  std::vector<float> whole;
  for (const auto count : layout) {
    begins.push_back(whole.size());
    for (std::int64_t i = 0; i < count; ++i) {
      whole.push_back(static_cast<float>(random() % 1000));
    }
  }
  const auto expected = digest_of(layout, whole.data());
  for (int round = 0; round < 20; ++round) {
    struct Part {
      int bucket;
      FloatRange span;
    };
    std::vector<Part> parts;
    for (std::size_t b = 0; b < layout.size(); ++b) {
      for (std::int64_t at = 0; at < layout[b];) {
        const auto more = std::min<std::int64_t>(
            layout[b] - at, 1 + static_cast<std::int64_t>(random() % 50000));
        parts.push_back({static_cast<int>(b), {at, at + more}});
        at += more;
      }
    }
    std::shuffle(parts.begin(), parts.end(), random);
    BlockDigest digest(layout);
    for (const auto& part : parts) {
      digest.complete(
          part.bucket,
          whole.data() + begins[static_cast<std::size_t>(part.bucket)],
          part.span);
    }
    EXPECT_EQ(digest.value(), expected);
  }
  whole[begins[3] + 100000] += 1.0F;
  EXPECT_NE(digest_of(layout, whole.data()), expected);
}

}  // namespace
}  // namespace sherd::ft::ring
