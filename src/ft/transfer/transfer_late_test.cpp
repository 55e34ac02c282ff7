// SPDX-License-Identifier: Apache-2.0
//
// Processes that are stopped in the middle of a transfer and continue when the other side has given
// them up and uses the memory for something else.
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <random>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/transfer/fetch.h"
#include "ft/transfer/transfer_server.h"
#include "ft/transfer/transfer_testing.h"
#include "support/forked_process.h"

namespace sherd::ft {
namespace {

using namespace std::chrono_literals;
using net::testing::run_for;
using net::testing::run_until;
using sherd::test::ForkedProcess;
using sherd::test::receive_over;
using sherd::test::send_over;
using testing::CapturedResult;
using testing::commit_of;
using testing::kRun;
using testing::kTestDeadline;
using testing::random_bytes;
using testing::state_of;

constexpr std::size_t kMoments = 50;
constexpr std::size_t kBytes = std::size_t{2} << 20U;
constexpr char kGuard = 0x5a;

// What the process reports at the end; 0 if it has died without that.
char letter_of(const ForkedProcess& process) {
  char letter = 0;
  return ::read(process.channel(), &letter, 1) == 1 ? letter : '\0';
}

using Processes = std::vector<std::unique_ptr<ForkedProcess>>;

// What is transferred: a state, whose bytes are rate limited, or a sum.
enum class What { kState, kSum };

class TransferLate : public ::testing::TestWithParam<What> {
 protected:
  TransferLate() {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
  }
  bool is_state() const { return GetParam() == What::kState; }

  // Stops each process at a different moment, while the loop goes on.
  void stop_at_moments(net::Loop& loop, const Processes& processes) {
    std::vector<std::pair<Duration, const ForkedProcess*>> stops;
    for (const auto& process : processes) {
      stops.emplace_back(
          std::chrono::microseconds(random_() % 100'000), process.get());
    }
    std::sort(stops.begin(), stops.end());
    const Instant begin = loop.now();
    for (const auto& [later, process] : stops) {
      run_for(loop, std::max(begin + later - loop.now(), Duration(0)));
      process->signal(SIGSTOP);
    }
  }

  const std::uint64_t seed_ = std::random_device()();

 private:
  std::mt19937_64 random_{seed_};
};
INSTANTIATE_TEST_SUITE_P(
    Kinds,
    TransferLate,
    ::testing::Values(What::kState, What::kSum),
    [](const auto& one) {
      return std::string(one.param == What::kState ? "State" : "Sum");
    });

// A server that soon gives up clients and keeps only one sum.
TransferServerOptions serving(What what) {
  TransferServerOptions options;
  options.kept = 100ms;
  options.silence_max = 150ms;
  options.sums_kept = 1;
  // All fifty states take a few tenths of a second.
  options.bytes_per_s_max = what == What::kState ? 300 * kBytes : 0;
  return options;
}

void fill(std::string& bytes) { std::fill(bytes.begin(), bytes.end(), kGuard); }

bool is_filled(const std::string& bytes) {
  return std::all_of(
      bytes.begin(), bytes.end(), [](char byte) { return byte == kGuard; });
}

std::unique_ptr<Fetch> fetch(
    What what,
    net::Loop& loop,
    const net::HostAddress& donor,
    const FetchOptions& options,
    const std::function<void(Result<std::string>)>& done) {
  if (what == What::kState) {
    return fetch_snapshot(loop, {donor}, options, state_of(1), done);
  }
  return fetch_sum(
      loop, donor, options, state_of(0), [done](Result<CommittedSum> sum) {
        done(sum.ok() ? Result<std::string>(*sum.value().bytes) : sum.status());
      });
}

using Bytes = std::shared_ptr<const std::string>;

// Fetches once from the port that it gets; reports 'r' for the right bytes, 'w' for wrong ones, 'f'
// for a failure.
void be_a_fetcher(What what, const Bytes& right, int channel) {
  const auto port = receive_over<std::uint16_t>(channel);
  net::Loop loop;
  CapturedResult<std::string> heard;
  const auto under_way =
      fetch(what, loop, {"127.0.0.1", port}, {.run = kRun}, heard.done());
  (void)heard.comes(loop);
  const char letter = !heard.any() || heard.code() ? 'f'
      : heard.value() == *right                    ? 'r'
                                                   : 'w';
  send_over(channel, letter);
}

TEST_P(TransferLate, AStoppedFetcherNeverHasWhatItsDonorWroteAfterwards) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed_);
  const Bytes right = random_bytes(kBytes, 1);
  Processes fetchers;
  for (std::size_t i = 0; i < kMoments; ++i) {
    fetchers.push_back(std::make_unique<ForkedProcess>(
        [&](int channel) { be_a_fetcher(GetParam(), right, channel); }));
  }
  net::Loop loop;
  TransferServer server(loop, serving(GetParam()), [] {});
  server.set_run(kRun);
  const auto bytes = std::make_shared<std::string>(*right);
  if (is_state()) {
    offer(server, state_of(1), bytes);
  } else {
    server.keep(commit_of(1), bytes);
  }
  for (const auto& fetcher : fetchers) {
    send_over(fetcher->channel(), server.port());
  }
  stop_at_moments(loop, fetchers);

