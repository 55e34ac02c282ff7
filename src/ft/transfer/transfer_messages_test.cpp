// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/transfer_messages.h"

#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/transfer/digest.h"
#include "ft/transfer/transfer_testing.h"

namespace sherd::ft::transfer {
namespace {

using testing::commit_of;
using ::testing::HasSubstr;
using testing::state_of;

const Request kRequest{Kind::kFetchSum, 7, 3, state_of(12), 60000};
const Refusal kRefusal{Why::kBusy, "too many"};
const Answer kAnswer{
    Kind::kFetchSnapshot, state_of(4), commit_of(9), 1U << 30U, 4096};

// Bytes that end too early are refused everywhere, and those that go on.
template <typename T, typename Decode>
void check(const T& value, Decode decode) {
  const std::string bytes = bytes_of(value);
  EXPECT_EQ(decode(bytes).value(), value);
  for (std::size_t count = 0; count < bytes.size(); ++count) {
    const auto result = decode(bytes.substr(0, count));
    ASSERT_FALSE(result.ok()) << count;
    EXPECT_EQ(result.status().code(), ErrorCode::kPeerMismatch);
  }
  EXPECT_FALSE(decode(bytes + "x").ok());
}

TEST(TransferMessages, ComeBackAsTheyWereAndAreRefusedWhenCut) {
  check(kRequest, request_of);
  check(kRefusal, refusal_of);
  check(kAnswer, answer_of);
  check(WantChunk{std::numeric_limits<std::uint64_t>::max()}, want_chunk_of);
  check(Whole{99}, whole_of);
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
      HasSubstr("expected version 1, found 9"));
  bytes = bytes_of(kAnswer);
  bytes[0] = 9;
  EXPECT_FALSE(answer_of(bytes).ok());
}

TEST(TransferMessages, ValuesOutOfRangeAreRefused) {
  Request request = kRequest;
  request.state.step = -1;
  EXPECT_FALSE(request_of(bytes_of(request)).ok());
  std::string bytes = bytes_of(kRequest);
  bytes[2] = 3;  // What is asked for.
  EXPECT_FALSE(request_of(bytes).ok());
  Answer answer = kAnswer;
  for (const std::uint32_t count :
       {0U, static_cast<std::uint32_t>(kChunkBytesMax + 1)}) {
    answer.chunk_bytes = count;
    EXPECT_THAT(
        answer_of(bytes_of(answer)).status().message(),
        HasSubstr("expected chunks of 1 to 1048576 bytes"));
  }
}

TEST(TransferMessages, LongReasonIsCut) {
  const Refusal refusal{Why::kNotThere, std::string(100'000, 'x')};
  EXPECT_EQ(
      refusal_of(bytes_of(refusal)).value().reason.size(), kReasonBytesMax);
}

TEST(TransferDigest, OfPiecesIsThatOfTheWhole) {
  const auto bytes = testing::random_bytes(10'000, 3);
  RunningDigest running;
  EXPECT_EQ(running.value(), digest_of(""));
  for (std::size_t at = 0; at < bytes->size(); at += 777) {
    running.add(std::string_view(*bytes).substr(at, 777));
  }
  EXPECT_EQ(running.count(), bytes->size());
  EXPECT_EQ(running.value(), digest_of(*bytes));
}

}  // namespace
}  // namespace sherd::ft::transfer
