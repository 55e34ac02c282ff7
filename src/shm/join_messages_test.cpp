// SPDX-License-Identifier: Apache-2.0
#include "shm/join_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::shm {
namespace {

constexpr JoinRequest kJoinRequest{.rank = 2, .ranks = 4, .bytes = 1000};

TEST(JoinText, AHelloComesBackAsItWas) {
  const auto back = JoinRequest::from_text(kJoinRequest.to_text());
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->rank, 2);
  EXPECT_EQ(kJoinRequest.difference(*back), "");
}

TEST(JoinText, NothingElseIsAHello) {
  for (const char* text :
       {"", "request", "sherd-join-1 2 4", "sherd-join-0 2 4 1000",
        "sherd-join-1 -1 4 1000", "sherd-join-1 two 4 1000"}) {
    EXPECT_FALSE(JoinRequest::from_text(text).has_value()) << text;
  }
}

TEST(JoinText, NamesWhatDiffers) {
  JoinRequest other = kJoinRequest;
  other.bytes = 999;
  EXPECT_EQ(kJoinRequest.difference(other), "bytes: 1000, found 999");
  other.ranks = 3;
  EXPECT_EQ(kJoinRequest.difference(other), "ranks: 4, found 3");
}

TEST(JoinText, AFailureComesBackAsItWas) {
  const Status failure(ErrorCode::kPeerLost, "[shm] rank 1: it has died");
  const auto back = failure_from_text(failure_text(failure));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->code(), failure.code());
  EXPECT_EQ(back->message(), failure.message());
}

TEST(JoinText, NothingElseIsAFailure) {
  for (const char* text :
       {"", "failed", "failed 99 x", "failed -1 x", "mapped"}) {
    EXPECT_FALSE(failure_from_text(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace sherd::shm
