// SPDX-License-Identifier: Apache-2.0
//
// The messages of one connection, one after another.
#include <random>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ft/wire/codec.h"
#include "ft/wire/messages_testing.h"
#include "ft/wire/report_stream.h"
#include "ft/wire/view_parts.h"
#include "ft/wire/view_stream.h"

namespace sherd::ft {
namespace {

using test::RandomMessages;
using ::testing::HasSubstr;

std::uint64_t seed_of_stream() {
  const std::uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

RankAddresses addresses_of(std::size_t ranks) {
  return std::vector<RankAddress>(ranks, {"10.0.0.7", 20000, 40000});
}

// A view of `replicas` members with 8 ranks each, in the first step of the epoch.
RunView view_of(std::size_t replicas) {
  RunView view;
  view.run = 7;
  view.term = 1;
  view.canonical = {4, {1, 2}};
  view.recent = {{{{1, 1}, 4}, {3, {8, 8}}, {4, {1, 2}}, 5, 8}};
  view.epoch = {1, 1};
  view.stage = EpochStage::kRunning;
  for (std::size_t i = 0; i < replicas; ++i) {
    const auto id = static_cast<ReplicaId>(i);
    const auto first = static_cast<std::int64_t>(8 * i);
    view.members.push_back({id, 100 + i, {{first, first + 8}}});
    view.peers.push_back({id, 100 + i, view.canonical, addresses_of(8)});
    view.lives.push_back({id, 100 + i});
  }
  view.starts = replicas;
  view.consumed.add({0, 8000});
  return view;
}

// The view after the next commit, which no member has applied yet.
RunView next_of(RunView view) {
  const StateId next{view.canonical.step + 1, {9, 9}};
  view.recent.push_back(
      {{view.epoch, next.step}, view.canonical, next, 6, 8000});
  view.canonical = next;
  for (auto& member : view.members) {
    for (auto& range : member.samples) {
      range.begin += 8000;
      range.end += 8000;
    }
  }
  const auto taken = view.consumed.ranges().back().end;
  view.consumed.add({taken, taken + 8000});
  return view;
}

class ViewConnection {
 public:
  std::size_t say(const RunView& view) {
    const auto bytes =
        writer_.bytes_for(told_, std::make_shared<const RunView>(view));
    const auto status = reader_.read(bytes);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(reader_.view(), view);
    return bytes.size();
  }

 private:
  ViewWriter writer_;
  ToldView told_;
  ViewReader reader_;
};

TEST(ReportStream, EachReportComesAsItWasSaid) {
  RandomMessages random(seed_of_stream());
  for (int i = 0; i < 200; ++i) {
    ReportWriter writer;
    ReportReader reader;
    Report report = random.report();
    for (int j = 0; j < 20; ++j) {
      const Report other = random.report();
      // Some parts stay the same.
      report.serial = other.serial;
      report.held = random.coin() ? other.held : report.held;
      report.vote = random.coin() ? other.vote : report.vote;
      report.addresses = random.coin() ? other.addresses : report.addresses;
      report.ranks = random.coin() ? other.ranks : report.ranks;
      report.leaving = random.coin();
      report.remembers = random.coin() ? other.remembers : report.remembers;
      report.link_speeds =
          random.coin() ? other.link_speeds : report.link_speeds;
      ASSERT_TRUE(reader.read(writer.bytes_of(report)).ok());
      ASSERT_EQ(reader.report(), report);
    }
  }
}

TEST(ReportStream, AddressesGoOnce) {
  Report report;
  report.addresses = addresses_of(8192);
  report.ranks.resize(CodecLimits::kRanksReported);
  ReportWriter writer;
  ReportReader reader;
  const auto first = writer.bytes_of(report);
  EXPECT_GT(first.size(), 32768U);
  ASSERT_TRUE(reader.read(first).ok());
  report.serial = 2;
  const auto second = writer.bytes_of(report);
  EXPECT_LT(second.size(), 20U);
  ASSERT_TRUE(reader.read(second).ok());
  EXPECT_EQ(reader.report(), report);
}

// The coordinator compares each rank that is reported with all others. A peer may send what no
// leader does.
TEST(ReportStream, TheProgressOfTooManyRanksIsRefused) {
  Report report;
  report.addresses = addresses_of(8192);
  report.ranks.resize(256);
  std::string bytes = ReportWriter().bytes_of(report);
  ASSERT_TRUE(report_of(bytes).ok());
  // The two lengths, of all ranks and of those with news.
  const std::string lengths("\x00\x01\x00\x00\x00\x01\x00\x00", 8);
  const auto at = bytes.rfind(lengths);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = bytes[at + 4] = '\x01';
  bytes += std::string(100, '\0');  // There are bytes for one more.
  EXPECT_THAT(
      report_of(bytes).status().message(), HasSubstr("progress of ranks"));
  report.ranks.resize(257);
  EXPECT_THROW((void)ReportWriter().bytes_of(report), Error);
}

TEST(ReportStream, WhoIsNotAskedSaysNothingOfWhatItRemembers) {
  ReportWriter writer;
  Report report;
  const auto never_asked = writer.bytes_of(report).size();
  report.remembers = view_of(1000);
  report.remembers->peers.clear();
  const auto asked = writer.bytes_of(report);
  EXPECT_GT(asked.size(), 12000U);
  EXPECT_LT(writer.bytes_of(report).size(), 20U);
  EXPECT_EQ(ReportWriter().bytes_of(Report()).size(), never_asked);
}

TEST(ReportStream, BeginsWithAWholeReport) {
  ReportWriter writer;
  std::string first = writer.bytes_of(Report());
  EXPECT_THAT(
      report_of(writer.bytes_of(Report())).status().message(),
      HasSubstr("expected message 1 of the connection, found 2"));
  constexpr std::size_t kParts = 2 + 4;  // After the version and the number.
  first[kParts] = '\x01';
  EXPECT_THAT(
      report_of(first).status().message(),
      HasSubstr("expected all 12 parts in the first message"));
}

TEST(ReportStream, AMessageThatComesAgainIsNothingAndAGapIsAnError) {
  ReportWriter writer;
  Report report;
  report.serial = 1;
  const auto first = writer.bytes_of(report);
  report.serial = 2;
  const auto second = writer.bytes_of(report);
  report.serial = 3;
  const auto third = writer.bytes_of(report);
  ReportReader reader;
  for (const auto& bytes : {first, second, first, second}) {
    EXPECT_TRUE(reader.read(bytes).ok());
  }
  EXPECT_EQ(reader.report().serial, 2U);
  ReportReader other;
  EXPECT_TRUE(other.read(first).ok());
  EXPECT_THAT(
      other.read(third).message(),
      HasSubstr("expected message 2 of the connection, found 3"));
}

TEST(ViewStream, EachViewComesAsItWasSaid) {
  RandomMessages random(seed_of_stream());
  for (int i = 0; i < 200; ++i) {
    ViewConnection connection;
    RunView view = random.view();
    for (int j = 0; j < 20; ++j) {
      const RunView other = random.view();
      view.canonical = random.coin() ? other.canonical : view.canonical;
      view.recent = random.coin() ? other.recent : view.recent;
      view.members = random.coin() ? other.members : view.members;
      view.peers = random.coin() ? other.peers : view.peers;
      view.wrong = random.coin() ? other.wrong : view.wrong;
      view.lives = random.coin() ? other.lives : view.lives;
      view.starts = random.coin() ? other.starts : view.starts;
      view.consumed = random.coin() ? other.consumed : view.consumed;
      view.asks = random.coin();
      view.fenced = random.below(8) == 0 ? other.fenced : "";
      connection.say(view);
    }
  }
}

// Connections get views at different times, and replicas come and go meanwhile.
TEST(ViewStream, OneWriterServesConnectionsThatKnowDifferentThings) {
  RandomMessages random(seed_of_stream());
  ViewWriter writer;
  std::vector<ToldView> told(5);
  std::vector<ViewReader> readers(5);
  RunView view = view_of(20);
  for (int i = 0; i < 2000; ++i) {
    const auto at = random.below(view.peers.size() + 1);
    if (at == view.peers.size() || view.peers.size() < 3) {
      view = next_of(view);
      view.recent.erase(view.recent.begin(), view.recent.end() - 1);
    } else if (random.below(10) == 0) {
      view.peers.erase(view.peers.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (random.below(10) == 0) {
      view.peers[at].incarnation = random.word();
      view.peers[at].addresses = addresses_of(1 + random.below(3));
    } else if (view.peers.back().replica < 200 && random.below(10) == 0) {
      view.peers.push_back(
          {view.peers.back().replica + 1, 7, {}, addresses_of(2)});
    } else {
      view.peers[at].held = view.canonical;
    }
    const auto who = random.below(told.size());
    const auto bytes =
        writer.bytes_for(told[who], std::make_shared<const RunView>(view));
    const auto status = readers[who].read(bytes);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(readers[who].view(), view);
  }
}

// This version's writer never sends it like that.
TEST(ViewStream, NewsOfPeersMayComeInAnyOrderAndTwice) {
  const auto peer = [](ReplicaId replica, Incarnation incarnation) {
    return LiveReplica{replica, incarnation, {}, addresses_of(1)};
  };
  std::vector<LiveReplica> peers = {peer(1, 1), peer(3, 1), peer(5, 1)};
  wire::FieldWriter writer;
  writer.flag("whether others stay", true);
  writer.list(
      "replicas that have gone", wire::kGoneList, std::vector<ReplicaId>{5, 3});
  writer.list(
      "peers", wire::kPeerList,
      std::vector<LiveReplica>{peer(7, 2), peer(1, 2), peer(7, 3), peer(2, 2)});
  const auto bytes = writer.out.take();
  wire::FieldReader reader{net::ByteReader(bytes)};
  wire::read_peers(reader, peers);
  EXPECT_TRUE(reader.in.ok());
  EXPECT_EQ(
      peers, (std::vector<LiveReplica>{peer(1, 2), peer(2, 2), peer(7, 3)}));
}

// ---- sizes ----

TEST(ViewStream, WhoAsksAgainGetsAnAcknowledgementOfConstantSize) {
  for (const std::size_t replicas : {3, 1000}) {
    ViewConnection connection;
    connection.say(view_of(replicas));
    EXPECT_EQ(connection.say(view_of(replicas)), 10U);
  }
}

TEST(ViewStream, ACommitIsAsShortForManyReplicasAsForFew) {
  ViewConnection connection;
  connection.say(view_of(1000));
  EXPECT_LT(connection.say(next_of(view_of(1000))), 300U);
}

TEST(ViewStream, WhatPeersHoldTakesTwoBitsEachAtMost) {
  ViewConnection connection;
  RunView view = next_of(view_of(1000));
  connection.say(view);
  for (std::size_t i = 0; i < view.peers.size(); i += 2) {
    view.peers[i].held = view.canonical;
  }
  EXPECT_LT(connection.say(view), 300U);
}

TEST(ViewStream, OneThatComesCostsItsOwnAddressesAlone) {
  ViewConnection connection;
  RunView view = view_of(999);
  connection.say(view);
  view.peers.push_back({999, 1, {}, addresses_of(8)});
  EXPECT_LT(connection.say(view), 400U);
}

}  // namespace
}  // namespace sherd::ft
