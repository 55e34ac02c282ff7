// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/transfer/fetch.h"
#include "ft/transfer/transfer_messages.h"
#include "ft/transfer/transfer_server.h"
#include "ft/transfer/transfer_testing.h"

namespace sherd::ft {
namespace {

using namespace std::chrono_literals;
using net::testing::run_for;
using net::testing::run_until;
using ::testing::AllOf;
using testing::CapturedResult;
using testing::commit_of;
using ::testing::HasSubstr;
using testing::kMebi;
using testing::kRun;
using testing::random_bytes;
using testing::state_of;

// A server, and clients that fetch from it, in one loop.
struct Donor {
  explicit Donor(TransferServerOptions its = {})
      : server(loop, with_rank(std::move(its)), [this] {
          ++wanted;
          if (on_wanted) {
            on_wanted();
          }
        }) {
    server.set_run(kRun);
  }
  static TransferServerOptions with_rank(TransferServerOptions its) {
    its.shard_rank = 1;
    return its;
  }
  net::HostAddress address() const { return {"127.0.0.1", server.port()}; }

  CapturedResult<std::string> fetch(const StateId& state) {
    CapturedResult<std::string> heard;
    const auto fetch =
        fetch_snapshot(loop, {address()}, options, state, heard.done());
    EXPECT_TRUE(heard.comes(loop));
    return heard;
  }
  CapturedResult<CommittedSum> sum_after(const StateId& base) {
    CapturedResult<CommittedSum> heard;
    const auto fetch = fetch_sum(loop, address(), options, base, heard.done());
    EXPECT_TRUE(heard.comes(loop));
    return heard;
  }
  CapturedResult<StateId> ask() {
    CapturedResult<StateId> heard;
    const auto fetch = ask_snapshot(loop, address(), options, heard.done());
    EXPECT_TRUE(heard.comes(loop));
    return heard;
  }
  void keep(std::int64_t first, std::int64_t last) {
    for (auto step = first; step <= last; ++step) {
      server.keep(
          commit_of(step),
          random_bytes(1000, static_cast<std::uint64_t>(step)));
    }
  }

