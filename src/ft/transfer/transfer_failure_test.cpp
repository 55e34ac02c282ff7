// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/digest.h"
#include "ft/transfer/fetch.h"
#include "ft/transfer/transfer_messages.h"
#include "ft/transfer/transfer_server.h"
#include "ft/transfer/transfer_testing.h"
#include "support/fault_proxy.h"
#include "support/forked_process.h"

namespace sherd::ft {

using namespace transfer;  // NOLINT(google-build-using-namespace): under test.

namespace {

using namespace std::chrono_literals;
using net::testing::run_for;
using net::testing::run_until;
using sherd::test::ForkedProcess;
using sherd::test::receive_over;
using sherd::test::send_over;
using ::testing::AllOf;
using ::testing::AnyOf;
using testing::CapturedResult;
using testing::commit_of;
using ::testing::HasSubstr;
using testing::kMebi;
using testing::kRun;
using testing::random_bytes;
using testing::state_of;

const FetchOptions kOptions{.run = kRun};

// The first thing that its body sends is a port.
class Child : public ForkedProcess {
 public:
  explicit Child(const std::function<void(int channel)>& body)
      : ForkedProcess(body), port_(receive_over<std::uint16_t>(channel())) {}
  net::HostAddress address() const { return {"127.0.0.1", port_}; }

 private:
  const std::uint16_t port_;
};

// It has four megabytes, and sends about one a second.
void be_a_slow_donor(int channel) {
  net::Loop loop;
  TransferServer server(loop, {.bytes_per_s_max = kMebi}, [] {});
  server.set_run(kRun);
  offer(server, state_of(1), random_bytes(4 * kMebi, 1));
  send_over(channel, server.port());
  run_for(loop, 60s);
}

TEST(KilledDonor, IsNoticedAtOnce) {
  const Child donor(be_a_slow_donor);
  net::Loop loop;
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      loop, {donor.address()}, kOptions, state_of(1), heard.done());
  run_for(loop, 500ms);  // The kill hits the middle of the transfer.
  EXPECT_FALSE(heard.any()) << heard.failure();
  donor.signal(SIGKILL);
  const Instant killed = loop.now();
  ASSERT_TRUE(heard.comes(loop));
  EXPECT_LT(loop.now() - killed, 4s);
  EXPECT_EQ(heard.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(
      heard.failure(),
      AllOf(
          HasSubstr("the state of step 1"), HasSubstr(donor.address().text())));
}

// A donor with its own server, from which half a state takes a second or more.
struct SlowDonor {
  explicit SlowDonor(net::Loop& loop, std::uint64_t seed = 1)
      : server(loop, {.bytes_per_s_max = kMebi}, [] {}) {
    server.set_run(kRun);
    offer(server, state_of(1), random_bytes(4 * kMebi, seed));
  }
  net::HostAddress address() const { return {"127.0.0.1", server.port()}; }
  TransferServer server;
};

TEST(KilledDonor, OfSeveralCostsOnlyWhatItHadNotGiven) {
  const Child killed(be_a_slow_donor);
  net::Loop loop;
  const SlowDonor other(loop);
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      loop, {killed.address(), other.address()}, kOptions, state_of(1),
      heard.done());
  ASSERT_TRUE(
      run_until(loop, [&] { return other.server.bytes_sent() >= kMebi; }, 10s));
  EXPECT_FALSE(heard.any()) << heard.failure();
  killed.signal(SIGKILL);
  ASSERT_TRUE(heard.comes(loop));
  EXPECT_TRUE(heard.value() == *random_bytes(4 * kMebi, 1));
  // The other donor gives the rest, and what has already arrived is not fetched again.
  EXPECT_LT(other.server.bytes_sent(), 4 * kMebi);
}

TEST(StoppedDonor, OfSeveralIsGivenUpAndTheOthersGoOn) {
  const Child stopped(be_a_slow_donor);
  net::Loop loop;
  const SlowDonor other(loop);
  FetchOptions options = kOptions;
  options.timeout_without_progress = 700ms;
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      loop, {stopped.address(), other.address()}, options, state_of(1),
      heard.done());
  ASSERT_TRUE(
      run_until(loop, [&] { return other.server.bytes_sent() > 0; }, 10s));
  stopped.signal(SIGSTOP);
  ASSERT_TRUE(heard.comes(loop));
  EXPECT_TRUE(heard.value() == *random_bytes(4 * kMebi, 1));
}