  // The donor gives all of them up, and frees the bytes for newer ones.
  const auto newer = random_bytes(1, 2);
  ASSERT_TRUE(run_until(loop, [&] { return !server.busy(); }, kTestDeadline));
  if (is_state()) {
    offer(server, state_of(9), newer);
  } else {
    server.keep(commit_of(2), newer);
  }
  ASSERT_TRUE(
      run_until(loop, [&] { return bytes.use_count() == 1; }, kTestDeadline));
  fill(*bytes);

  std::string letters;
  for (const auto& fetcher : fetchers) {
    fetcher->signal(SIGCONT);
  }
  ASSERT_TRUE(run_until(loop, [&] { return !server.busy(); }, kTestDeadline));
  run_for(loop, 50ms);
  for (const auto& fetcher : fetchers) {
    letters += letter_of(*fetcher);
  }
  // A process that had received everything when it was stopped may have the right bytes.
  EXPECT_THAT(letters, ::testing::Each(::testing::AnyOf('f', 'r')));
  EXPECT_THAT(letters, ::testing::Contains('f'));
  EXPECT_TRUE(is_filled(*bytes));
}

// Offers until it is killed, and reports its port.
void be_a_donor(What what, const Bytes& bytes, int channel) {
  net::Loop loop;
  TransferServer server(
      loop, {.bytes_per_s_max = what == What::kState ? 20 * kBytes : 0}, [] {});
  server.set_run(kRun);
  offer(server, state_of(1), bytes);
  server.keep(commit_of(1), bytes);
  send_over(channel, server.port());
  run_for(loop, 10 * kTestDeadline);  // It is killed before.
}

TEST_P(TransferLate, AStoppedDonorIsGivenUpAndChangesNothingAfterwards) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed_);
  const Bytes right = random_bytes(kBytes, 1);
  Processes donors;
  for (std::size_t i = 0; i < kMoments; ++i) {
    donors.push_back(std::make_unique<ForkedProcess>(
        [&](int channel) { be_a_donor(GetParam(), right, channel); }));
  }
  net::Loop loop;
  FetchOptions options{.run = kRun};
  options.timeout_without_progress = 150ms;
  std::vector<net::HostAddress> addresses;
  std::vector<CapturedResult<std::string>> heard(kMoments);
  std::vector<std::unique_ptr<Fetch>> fetches;
  for (std::size_t i = 0; i < kMoments; ++i) {
    addresses.push_back(
        {"127.0.0.1", receive_over<std::uint16_t>(donors[i]->channel())});
    fetches.push_back(
        fetch(GetParam(), loop, addresses[i], options, heard[i].done()));
  }
  stop_at_moments(loop, donors);
  int given_up = 0;
  std::vector<std::string> kept;
  for (const auto& one : heard) {
    ASSERT_TRUE(one.comes(loop));
    if (one.code()) {
      EXPECT_EQ(one.code(), ErrorCode::kDeadlineExceeded) << one.failure();
      ++given_up;
      continue;
    }
    EXPECT_TRUE(one.value() == *right);
    kept.push_back(one.value());
    fill(kept.back());
  }
  EXPECT_GT(given_up, 0);

  // They continue, but nobody uses what they still send: a fetcher that asks again gets everything
  // from the beginning, and `done` is not called twice.
  for (const auto& donor : donors) {
    donor->signal(SIGCONT);
  }
  for (std::size_t i = 0; i < kMoments; i += 10) {
    CapturedResult<std::string> again;
    const auto second =
        fetch(GetParam(), loop, addresses[i], {.run = kRun}, again.done());
    ASSERT_TRUE(again.comes(loop));
    ASSERT_FALSE(again.code()) << again.failure();
    EXPECT_TRUE(again.value() == *right);
  }
  EXPECT_TRUE(std::all_of(kept.begin(), kept.end(), is_filled));
}

}  // namespace
}  // namespace sherd::ft