  net::Loop loop;
  int wanted = 0;
  std::function<void()> on_wanted;
  TransferServer server;
  FetchOptions options{.run = kRun, .shard_rank = 1};
};

TEST(FetchSnapshot, BringsTheBytesWhateverTheirNumber) {
  Donor donor;
  std::int64_t step = 0;
  std::uint64_t sent = 0;
  for (const std::size_t count :
       {std::size_t{0}, std::size_t{1}, kMebi - 1, kMebi, kMebi + 1, 4 * kMebi,
        21 * kMebi + 12345}) {
    SCOPED_TRACE(count);
    const auto bytes = random_bytes(count, count);
    offer(donor.server, state_of(++step), bytes);
    const auto heard = donor.fetch(state_of(step));
    ASSERT_EQ(heard.failure(), "");
    EXPECT_TRUE(heard.value() == *bytes);
    sent += count;
    EXPECT_EQ(donor.server.bytes_sent(), sent);
  }
  EXPECT_EQ(donor.wanted, 0);
}

TEST(FetchSnapshot, BringsTheSameToSeveralAtATime) {
  Donor donor;
  const auto bytes = random_bytes(5 * kMebi + 1, 1);
  offer(donor.server, state_of(3), bytes);
  std::vector<CapturedResult<std::string>> heard(5);
  std::vector<std::unique_ptr<Fetch>> fetches;
  fetches.reserve(heard.size());
  for (auto& one : heard) {
    fetches.push_back(fetch_snapshot(
        donor.loop, {donor.address()}, donor.options, state_of(3), one.done()));
  }
  for (auto& one : heard) {
    ASSERT_TRUE(one.comes(donor.loop));
    EXPECT_TRUE(one.value() == *bytes);
  }
  EXPECT_EQ(donor.server.bytes_sent(), 5 * bytes->size());
}

TEST(FetchSnapshot, IsEncryptedWhereThereIsASecret) {
  const auto secret = net::shared_secret("sixteen bytes at least");
  Donor donor({.security = secret});
  offer(donor.server, state_of(3), random_bytes(3 * kMebi, 1));
  EXPECT_NE(donor.fetch(state_of(3)).failure(), "");
  donor.options.security = net::shared_secret("another one of some bytes");
  EXPECT_NE(donor.fetch(state_of(3)).failure(), "");
  donor.options.security = secret;
  EXPECT_TRUE(donor.fetch(state_of(3)).value() == *random_bytes(3 * kMebi, 1));
}

TEST(FetchSnapshot, WaitsForAnOfferLongerThanForADonorThatIsSilent) {
  Donor donor;
  donor.options.timeout_without_progress = 1200ms;
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      donor.loop, {donor.address()}, donor.options, state_of(5), heard.done());
  run_for(donor.loop, 300ms);
  EXPECT_TRUE(donor.server.busy());
  // The fetch waits for it.
  offer(donor.server, state_of(4), random_bytes(10, 4));
  run_for(donor.loop, 1500ms);
  EXPECT_FALSE(heard.any()) << heard.failure();
  offer(donor.server, state_of(5), random_bytes(10, 5));
  ASSERT_TRUE(heard.comes(donor.loop));
  EXPECT_EQ(heard.value(), *random_bytes(10, 5));
  EXPECT_EQ(donor.wanted, 0);
}

// What donors sent meanwhile is read before they count as silent.
TEST(FetchSnapshot, GoesOnAfterThisProcessStoodStill) {
  Donor donor;
  donor.options.timeout_without_progress = 1200ms;
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      donor.loop, {donor.address()}, donor.options, state_of(5), heard.done());
  ASSERT_TRUE(run_until(donor.loop, [&] { return donor.server.busy(); }));
  run_for(donor.loop, 50ms);
  const Instant until = donor.loop.now() + 1500ms;
  while (donor.loop.now() < until) {
  }
  run_for(donor.loop, 500ms);
  EXPECT_FALSE(heard.any()) << heard.failure();
  offer(donor.server, state_of(5), random_bytes(10, 5));
  ASSERT_TRUE(heard.comes(donor.loop));
  EXPECT_EQ(heard.value(), *random_bytes(10, 5));
}