TEST(KilledDonor, OfSeveralAllOfWhomDieEndsTheFetch) {
  const Child one(be_a_slow_donor);
  const Child other(be_a_slow_donor);
  net::Loop loop;
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      loop, {one.address(), other.address()}, kOptions, state_of(1),
      heard.done());
  run_for(loop, 500ms);
  one.signal(SIGKILL);
  other.signal(SIGKILL);
  ASSERT_TRUE(heard.comes(loop));
  EXPECT_EQ(heard.code(), ErrorCode::kPeerLost);
}

TEST(DonorsThatDisagree, AreReportedAndMostOfThemAreRight) {
  net::Loop loop;
  const SlowDonor wrong(loop, 2);
  const SlowDonor right(loop, 1);
  const SlowDonor third(loop, 1);
  ::testing::internal::CaptureStderr();
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      loop, {wrong.address(), right.address(), third.address()}, kOptions,
      state_of(1), heard.done());
  EXPECT_TRUE(heard.comes(loop));
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(heard.value() == *random_bytes(4 * kMebi, 1));
  EXPECT_EQ(wrong.server.bytes_sent(), 0U);
  EXPECT_THAT(
      said,
      AllOf(
          HasSubstr(wrong.address().text() + ": it disagrees with"),
          HasSubstr("found 64 of 64 chunks that differ, the first at byte 0")));
}

TEST(DonorsThatDisagree, AreReportedWhenOneAnswersLate) {
  net::Loop loop;
  const SlowDonor first(loop, 1);
  TransferServer late(loop, {.bytes_per_s_max = kMebi}, [] {});
  late.set_run(kRun);
  FetchOptions options = kOptions;
  options.others_timeout = 100ms;
  ::testing::internal::CaptureStderr();
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      loop, {first.address(), {"127.0.0.1", late.port()}}, options, state_of(1),
      heard.done());
  EXPECT_TRUE(
      run_until(loop, [&] { return first.server.bytes_sent() > 0; }, 10s));
  offer(late, state_of(1), random_bytes(4 * kMebi, 2));
  EXPECT_TRUE(heard.comes(loop));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(), HasSubstr("it disagrees with"));
  EXPECT_TRUE(heard.value() == *random_bytes(4 * kMebi, 1));
}

