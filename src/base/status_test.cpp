// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <memory>
#include <utility>
#include <gtest/gtest.h>
#include "base/hash.h"

namespace sherd {
namespace {

TEST(Status, SuccessIsSilentAndFailureThrowsItsSentence) {
  EXPECT_TRUE(Status().ok());
  EXPECT_NO_THROW(Status().throw_if_failed());

  const Status lost(ErrorCode::kPeerLost, "[world] rank 2 closed");
  try {
    lost.throw_if_failed();
    FAIL() << "a failure must throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[world] rank 2 closed");
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  }
}

TEST(Result, HoldsAValueOrAFailure) {
  const Result<int> good = 7;
  const Result<int> bad = Status(ErrorCode::kUnavailable, "[base] no file");
  EXPECT_EQ(good.value(), 7);
  EXPECT_FALSE(bad.ok());
  EXPECT_THROW((void)bad.value(), Error);
}

TEST(Check, ThrowsTheSentenceMadeOfItsParts) {
  const int found = 3;
  try {
    SHERD_CHECK(found == 4, "[base] expected 4, found ", found);
    FAIL() << "must throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "[base] expected 4, found 3");
  }
}

TEST(StatusOf, TakesExceptionsOfAnyType) {
  const auto status =
      status_of([] { throw 7; }, ErrorCode::kUnavailable, "[base] ");
  EXPECT_EQ(status.message(), "[base] an exception that is no std::exception");
}

struct MovableHandle {
  HandleState<std::unique_ptr<int>, "[base] MovableHandle"> state;
};

TEST(HandleState, NamesAHandleThatWasMovedFromUntilItIsAssignedTo) {
  MovableHandle first{std::make_unique<int>(7)};
  MovableHandle second = std::move(first);
  EXPECT_EQ(*second.state, 7);
  try {
    // NOLINTNEXTLINE(bugprone-use-after-move): this is what is tested.
    (void)*first.state;
    FAIL() << "must throw";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "[base] MovableHandle was moved from; expected a call of the object "
        "that it was moved to");
    EXPECT_EQ(error.code(), ErrorCode::kFailedPrecondition);
  }
  first = std::move(second);
  EXPECT_EQ(*first.state, 7);
}

TEST(CheckDeathTest, BrokenInvariantAborts) {
  EXPECT_DEATH(SHERD_ASSERT(1 == 2, "because"), "broken invariant.*because");
}

TEST(Hash64, OrderAndBoundariesMatter) {
  const auto h = [](auto... parts) {
    Hash64 hash;
    (hash.add(parts), ...);
    return hash.value();
  };
  EXPECT_NE(
      h(std::string_view("ab"), std::string_view("c")),
      h(std::string_view("a"), std::string_view("bc")));
  EXPECT_NE(
      h(std::uint64_t{1}, std::uint64_t{2}),
      h(std::uint64_t{2}, std::uint64_t{1}));
}

}  // namespace
}  // namespace sherd