TEST(FetchSnapshot, FailsNamingWhatIsThereWhenItIsNotOfferedInTime) {
  Donor donor;
  donor.options.snapshot_timeout = 300ms;
  offer(donor.server, state_of(4), random_bytes(10, 4));
  const auto heard = donor.fetch(state_of(5));
  EXPECT_EQ(heard.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(
      heard.failure(),
      AllOf(
          HasSubstr(donor.address().text()), HasSubstr("expected step 5"),
          HasSubstr("found a snapshot of step 4")));
}

TEST(FetchSnapshot, GoesOnWithTheOldBytesWhenANewerIsOffered) {
  Donor donor;
  auto old = random_bytes(16 * kMebi, 1);
  offer(donor.server, state_of(1), old);
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      donor.loop, {donor.address()}, donor.options, state_of(1), heard.done());
  ASSERT_TRUE(
      run_until(donor.loop, [&] { return donor.server.bytes_sent() > 0; }));
  ASSERT_LT(donor.server.bytes_sent(), old->size());
  offer(donor.server, state_of(2), random_bytes(10, 2));
  const auto late = donor.fetch(state_of(1));
  EXPECT_EQ(late.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(late.failure(), HasSubstr("found a snapshot of step 2"));
  ASSERT_TRUE(heard.comes(donor.loop));
  EXPECT_TRUE(heard.value() == *old);
  const std::weak_ptr<const std::string> still = old;
  old.reset();
  EXPECT_TRUE(run_until(donor.loop, [&] { return still.expired(); }));
}

// A rank copies its state for any requester, so few copies may be held at a time.
TEST(FetchSnapshot, OfAThirdStateAtATimeDropsTheClientsOfTheOldest) {
  Donor donor({.bytes_per_s_max = 1000});
  std::vector<std::weak_ptr<const std::string>> copies;
  std::vector<CapturedResult<std::string>> heard(3);
  std::vector<std::unique_ptr<Fetch>> fetches;
  for (const std::int64_t step : {1, 2, 3}) {
    auto bytes = random_bytes(kMebi, 1);
    copies.push_back(bytes);
    offer(donor.server, state_of(step), std::move(bytes));
    fetches.push_back(fetch_snapshot(
        donor.loop, {donor.address()}, donor.options, state_of(step),
        heard[fetches.size()].done()));
    ASSERT_TRUE(net::testing::run_until(
        donor.loop, [&] { return fetches.back()->answered(); }));
  }
  ASSERT_TRUE(heard[0].comes(donor.loop));
  EXPECT_EQ(heard[0].code(), ErrorCode::kUnavailable);
  EXPECT_THAT(
      heard[0].failure(),
      HasSubstr("expected at most 2 states to be fetched at a time"));
  EXPECT_TRUE(copies[0].expired());
  EXPECT_FALSE(copies[1].expired());
  EXPECT_FALSE(heard[1].any() || heard[2].any());
}

TEST(AskSnapshot, GetsTheLastOneWhileOthersFetchAsManyAsThereIsRoomFor) {
  Donor donor({.fresh = Duration(0), .bytes_per_s_max = 1000});
  std::vector<CapturedResult<std::string>> heard(2);
  std::vector<std::unique_ptr<Fetch>> fetches;
  for (const std::int64_t step : {1, 2}) {
    offer(donor.server, state_of(step), random_bytes(kMebi, 1));
    fetches.push_back(fetch_snapshot(
        donor.loop, {donor.address()}, donor.options, state_of(step),
        heard[fetches.size()].done()));
    ASSERT_TRUE(net::testing::run_until(
        donor.loop, [&] { return fetches.back()->answered(); }));
  }
  EXPECT_EQ(donor.ask().value(), state_of(2));
  EXPECT_EQ(donor.wanted, 0);
  EXPECT_FALSE(heard[0].any() || heard[1].any());
}

TEST(AskSnapshot, OfAStateThatIsOfferedCopiesNothing) {
  Donor donor({.fresh = Duration(0)});
  offer(donor.server, state_of(5), random_bytes(1000, 1));
  donor.on_wanted = [&] {
    EXPECT_FALSE(donor.server.promise(state_of(5))) << "it is there";
  };
  EXPECT_EQ(donor.ask().value(), state_of(5));
  EXPECT_EQ(donor.wanted, 1);
  donor.on_wanted = [&] { EXPECT_TRUE(donor.server.promise(state_of(6))); };
  EXPECT_EQ(donor.ask().value(), state_of(6));
}

TEST(AskSnapshot, AfterAPromiseWasTakenBackAnotherOneIsWanted) {
  Donor donor({.fresh = Duration(0)});
  donor.on_wanted = [&] { EXPECT_TRUE(donor.server.promise(state_of(5))); };
  EXPECT_EQ(donor.ask().value(), state_of(5));
  donor.server.withdraw(state_of(5));
  donor.on_wanted = [&] { EXPECT_TRUE(donor.server.promise(state_of(6))); };
  EXPECT_EQ(donor.ask().value(), state_of(6));
  donor.server.withdraw(
      state_of(5));  // Of another state; this changes nothing.
  EXPECT_EQ(donor.ask().value(), state_of(6));
  EXPECT_EQ(donor.wanted, 2);
}

TEST(FetchSnapshot, OfAnotherLineageIsRefused) {
  Donor donor;
  offer(donor.server, state_of(4, 1), random_bytes(10, 4));
  EXPECT_EQ(donor.fetch(state_of(4, 2)).code(), ErrorCode::kFailedPrecondition);
}

TEST(Snapshot, IsKeptForAWhileAndWhileSomebodyFetchesIt) {
  Donor donor({.kept = 1500ms, .bytes_per_s_max = kMebi});
  auto bytes = random_bytes(2 * kMebi, 1);
  const std::weak_ptr<const std::string> still = bytes;
  const std::string copy = *bytes;
  offer(donor.server, state_of(1), std::move(bytes));
  // It took longer than that.
  EXPECT_TRUE(donor.fetch(state_of(1)).value() == copy);
  EXPECT_EQ(donor.fetch(state_of(1)).failure(), "");
  EXPECT_TRUE(run_until(donor.loop, [&] { return still.expired(); }, 5s));
  EXPECT_FALSE(donor.server.busy());
}

TEST(FetchSnapshot, TakesChunksOfAllWhoHaveTheState) {
  Donor donor;
  const auto bytes = random_bytes(21 * kMebi + 5, 1);
  std::vector<std::unique_ptr<TransferServer>> others;
  std::vector<net::HostAddress> addresses{donor.address()};
  offer(donor.server, state_of(1), bytes);
  for (int i = 0; i < 2; ++i) {
    others.push_back(std::make_unique<TransferServer>(
        donor.loop, TransferServerOptions{.shard_rank = 1}, [] {}));
    others.back()->set_run(kRun);
    offer(*others.back(), state_of(1), bytes);
    addresses.push_back({"127.0.0.1", others.back()->port()});
  }
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      donor.loop, addresses, donor.options, state_of(1), heard.done());
  ASSERT_TRUE(heard.comes(donor.loop));
  EXPECT_TRUE(heard.value() == *bytes);
  std::uint64_t sent = donor.server.bytes_sent();
  EXPECT_GE(sent, 3 * kMebi);
  for (const auto& other : others) {
    EXPECT_GE(other->bytes_sent(), 3 * kMebi);
    sent += other->bytes_sent();
  }
  EXPECT_EQ(sent, bytes->size());
}