TEST(StoppedDonor, IsGivenUpInTime) {
  const Child donor(be_a_slow_donor);
  net::Loop loop;
  FetchOptions options = kOptions;
  options.timeout_without_progress = 700ms;
  CapturedResult<std::string> heard;
  const auto fetch = fetch_snapshot(
      loop, {donor.address()}, options, state_of(1), heard.done());
  run_for(loop, 300ms);
  donor.signal(SIGSTOP);
  const Instant stopped = loop.now();
  ASSERT_TRUE(heard.comes(loop));
  EXPECT_LT(loop.now() - stopped, 3s);
  EXPECT_EQ(heard.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(heard.failure(), HasSubstr("found silence"));
}

TEST(StoppedDonor, ThatNeverGreetsIsGivenUpInTime) {
  net::Loop loop;
  const net::testing::SilentHost host;
  FetchOptions options = kOptions;
  options.timeout_without_progress = 200ms;
  CapturedResult<StateId> heard;
  const auto fetch = ask_snapshot(loop, host.address(), options, heard.done());
  ASSERT_TRUE(heard.comes(loop, 5s));
  EXPECT_EQ(heard.code(), ErrorCode::kDeadlineExceeded);
}

void check_that_it_frees_the_snapshot(int signal) {
  net::Loop loop;
  TransferServer server(
      loop, {.kept = 100ms, .silence_max = 1s, .bytes_per_s_max = kMebi},
      [] {});
  server.set_run(kRun);
  auto bytes = random_bytes(4 * kMebi, 1);
  const std::weak_ptr<const std::string> still = bytes;
  const Child fetcher([&](int channel) {
    const net::HostAddress donor{"127.0.0.1", server.port()};
    send_over(channel, donor.port);
    net::Loop own;
    const auto fetch =
        fetch_snapshot(own, {donor}, kOptions, state_of(1), [](const auto&) {});
    run_for(own, 60s);
  });
  ASSERT_TRUE(run_until(loop, [&] { return server.busy(); }));
  offer(server, state_of(1), std::move(bytes));
  ASSERT_TRUE(run_until(loop, [&] { return server.bytes_sent() > 0; }));
  run_for(loop, 500ms);
  EXPECT_FALSE(still.expired());
  fetcher.signal(signal);
  EXPECT_TRUE(run_until(loop, [&] { return still.expired(); }, 5s));
  EXPECT_FALSE(server.busy());
}

TEST(KilledFetch, FreesTheSnapshot) {
  check_that_it_frees_the_snapshot(SIGKILL);
}

TEST(StoppedFetch, FreesTheSnapshot) {
  check_that_it_frees_the_snapshot(SIGSTOP);
}

TEST(NoDonor, IsToldAndNothingIsThrown) {
  net::Loop loop;
  std::uint16_t port = 0;
  {
    const TransferServer gone(loop, {}, [] {});
    port = gone.port();
  }
  CapturedResult<StateId> heard;
  const auto fetch =
      ask_snapshot(loop, {"127.0.0.1", port}, kOptions, heard.done());
  ASSERT_TRUE(heard.comes(loop));
  EXPECT_EQ(heard.code(), ErrorCode::kUnavailable);
  // An address reported by another process may not be allowed.
  CapturedResult<StateId> refused;
  const auto other =
      ask_snapshot(loop, {"192.0.2.1", port}, kOptions, refused.done());
  EXPECT_FALSE(refused.any());
  ASSERT_TRUE(refused.comes(loop));
  EXPECT_THAT(refused.failure(), HasSubstr("192.0.2.1"));
}

TEST(FlippedBit, IsNeverDelivered) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  net::Loop loop;
  TransferServer server(loop, {}, [] {});
  server.set_run(kRun);
  offer(server, state_of(1), random_bytes(3 * kMebi, seed));
  test::FaultProxy proxy({.target_port = server.port(), .seed = seed});
  const net::HostAddress address{
      "127.0.0.1", static_cast<std::uint16_t>(proxy.port())};
  for (int i = 0; i < 12; ++i) {
    // The first of the donor's bytes, and any other.
    const auto offset =
        static_cast<std::int64_t>(random() % (i % 3 == 0 ? 200 : 3 * kMebi));
    SCOPED_TRACE(offset);
    proxy.set(test::Direction::kToClient, {.flip_bit_at = offset});
    CapturedResult<std::string> heard;
    const auto fetch =
        fetch_snapshot(loop, {address}, kOptions, state_of(1), heard.done());
    ASSERT_TRUE(heard.comes(loop));
    EXPECT_NE(heard.failure(), "");
    EXPECT_THAT(heard.failure(), HasSubstr(address.text()));
  }
  proxy.heal();
  CapturedResult<std::string> heard;
  const auto fetch =
      fetch_snapshot(loop, {address}, kOptions, state_of(1), heard.done());
  ASSERT_TRUE(heard.comes(loop));
  EXPECT_TRUE(heard.value() == *random_bytes(3 * kMebi, seed));
}

