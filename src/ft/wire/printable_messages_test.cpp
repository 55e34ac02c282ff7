// SPDX-License-Identifier: Apache-2.0
#include "ft/wire/printable_messages.h"

#include <cstdint>
#include <random>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ft/wire/codec.h"
#include "ft/wire/messages_testing.h"

namespace sherd::ft {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Clears the screen.
const std::string kBad = "a\x1b[2J\nb";
const std::string kGood = "a?[2J?b";

TEST(Texts, OfAReportAreFitForATerminal) {
  Report report;
  report.suspicion = Suspicion{{1, 1}, 2, kBad};
  report.bad_gradients = BadGradients{{}, {}, {kBad, false}};
  report.addresses = {{"h", 1, 2}, {kBad, 3, 4}};
  report.progress.place.emplace();
  report.progress.place->unit = kBad;
  report.ranks = {{}, report.progress};
  const Report clean = with_printable_texts(report);
  EXPECT_EQ(clean.suspicion->reason, kGood);
  EXPECT_EQ(clean.suspicion->accused, 2U);
  EXPECT_EQ(clean.bad_gradients->fault.reason, kGood);
  EXPECT_EQ(clean.addresses[0].host, "h");
  EXPECT_EQ(clean.addresses[1].host, kGood);
  EXPECT_EQ(clean.progress.place->unit, kGood);
  EXPECT_EQ(clean.ranks[1].place->unit, kGood);
  EXPECT_THAT(bytes_of(clean), Not(HasSubstr("\x1b[")));
}

TEST(Texts, OfAnOrderAreFitForATerminal) {
  RunView view;
  view.fenced = kBad;
  view.peers = {{1, 1, {}, {{kBad, 1, 2}}}};
  const RunView clean = with_printable_texts(view);
  EXPECT_EQ(clean.fenced, kGood);
  EXPECT_EQ(clean.peers[0].addresses[0].host, kGood);
  EXPECT_THAT(bytes_of(clean), Not(HasSubstr("\x1b[")));
}

TEST(Texts, AreCut) {
  RunView view;
  view.fenced = std::string(CodecLimits::kTextBytes, 'x');
  EXPECT_EQ(
      with_printable_texts(view).fenced, std::string(kShownBytesMax, 'x'));
}

TEST(Texts, ThatAreFitAreLeftAloneAndSoIsAllElse) {
  test::RandomMessages random(std::random_device{}());
  for (int i = 0; i < 200; ++i) {
    const Report report = random.report();
    const RunView view = random.view();
    EXPECT_EQ(with_printable_texts(report), report);
    EXPECT_EQ(with_printable_texts(view), view);
  }
}

}  // namespace
}  // namespace sherd::ft