TEST(FetchSnapshot, DoesNotWaitLongForASecondDonor) {
  Donor donor;
  donor.options.others_timeout = 100ms;
  offer(donor.server, state_of(1), random_bytes(10, 1));
  TransferServer late(
      donor.loop, TransferServerOptions{.shard_rank = 1}, [] {});
  late.set_run(kRun);
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      donor.loop, {{"127.0.0.1", late.port()}, donor.address()}, donor.options,
      state_of(1), heard.done());
  ASSERT_TRUE(heard.comes(donor.loop, 5s));
  EXPECT_EQ(heard.value(), *random_bytes(10, 1));
}

// Its digests are as many as those of a state of more than 8 TiB.
TEST(FetchSnapshot, OfMoreChunksThanAnAnswerHoldsIsRefused) {
  Donor donor;
  donor.server.offer(
      state_of(1), random_bytes(10, 1),
      std::vector<std::uint64_t>(transfer::kDigestsMax + 1));
  const auto heard = donor.fetch(state_of(1));
  EXPECT_EQ(heard.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(
      heard.failure(),
      HasSubstr("expected a state of at most 131072 chunks, found 131073"));
  offer(donor.server, state_of(2), random_bytes(10, 2));
  EXPECT_EQ(donor.fetch(state_of(2)).value(), *random_bytes(10, 2));
}

TEST(AskSnapshot, IsToldAtOnceOfOneThatIsPromised) {
  Donor donor;
  donor.on_wanted = [&] { donor.server.promise(state_of(8)); };
  EXPECT_EQ(donor.ask().value(), state_of(8));
  EXPECT_EQ(donor.ask().value(), state_of(8));
  EXPECT_EQ(donor.wanted, 1);
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      donor.loop, {donor.address()}, donor.options, state_of(8), heard.done());
  run_for(donor.loop, 50ms);
  EXPECT_FALSE(heard.any());
  donor.keep(9, 13);  // Sums since the promise are kept.
  offer(donor.server, state_of(8), random_bytes(10, 8));
  ASSERT_TRUE(heard.comes(donor.loop));
  EXPECT_EQ(heard.value(), *random_bytes(10, 8));
  EXPECT_EQ(donor.sum_after(state_of(8)).failure(), "");
}