// A scripted donor that uses chunks of four bytes.
class FakeDonor {
 public:
  explicit FakeDonor(net::Loop& loop) : loop_(loop), server_(loop) {
    fetch_ = fetch_snapshot(
        loop, {server_.listener->address()}, kOptions, state_of(1),
        heard.done());
    EXPECT_TRUE(comes(TransferFrameType::kRequest));
  }
  // Whether the next frame has this type.
  [[nodiscard]] bool comes(TransferFrameType type) {
    if (!run_until(loop_, [&] { return has(at_); })) {
      return false;
    }
    const auto found = static_cast<TransferFrameType>(frame(at_).type);
    ++at_;
    return found == type;
  }
  // Waits until it has another frame or the fetch has failed.
  void hears_or_fails() {
    EXPECT_TRUE(run_until(loop_, [&] { return has(at_) || heard.any(); }));
  }
  // The place in the next frame, which must be a request for a chunk.
  std::uint64_t wish() {
    EXPECT_TRUE(comes(TransferFrameType::kChunkRequest));
    return chunk_request_of(frame(at_ - 1).payload).value();
  }
  void say(TransferFrameType type, const std::string& payload) {
    say(static_cast<std::uint16_t>(type), payload);
  }
  void say(std::uint16_t type, const std::string& payload) {
    server_.ends.at(0)->connection->send(type, payload);
  }
  void announce(const std::string& whole) {
    say(TransferFrameType::kAnswer,
        bytes_of(TransferAnswer{
            .kind = RequestKind::kFetchSnapshot,
            .state = state_of(1),
            .bytes = whole.size(),
            .chunk_bytes = 4,
            .digests = digests_of_chunks(whole, 4)}));
  }
  void give(std::uint64_t place, std::string_view bytes) {
    say(TransferFrameType::kChunk,
        bytes_of(Chunk{place, digest_of(bytes), bytes}));
  }
  void damage(std::uint64_t place, std::string_view bytes) {
    say(TransferFrameType::kChunk, bytes_of(Chunk{place, 1, bytes}));
  }
  std::string failure() {
    EXPECT_TRUE(heard.comes(loop_));
    EXPECT_EQ(heard.code(), ErrorCode::kPeerMismatch);
    return heard.failure();
  }

  CapturedResult<std::string> heard;

 private:
  bool has(std::size_t at) const {
    return !server_.ends.empty() && server_.ends[0]->frames.size() > at;
  }
  const net::Frame& frame(std::size_t at) const {
    return server_.ends[0]->frames[at];
  }

  net::Loop& loop_;
  net::testing::TestServer server_;
  std::size_t at_ = 0;
  std::unique_ptr<Fetch> fetch_;
};

TEST(DamagedChunk, IsAskedForAgain) {
  net::Loop loop;
  FakeDonor donor(loop);
  donor.announce("abcdefghijklmnopqrstuvwxyz");
  for (const std::uint64_t place : {0U, 4U, 8U, 12U}) {
    EXPECT_EQ(donor.wish(), place);
  }
  donor.give(0, "abcd");
  EXPECT_EQ(donor.wish(), 16U);
  donor.damage(4, "efgh");
  EXPECT_EQ(donor.wish(), 4U);
  donor.give(8, "ijkl");
  donor.give(12, "mnop");
  donor.give(16, "qrst");
  EXPECT_EQ(donor.wish(), 20U);
  EXPECT_EQ(donor.wish(), 24U);
  donor.give(4, "efgh");
  donor.give(20, "uvwx");
  EXPECT_FALSE(donor.heard.any());
  donor.give(24, "yz");
  ASSERT_TRUE(donor.heard.comes(loop));
  EXPECT_EQ(donor.heard.value(), "abcdefghijklmnopqrstuvwxyz");
}

TEST(DamagedChunk, ThatIsDamagedTwiceEndsTheFetch) {
  net::Loop loop;
  FakeDonor donor(loop);
  donor.announce("abcd");
  EXPECT_EQ(donor.wish(), 0U);
  donor.damage(0, "abcd");
  EXPECT_EQ(donor.wish(), 0U);
  donor.damage(0, "abcd");
  EXPECT_THAT(
      donor.failure(),
      AllOf(HasSubstr("127.0.0.1:"), HasSubstr("a damaged one at 0, twice")));
}

TEST(DamagedChunk, IsOneWhoseBytesAreNotThoseOfItsDigest) {
  net::Loop loop;
  FakeDonor donor(loop);
  donor.announce("abcd");
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(donor.wish(), 0U);
    donor.say(
        TransferFrameType::kChunk,
        bytes_of(Chunk{0, digest_of("abcd"), "abce"}));
  }
  EXPECT_THAT(donor.failure(), HasSubstr("a damaged one at 0, twice"));
}

