// SPDX-License-Identifier: Apache-2.0
#include "train/progress_display.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "format_text.h"

namespace sherd::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ProgressState halfway() {
  return {
      .step = 100,
      .steps = 200,
      .loss = 2.4134,
      .val_loss = 2.6,
      .tokens_per_s = 5123,
      .rss_bytes = 412LL << 20,
      .seconds_left = 21.2};
}

TEST(ProgressDisplay, ALineSaysEverything) {
  EXPECT_EQ(
      progress_line(halfway()),
      "step 100/200 | loss 2.413 | val 2.600 | 0:21 left | 5.1k tokens/s | "
      "412 MiB/rank");
}

TEST(ProgressDisplay, WithoutAValidationThereIsNone) {
  auto state = halfway();
  state.val_loss.reset();
  EXPECT_THAT(progress_line(state), Not(HasSubstr("val")));
}

TEST(ProgressDisplay, TheBarFitsEveryWidthAndDropsTheLeastImportantFirst) {
  for (int columns = 0; columns <= 200; ++columns) {
    const auto text = progress_bar(halfway(), columns);
    ASSERT_LE(static_cast<int>(text.size()), std::max(columns - 1, 0));
  }
  EXPECT_EQ(
      progress_bar(halfway(), 40), "step 100/200 | loss 2.413 | val 2.600");
  EXPECT_THAT(
      progress_bar(halfway(), 200),
      StartsWith("[###############...............] step 100/200"));
}

TEST(ProgressDisplay, TheEndSaysWhetherItIsTheLastStepAndWhatWasMeasured) {
  auto state = halfway();
  EXPECT_EQ(
      end_line(state, 21.2),
      "ended  at step 100 of 200: loss 2.413, validation 2.600, 5123 tokens/s, "
      "0:21");
  state.step = 200;
  state.val_loss.reset();
  EXPECT_EQ(end_line(state, 21.2), "done   loss 2.413, 5123 tokens/s, 0:21");
}

TEST(ShellQuoted, AShellReadsTheWordBack) {
  EXPECT_EQ(shell_quoted("runs/20260102-030405"), "runs/20260102-030405");
  EXPECT_EQ(shell_quoted("my dir/run"), "'my dir/run'");
  EXPECT_EQ(shell_quoted("a b'c"), R"('a b'\''c')");
  EXPECT_EQ(shell_quoted("~/x"), "'~/x'");
  EXPECT_EQ(shell_quoted(""), "''");
}

TEST(ProgressDisplay, DurationsReadLikeAClock) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(6.6), "0:07");
  EXPECT_EQ(format_duration(754), "12:34");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(-5), "0:00");
}

TEST(ProgressDisplay, LinesComeByIntervalAndAtMomentsThatMatter) {
  ProgressDisplay progress(ProgressStyle::kLines, 5.0);
  auto state = halfway();
  EXPECT_NE(progress.update(state, false, 100.0, 80), "");  // The first.
  EXPECT_EQ(progress.update(state, false, 104.9, 80), "");
  EXPECT_NE(progress.update(state, false, 105.0, 80), "");
  EXPECT_NE(progress.update(state, true, 105.1, 80), "");
  state.step = 200;
  EXPECT_THAT(progress.update(state, false, 105.2, 80), HasSubstr("200/200"));
  EXPECT_EQ(progress.finish(), "");
}

TEST(ProgressDisplay, ABarIsRedrawnInPlaceAndClosedOnce) {
  ProgressDisplay progress(ProgressStyle::kBar);
  EXPECT_EQ(progress.finish(), "");
  EXPECT_THAT(progress.update(halfway(), false, 1.0, 80), StartsWith("\r"));
  EXPECT_EQ(progress.update(halfway(), true, 1.05, 80), "");
  EXPECT_THAT(progress.update(halfway(), false, 1.2, 80), Not(HasSubstr("\n")));
  EXPECT_EQ(progress.finish(), "\n");
  EXPECT_EQ(progress.finish(), "");
}

TEST(ProgressDisplay, SilenceIsSilent) {
  ProgressDisplay progress(ProgressStyle::kSilent);
  EXPECT_EQ(progress.update(halfway(), true, 1.0, 80), "");
  EXPECT_EQ(progress.finish(), "");
}

}  // namespace
}  // namespace sherd::tools