TEST(AskSnapshot, IsAnsweredByTheNextOfferAndCallsOnce) {
  Donor donor;
  std::vector<CapturedResult<StateId>> heard(3);
  std::vector<std::unique_ptr<Fetch>> fetches;
  fetches.reserve(heard.size());
  for (auto& one : heard) {
    fetches.push_back(
        ask_snapshot(donor.loop, donor.address(), donor.options, one.done()));
  }
  ASSERT_TRUE(run_until(donor.loop, [&] { return donor.wanted > 0; }));
  run_for(donor.loop, 50ms);
  EXPECT_EQ(donor.wanted, 1);
  offer(donor.server, state_of(8), random_bytes(10, 1));
  for (auto& one : heard) {
    ASSERT_TRUE(one.comes(donor.loop));
    EXPECT_EQ(one.value(), state_of(8));
  }
}

TEST(AskSnapshot, MayBeAnsweredInsideTheCall) {
  Donor donor;
  donor.on_wanted = [&] {
    offer(donor.server, state_of(8), random_bytes(10, 1));
  };
  EXPECT_EQ(donor.ask().value(), state_of(8));
  EXPECT_EQ(donor.fetch(state_of(8)).failure(), "");
}

TEST(AskSnapshot, TakesOneOfThisMomentAndNoOlderOne) {
  Donor donor({.fresh = 2500ms});
  donor.on_wanted = [&] {
    offer(donor.server, state_of(10 + donor.wanted), random_bytes(10, 1));
  };
  EXPECT_EQ(donor.ask().value(), state_of(11));
  EXPECT_EQ(donor.ask().value(), state_of(11));
  EXPECT_EQ(donor.wanted, 1);
  run_for(donor.loop, 2600ms);
  EXPECT_EQ(donor.ask().value(), state_of(12));
}

