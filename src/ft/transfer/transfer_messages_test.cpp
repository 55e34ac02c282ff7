// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/transfer_messages.h"

#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/digest.h"
#include "ft/transfer/transfer_messages_testing.h"
#include "ft/transfer/transfer_testing.h"

namespace sherd::ft::transfer {
namespace {

using testing::commit_of;
using ::testing::HasSubstr;
using testing::state_of;

const TransferRequest kRequest{
    RequestKind::kFetchSum, 7, 3, state_of(12), 60000};
const Refusal kRefusal{RefusalReason::kBusy, "too many"};
const TransferAnswer kAnswer{RequestKind::kFetchSnapshot,
                             state_of(4),
                             commit_of(9),
                             9000,
                             4096,
                             {7, 8, 9}};

// Bytes that end too early at any point are refused, and so are bytes that go on.
template <typename T, typename Decode>
void check(const T& value, const std::string& bytes, Decode decode) {
  EXPECT_EQ(decode(bytes).value(), value);
  for (std::size_t count = 0; count < bytes.size(); ++count) {
    const auto result = decode(bytes.substr(0, count));
    ASSERT_FALSE(result.ok()) << count;
    EXPECT_EQ(result.status().code(), ErrorCode::kPeerMismatch);
  }
  EXPECT_FALSE(decode(bytes + "x").ok());
}

TEST(TransferMessages, ComeBackAsTheyWereAndAreRefusedWhenCut) {
  check(kRequest, bytes_of(kRequest), request_of);
  check(kRefusal, bytes_of(kRefusal), refusal_of);
  check(kAnswer, bytes_of(kAnswer), answer_of);
  constexpr auto kPlace = std::numeric_limits<std::uint64_t>::max();
  check(kPlace, chunk_request(kPlace), chunk_request_of);
}

TEST(TransferMessages, OfAnyValuesComeBackAsTheyWere) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    test::RandomMessages random(seed);
    const TransferRequest request = random_request(random);
    EXPECT_EQ(request_of(bytes_of(request)).value(), request);
    const Refusal refusal = random_refusal(random);
    EXPECT_EQ(refusal_of(bytes_of(refusal)).value(), refusal);
    const TransferAnswer answer = random_answer(random);
    EXPECT_EQ(answer_of(bytes_of(answer)).value(), answer);
  }
}

TEST(TransferMessages, ChunkTakesAllThatFollows) {
  const std::string bytes = bytes_of(Chunk{5, 6, "abc"});
  EXPECT_EQ(chunk_of(bytes).value(), (Chunk{5, 6, "abc"}));
  EXPECT_EQ(chunk_of(bytes_of(Chunk{5, 6, ""})).value(), (Chunk{5, 6, ""}));
  EXPECT_FALSE(chunk_of(bytes.substr(0, 15)).ok());
  const std::string large(kChunkBytesMax + 1, 'x');
  EXPECT_FALSE(chunk_of(bytes_of(Chunk{5, 6, large})).ok());
}

TEST(TransferMessages, AnotherVersionIsNamed) {
  std::string bytes = bytes_of(kRequest);
  bytes[0] = 9;
  EXPECT_THAT(
      request_of(bytes + "more").status().message(),
      HasSubstr("expected version 2, found 9"));
  bytes = bytes_of(kAnswer);
  bytes[0] = 9;
  EXPECT_FALSE(answer_of(bytes).ok());
}

TEST(TransferMessages, ValuesOutOfRangeAreRefused) {
  TransferRequest request = kRequest;
  request.state.step = -1;
  EXPECT_FALSE(request_of(bytes_of(request)).ok());
  std::string bytes = bytes_of(kRequest);
  bytes[2] = 3;  // The kind of the request.
  EXPECT_FALSE(request_of(bytes).ok());
  TransferAnswer answer = kAnswer;
  for (const std::uint32_t count :
       {0U, static_cast<std::uint32_t>(kChunkBytesMax + 1)}) {
    answer.chunk_bytes = count;
    EXPECT_THAT(
        answer_of(bytes_of(answer)).status().message(),
        HasSubstr("expected chunks of 1 to 67108864 bytes"));
  }
}

TEST(TransferMessages, AnAnswerHasOneDigestOfEachChunk) {
  TransferAnswer answer = kAnswer;
  answer.digests.pop_back();
  EXPECT_THAT(
      answer_of(bytes_of(answer)).status().message(),
      HasSubstr("expected the digests of 3 chunks, found 2"));
  answer.kind = RequestKind::kFetchSum;
  answer.digests.clear();
  EXPECT_EQ(answer_of(bytes_of(answer)).value(), answer);
  answer.digests.resize(kDigestsMax + 1);
  EXPECT_FALSE(answer_of(bytes_of(answer)).ok());
}

TEST(TransferMessages, ChunksGrowWithAStateWhoseDigestsWouldBeTooMany) {
  constexpr std::uint64_t kGibi = std::uint64_t{1} << 30U;
  EXPECT_EQ(chunk_bytes_of_state(0), 4096U);
  EXPECT_EQ(chunk_bytes_of_state(64 << 20U), kUsualChunkBytesMax);
  EXPECT_EQ(chunk_bytes_of_state(128 * kGibi), kUsualChunkBytesMax);
  EXPECT_EQ(chunk_bytes_of_state(128 * kGibi + 1), 2 * kUsualChunkBytesMax);
  EXPECT_EQ(chunk_bytes_of_state(8192 * kGibi), kChunkBytesMax);
  EXPECT_EQ(chunk_bytes_of_state(8192 * kGibi + 1), kChunkBytesMax);
  for (std::uint64_t bytes = 1; bytes <= 8192 * kGibi; bytes *= 2) {
    EXPECT_LE(chunks_of(bytes, chunk_bytes_of_state(bytes)), kDigestsMax);
  }
}

TEST(TransferMessages, LongReasonIsCut) {
  const Refusal refusal{RefusalReason::kNotThere, std::string(100'000, 'x')};
  EXPECT_EQ(
      refusal_of(bytes_of(refusal)).value().reason.size(), kReasonBytesMax);
}

TEST(TransferDigest, OfChunksIsThatOfEach) {
  const auto bytes = testing::random_bytes(10'000, 3);
  EXPECT_TRUE(digests_of_chunks("", 4096).empty());
  const auto digests = digests_of_chunks(*bytes, 4096);
  ASSERT_EQ(digests.size(), chunks_of(bytes->size(), 4096));
  for (std::size_t i = 0; i < digests.size(); ++i) {
    EXPECT_EQ(
        digests[i], digest_of(std::string_view(*bytes).substr(4096 * i, 4096)));
  }
}

}  // namespace
}  // namespace sherd::ft::transfer