TEST(DamagedChunk, IsOneThatIsNotWhatWasAnnouncedToo) {
  net::Loop loop;
  FakeDonor donor(loop);
  donor.announce("abcd");
  EXPECT_EQ(donor.wish(), 0U);
  donor.give(0, "abce");
  EXPECT_EQ(donor.wish(), 0U);
  donor.give(0, "abce");
  EXPECT_THAT(donor.failure(), HasSubstr("a damaged one at 0, twice"));
}

TEST(StrangeDonor, IsGivenUpWithAReason) {
  const std::vector<std::function<void(FakeDonor&)>> acts = {
      [](FakeDonor& donor) { donor.give(4, "abcd"); },
      [](FakeDonor& donor) { donor.give(0, "abc"); },
      [](FakeDonor& donor) { donor.give(0, "abcde"); },
      [](FakeDonor& donor) { donor.announce("abcdefgh"); },
      [](FakeDonor& donor) { donor.say(TransferFrameType::kChunk, "short"); },
      [](FakeDonor& donor) { donor.say(std::uint16_t{99}, ""); },
  };
  net::Loop loop;
  for (std::size_t i = 0; i < acts.size(); ++i) {
    SCOPED_TRACE(i);
    FakeDonor donor(loop);
    donor.announce("abcdefgh");
    EXPECT_EQ(donor.wish(), 0U);
    acts[i](donor);
    EXPECT_THAT(donor.failure(), HasSubstr("expected"));
  }
}

TEST(FetchSnapshot, TakesAChunkThatItsDonorLetItWaitFor) {
  net::Loop loop;
  FakeDonor donor(loop);
  donor.announce("abcd");
  EXPECT_EQ(donor.wish(), 0U);
  donor.say(TransferFrameType::kWaiting, "");
  donor.give(0, "abcd");
  ASSERT_TRUE(donor.heard.comes(loop));
  EXPECT_EQ(donor.heard.value(), "abcd");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A machine with less memory says so. Sanitizers end a process that asks for too much.
TEST(FetchSnapshot, OfManyGibibytesIsAQuestionOfMemoryOnly) {
  net::Loop loop;
  FakeDonor donor(loop);
  const std::uint64_t bytes = std::uint64_t{65} << 30U;
  const auto chunk_bytes = chunk_bytes_of_state(bytes);
  donor.say(
      TransferFrameType::kAnswer,
      bytes_of(TransferAnswer{
          .kind = RequestKind::kFetchSnapshot,
          .state = state_of(1),
          .bytes = bytes,
          .chunk_bytes = chunk_bytes,
          .digests =
              std::vector<std::uint64_t>(chunks_of(bytes, chunk_bytes))}));
  donor.hears_or_fails();
  EXPECT_THAT(
      donor.heard.failure(),
      AnyOf("", HasSubstr("no memory for 69793218560 bytes")));
}
#endif

TEST(StrangeDonor, ThatSendsBeforeItAnswersIsGivenUp) {
  net::Loop loop;
  FakeDonor donor(loop);
  donor.give(0, "abcd");
  EXPECT_THAT(donor.failure(), HasSubstr("expected an answer"));
}

TEST(StrangeDonor, ThatAnswersSomethingElseIsGivenUp) {
  net::Loop loop;
  for (const auto& answer :
       {TransferAnswer{.kind = RequestKind::kAskSnapshot, .state = state_of(1)},
        TransferAnswer{.kind = RequestKind::kFetchSum, .commit = commit_of(2)},
        TransferAnswer{
            .kind = RequestKind::kFetchSnapshot, .state = state_of(2)},
        TransferAnswer{
            .kind = RequestKind::kFetchSnapshot, .state = state_of(1, 2)}}) {
    FakeDonor donor(loop);
    donor.say(TransferFrameType::kAnswer, bytes_of(answer));
    EXPECT_THAT(donor.failure(), HasSubstr("found another one"));
  }
  FakeDonor donor(loop);
  donor.say(
      TransferFrameType::kAnswer,
      bytes_of(TransferAnswer{
          .kind = RequestKind::kFetchSnapshot,
          .state = state_of(1),
          .bytes = std::uint64_t{1} << 60U,
          .chunk_bytes = 4}));
  EXPECT_THAT(donor.failure(), HasSubstr("chunks, found 0"));
}

}  // namespace
}  // namespace sherd::ft