TEST(AskSnapshot, FailsWhenNothingIsOfferedAndCallsAgainForTheNext) {
  Donor donor;
  donor.options.snapshot_timeout = 200ms;
  const auto heard = donor.ask();
  EXPECT_EQ(heard.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(heard.failure(), HasSubstr("found no snapshot"));
  (void)donor.ask();
  EXPECT_EQ(donor.wanted, 2);
}

TEST(FetchSum, BringsTheCommitAndItsBytes) {
  Donor donor;
  donor.keep(1, 2);
  for (const std::int64_t step : {1, 2}) {
    const auto heard = donor.sum_after(state_of(step - 1));
    ASSERT_EQ(heard.failure(), "");
    EXPECT_EQ(heard.value().commit, commit_of(step));
    EXPECT_EQ(
        *heard.value().bytes,
        *random_bytes(1000, static_cast<std::uint64_t>(step)));
  }
}

TEST(FetchSum, ThatIsNotThereIsRefusedNamingWhatIs) {
  Donor donor;
  donor.keep(1, 5);
  for (const auto& base : {state_of(2), state_of(5), state_of(3, 9)}) {
    const auto heard = donor.sum_after(base);
    EXPECT_EQ(heard.code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(
        heard.failure(), HasSubstr("found the sums that made steps 4 to 5"));
  }
}

TEST(FetchSum, WaitsForOneThatIsToComeWhenAskedTo) {
  Donor donor;
  donor.keep(1, 3);
  donor.options.sum_timeout = 20s;
  // This sum never comes: the one after step 0 was made from another state.
  EXPECT_EQ(
      donor.sum_after(state_of(0, 9)).code(), ErrorCode::kFailedPrecondition);
  CapturedResult<CommittedSum> heard;
  const auto fetch = fetch_sum(
      donor.loop, donor.address(), donor.options, state_of(3), heard.done());
  CapturedResult<CommittedSum> rolled_back;
  const auto other = fetch_sum(
      donor.loop, donor.address(), donor.options, state_of(4, 9),
      rolled_back.done());
  run_for(donor.loop, 300ms);
  EXPECT_FALSE(heard.any()) << heard.failure();
  EXPECT_FALSE(fetch->answered());
  donor.keep(4, 4);
  ASSERT_TRUE(heard.comes(donor.loop));
  EXPECT_EQ(heard.value().commit, commit_of(4));
  ASSERT_TRUE(rolled_back.comes(donor.loop));
  EXPECT_EQ(rolled_back.code(), ErrorCode::kFailedPrecondition);
}

TEST(FetchSum, WorksForAllStepsSinceASnapshotThatWasFetched) {
  Donor donor({.bytes_per_s_max = 4 * kMebi});
  donor.keep(1, 3);
  offer(donor.server, state_of(3), random_bytes(kMebi, 1));
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      donor.loop, {donor.address()}, donor.options, state_of(3), heard.done());
  ASSERT_TRUE(
      run_until(donor.loop, [&] { return donor.server.bytes_sent() > 0; }));
  donor.keep(4, 10);
  offer(donor.server, state_of(10), random_bytes(10, 1));
  ASSERT_TRUE(heard.comes(donor.loop));
  donor.keep(11, 13);
  for (std::int64_t step = 4; step <= 13; ++step) {
    EXPECT_EQ(donor.sum_after(state_of(step - 1)).failure(), "");
  }
}

TEST(FetchSum, FindsNoMoreOnceNobodyHasCaughtUpForAWhile) {
  Donor donor({.kept = 900ms});
  offer(donor.server, state_of(0), random_bytes(10, 1));
  donor.keep(1, 6);
  EXPECT_EQ(donor.sum_after(state_of(0)).failure(), "");
  run_for(donor.loop, 1500ms);
  EXPECT_EQ(
      donor.sum_after(state_of(3)).code(), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(donor.sum_after(state_of(5)).failure(), "");
}

TEST(Fetch, OfAnotherRunOrRankIsRefusedNamingBoth) {
  Donor donor;
  offer(donor.server, state_of(1), random_bytes(10, 1));
  donor.options.run = 5;
  EXPECT_THAT(
      donor.fetch(state_of(1)).failure(),
      HasSubstr("expected run 77, found a request of run 5"));
  donor.options = {.run = kRun, .shard_rank = 2};
  const auto heard = donor.fetch(state_of(1));
  EXPECT_EQ(heard.code(), ErrorCode::kPeerMismatch);
  EXPECT_THAT(
      heard.failure(), HasSubstr("expected rank 1, found a request of rank 2"));
  donor.server.set_run(0);
  EXPECT_THAT(donor.ask().failure(), HasSubstr("not joined a run yet"));
  EXPECT_EQ(donor.server.bytes_sent(), 0U);
}

TEST(Fetch, TakesNoMoreThanItsLimit) {
  Donor donor;
  offer(donor.server, state_of(1), random_bytes(1001, 1));
  donor.options.bytes_max = 1000;
  const auto heard = donor.fetch(state_of(1));
  EXPECT_EQ(heard.code(), ErrorCode::kPeerMismatch);
  EXPECT_THAT(
      heard.failure(), HasSubstr("expected at most 1000 bytes, found 1001"));
  EXPECT_EQ(donor.server.bytes_sent(), 0U);
  donor.options.bytes_max = 1001;
  EXPECT_EQ(donor.fetch(state_of(1)).failure(), "");
}

TEST(Fetch, MayBeDestroyedAtAnyTimeAndThenCallsNobody) {
  Donor donor;
  const auto bytes = random_bytes(16 * kMebi, 1);
  offer(donor.server, state_of(1), bytes);
  for (const std::uint64_t least : {0U, 1U, 3U << 20U, 12U << 20U}) {
    const std::uint64_t before = donor.server.bytes_sent();
    CapturedResult<std::string> heard;
    auto fetch = fetch_snapshot(
        donor.loop, {donor.address()}, donor.options, state_of(1),
        heard.done());
    ASSERT_TRUE(run_until(donor.loop, [&] {
      return donor.server.bytes_sent() >= before + least;
    }));
    if (heard.any()) {
      continue;
    }
    fetch.reset();
    EXPECT_TRUE(run_until(donor.loop, [&] { return !donor.server.busy(); }));
    EXPECT_FALSE(heard.any());
  }
}

TEST(Fetch, MayBeDestroyedInItsOwnCall) {
  Donor donor;
  offer(donor.server, state_of(1), random_bytes(10, 1));
  std::unique_ptr<Fetch> fetch;
  int calls = 0;
  const auto done = [&](const Result<std::string>&) {
    ++calls;
    fetch.reset();
  };
  for (const std::int64_t step : {1, 0}) {  // The second one fails.
    fetch = fetch_snapshot(
        donor.loop, {donor.address()}, donor.options, state_of(step), done);
    EXPECT_TRUE(run_until(donor.loop, [&] { return fetch == nullptr; }));
  }
  EXPECT_EQ(calls, 2);
}

TEST(TransferServer, RefusesNumbersOfSumsThatCannotBe) {
  net::Loop loop;
  EXPECT_THROW(TransferServer(loop, {.sums_kept = -1}, [] {}), Error);
}

TEST(Bandwidth, IsLimited) {
  Donor donor({.bytes_per_s_max = kMebi});
  const auto bytes = random_bytes(kMebi, 1);
  offer(donor.server, state_of(1), bytes);
  const Instant begin = donor.loop.now();
  EXPECT_TRUE(donor.fetch(state_of(1)).value() == *bytes);
  // Saved-up time and the last chunk do not count: 0.1 s and an eighth.
  EXPECT_GE(donor.loop.now() - begin, 770ms);
}

TEST(Bandwidth, OfSumsIsNotLimited) {
  Donor donor({.bytes_per_s_max = 5000});
  offer(donor.server, state_of(1), random_bytes(50'000, 1));
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      donor.loop, {donor.address()}, donor.options, state_of(1), heard.done());
  ASSERT_TRUE(
      run_until(donor.loop, [&] { return donor.server.bytes_sent() > 0; }));
  donor.server.keep(commit_of(2), random_bytes(4 * kMebi, 2));
  const Instant begin = donor.loop.now();
  EXPECT_EQ(donor.sum_after(state_of(1)).failure(), "");
  // It does not take a quarter of an hour.
  EXPECT_LT(donor.loop.now() - begin, 5s);
}

TEST(Bandwidth, ThatIsLowStillLetsSomethingComeBeforeATimeout) {
  Donor donor({.bytes_per_s_max = 40'000});
  donor.options.timeout_without_progress = 800ms;
  offer(donor.server, state_of(1), random_bytes(60'000, 1));
  EXPECT_EQ(donor.fetch(state_of(1)).failure(), "");
}

TEST(Bandwidth, ThatIsTooLowForAChunkInTimeLosesNobody) {
  Donor donor({.silence_max = 800ms, .bytes_per_s_max = 2500});
  donor.options.timeout_without_progress = 800ms;
  const auto bytes = random_bytes(8000, 1);
  offer(donor.server, state_of(1), bytes);
  const Instant begin = donor.loop.now();
  EXPECT_EQ(donor.fetch(state_of(1)).value(), *bytes);
  EXPECT_GT(donor.loop.now() - begin, 1200ms);
}

TEST(Bandwidth, ThatDiffersBetweenDonorsMakesThemNoOthers) {
  Donor donor({.bytes_per_s_max = kMebi});
  TransferServer faster(
      donor.loop,
      TransferServerOptions{.shard_rank = 1, .bytes_per_s_max = 2 * kMebi},
      [] {});
  faster.set_run(kRun);
  const auto bytes = random_bytes(kMebi, 1);
  offer(donor.server, state_of(1), bytes);
  offer(faster, state_of(1), bytes);
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      donor.loop, {donor.address(), {"127.0.0.1", faster.port()}},
      donor.options, state_of(1), heard.done());
  ASSERT_TRUE(heard.comes(donor.loop));
  EXPECT_TRUE(heard.value() == *bytes);
  EXPECT_GT(donor.server.bytes_sent(), 0U);
  EXPECT_GT(faster.bytes_sent(), 0U);
  EXPECT_EQ(donor.server.bytes_sent() + faster.bytes_sent(), bytes->size());
}

}  // namespace
}  // namespace sherd::ft
